"""What a fit prints when it ends."""

from __future__ import annotations

from rppdyn.jobs.results import FitResult


def printed(**test):
    result = FitResult("runs/a", "fit-dynamics", "pendulum", "rpp_hnn", [0, 1, 2], 10, test=test)
    return {words[0]: " ".join(words[1:]) for words in map(str.split, str(result).splitlines()[1:])}


def test_members_that_diverged_are_counted():
    lines = printed(**{"test/error": [0.1, 0.2, 0.3], "rollout/error": [0.1, None, 0.3], "test/mse": [None] * 3,
                       "rollout/first_divergence": [None, 12.4, 3.2]})  # fmt: skip
    assert lines["test/error"].startswith("0.2 (0.1, 0.2, 0.3)") and "diverged" not in lines["test/error"]
    assert lines["rollout/error"].endswith("1 of 3 diverged") and lines["test/mse"] == "3 of 3 diverged"
    assert lines["rollout/first_divergence"] == "3.2 s; in 2 of 3"
    assert "rollout/first_divergence" not in printed(**{"rollout/first_divergence": [None] * 3})


def test_brackets_are_explained_and_figures_named():
    errors = [0.1, 0.3, 0.1, 0.3]
    result = FitResult("runs/a", "fit-dynamics", "pendulum", "rpp_hnn", [0, 1, 2, 3], 10, test={"test/error": errors})
    _, explained, error, *_, figures = str(result).splitlines()
    assert "[95 % bootstrap interval]" in explained and error.endswith("0.2 [0.1, 0.3]")
    few = FitResult("runs/a", "fit-dynamics", "pendulum", "rpp_hnn", [0, 1], 10, test={"test/error": [0.3, 0.1]})
    _, explained, error, *_ = str(few).splitlines()
    assert explained.split() == ["over", "seeds:", "mean", "(each)"] and error.endswith("0.2 (0.3, 0.1)")
    assert figures.split() == ["figures", "runs/a/figures"]
    one = FitResult("runs/a", "fit-dynamics", "pendulum", "rpp_hnn", [0], 10, test={"test/error": [0.1]})
    assert "interval" not in str(one)
