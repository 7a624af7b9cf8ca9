"""The examples of docs/examples run as they stand, one for each trainer; `crawler_rsl_rl.py` is in test_rsl_rl.py."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path

import pytest

from rppdyn.cli import main

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SAYS = {
    "walker_stable_baselines3": ("PPO, relaxed networks ('leg swap',) 120", "SAC, a mirror loss ('leg swap',) 120"),
    "ant_isaac_lab": ("left-right: dynamics exact", "'policy': (32, ", "(32, 8)"),
    "humanoid_holosoma": ("0.0\n(8, 17)",),
    "quadruped_mjlab": ("left-right: dynamics approximate", "'actor': (8, ", "(8, 12)"),
}


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs(name, capsys):
    if name == "quadruped_mjlab":
        pytest.importorskip("dm_control")
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    out = capsys.readouterr().out
    for words in SAYS[name]:
        assert words in out, out


def test_the_demo_ends_with_what_was_learned(tmp_path, monkeypatch, capsys):
    """The return before and after, the equivariance error beside a plain network's, and a film; again without training."""
    monkeypatch.chdir(tmp_path)
    demo = runpy.run_path(str(EXAMPLES / "demo.py"))
    words = ["total_steps=60", "agent.learning_starts=40", "agent.batch_size=8", "model.hidden=8",
             "evaluation.every=30"]  # fmt: skip
    for _ in range(2):
        assert demo["main"](words) == 0
        *_, steps, error, film, _ = capsys.readouterr().out.splitlines()
        assert re.fullmatch(
            r"The pole stood for \d+ steps of 1000 before training, and stands for \d+ after 60 steps.", steps
        )
        own, plain = map(
            float, re.fullmatch(r"Equivariance error of the policy (\S+), of a plain network (\S+) .*", error).groups()
        )
        assert own < 0.01 < 0.1 < plain
        assert (
            film.startswith("Film of the policy: none: --video")
            or Path(film.removeprefix("Film of the policy: ")).is_file()
        )


@pytest.mark.parametrize("spec", ["point_mirror.yaml", "point_square.yaml"])
def test_the_point_trains_with_its_symmetry(tmp_path, monkeypatch, spec):
    for name in ("point.py", spec):
        shutil.copy(EXAMPLES / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ("env=point:Point-v0", f"env.spec={spec}", "model=rpp", "model.hidden=8", "callbacks=point:StopWhenNear")
    small = ("total_steps=120", "agent.learning_starts=100", "evaluation.every=120", "evaluation.episodes=1",
             "run_dir=run")  # fmt: skip
    assert main(["train-agent", *words, *small]) == 0
    assert (tmp_path / "run" / "result.json").is_file()


@pytest.mark.filterwarnings("ignore:.*seed")
def test_an_agent_trains_on_a_model_of_its_own():
    example = runpy.run_path(str(EXAMPLES / "model_based.py"))
    agent, models, env = example["train"](steps=400, every=200, fit_steps=300, imagined=30, hidden=16)
    assert len(env.transitions) == agent.num_timesteps == 400
    buffer = agent.replay_buffer
    assert 445 <= buffer.size() <= 460  # 400 real ones and two times 30, of which few are not finite
    observations, actions, _, after = env.arrays()
    x, u = models.features(observations, actions)
    y, _ = models.features(after, actions)
    step = models.model.step(*(t.expand(models.members, -1, -1) for t in (x, u)))
    assert ((step.mean.mean(0) - y).abs().mean(0) < 0.3 * (y - x).abs().mean(0)).all()  # it has learned the simulator
    made, ended = buffer.next_observations[400:460, 0], buffer.dones[400:460, 0]
    assert (ended == example["has_ended"](made)).all()
    g = models.spec.group.discrete_generators[0]  # relaxed models are nearly as likely to make up the mirror image
    X, U = (rep.rho(g).float() for rep in (models.spec.obs_rep, models.spec.action_rep))
    mirrored = models.model.step(*(t.expand(models.members, -1, -1) for t in (x @ X.T, u @ U.T)))
    error = (mirrored.mean - step.mean @ X.T).norm() / (step.mean - x).norm()
    assert error < 0.3


def test_logs_of_a_puck_are_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "puck_log.py"), run_name="__main__")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demonstrations.hdf5", "puck.hdf5"]


def test_the_film_shows_a_humanoid_that_parts_from_its_mirror_image_until_it_is_repaired():
    import gymnasium

    example = runpy.run_path(str(EXAMPLES / "mirror_film.py"))
    with gymnasium.make("Humanoid-v5") as env:
        stock = env.unwrapped.model
        stock.opt.gravity[:] = 0
        models = stock, example["symmetrise"](stock, example["derive"](stock)["left-right"])
        apart = [
            [abs(one.xpos - ghost.xpos).max() for one, ghost in example["motion"](model, 3.0)][-1] for model in models
        ]
    assert apart[0] > 0.1 and apart[1] < 1e-6, apart


def test_every_example_is_run():  # `reach` in tests/agents/test_goals.py
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    assert scripts == {*SAYS, "demo", "point", "crawler", "crawler_rsl_rl", "mirror_film", "model_based", "puck_log",
                       "reach"}  # fmt: skip
