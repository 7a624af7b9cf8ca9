"""`rppdyn bound` through the command line, from nothing to a result that is shown again."""

from __future__ import annotations

import json

WORDS = ("task=inertia", "model=emlp", "model.hidden=16", "task.train=400", "task.test=200", "optimiser.epochs=8",
         "optimiser.batch_size=100", "subspace.dimension=[4,8]", "subspace.levels=3", "subspace.quantised_epochs=4",
         "device=cpu", "run_dir=run")  # fmt: skip


def test_bound(rppdyn, tmp_path):
    status, out, _ = rppdyn("bound", *WORDS, cwd=tmp_path)
    assert status == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["verb"] == "bound"
    for name in ("risk/train", "risk/test", "bound/bits", "bound/value"):
        assert name in out and len(result["test"][name]) == 1
    assert result["test"]["risk/train"][0] < result["test"]["bound/value"][0] <= 1
    assert (tmp_path / "run" / "figures" / "bound.png").exists()

    status, _, err = rppdyn("bound", *WORDS, cwd=tmp_path)
    assert status == 2 and "exists" in err
    status, out, _ = rppdyn("bound", "--resume", "run", cwd=tmp_path)
    assert status == 0 and "nothing left to do" in out
    for words in (["equivariance", "run"], ["figure", "run", "--out", "a.png"]):
        status, _, err = rppdyn(*words, cwd=tmp_path)
        assert status == 2 and "run of bound" in err and err.count("\n") == 1
