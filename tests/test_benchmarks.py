"""The benchmarks can be read and started, and their ratios are what they say; no times are tested."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from stable_baselines3.common.vec_env import DummyVecEnv

from rppdyn.agents._seeds import SeedTrainer

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))
SHARED = ("growth", "measuring", "mutation")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The scripts import each other by their bare names, some of which other modules of the tests have."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = {name: sys.modules.pop(name) for name in SCRIPTS if name in sys.modules}
    yield
    for name in SCRIPTS:
        sys.modules.pop(name, None)
    sys.modules.update(before)


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in SHARED])
def test_a_script_says_what_it_does(name, monkeypatch, capsys):
    script = importlib.import_module(name)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as stopped:
        script.main()
    assert stopped.value.code == 0 and "--" in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in SHARED])
def test_a_script_reads_no_option_that_it_has_not(name):
    """Options are read where everything else has been measured."""
    sources = [(ROOT / "benchmarks" / f"{source}.py").read_text(encoding="utf-8") for source in (name, *SHARED)]
    declared = {
        found.replace("-", "_") for text in sources for found in re.findall(r'add_argument\(\s*"-*([\w-]+)"', text)
    }
    used = set(re.findall(r"\barguments\.(\w+)", sources[0]))
    assert used <= declared | {"rounds_of"}


@pytest.mark.parametrize(
    "words", [("--rounds", "0"), ("--rounds", "-2"), ("--threads", "0"), ("--json", "/dev/null/x.json")], ids=" ".join
)
def test_what_can_t_be_measured_or_written_is_refused_first(words, monkeypatch, capsys):
    measuring = importlib.import_module("measuring")
    monkeypatch.setattr(sys, "argv", ["images.py", *words])
    with pytest.raises(SystemExit) as stopped:
        measuring.begin(measuring.command_line("", rounds=3, quick=1))
    assert stopped.value.code == 2 and " ".join(words) in capsys.readouterr().err


def test_make_bench_runs_scripts_that_have_a_quick_form():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    names = re.search(r"^BENCHMARKS \?= (.*)$", makefile, re.MULTILINE).group(1).split()
    assert names == ["basis", "layers", "acting", "sac", "dynamics", "images", "install"]
    for name in names:
        source = (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
        assert "command_line(" in source or '"--quick"' in source, f"{name} has no --quick"


def test_the_steps_of_seeds_can_be_timed(monkeypatch):
    """Both scripts called `Updates.of`, which had become `get`."""
    env = "InvertedPendulum-v5"
    sac, seeds = (importlib.import_module(name) for name in ("sac", "seeds"))
    monkeypatch.setattr(sac, "STEPS", 1)
    trainer = SeedTrainer(lambda: sac.build(env, "mlp", width=8, batch=4))
    sac.steps([trainer])()
    assert trainer().num_timesteps == trainer()._n_updates == 1
    monkeypatch.setattr(seeds, "OPTIONS", dict(batch_size=4, buffer_size=100, learning_starts=0))
    monkeypatch.setattr(seeds, "WorkerEnv", lambda make, count: DummyVecEnv([make] * count))
    with seeds.parts(SimpleNamespace(env=env, device="cpu"), "mlp", 1, 1, False) as steps:
        for step in steps.values():
            step()


def test_ratios_are_of_pairs_that_saw_the_same_load(tmp_path):
    measuring = importlib.import_module("measuring")
    load = [1.0, 5.0, 2.0, 9.0, 1.0]
    peer = measuring.Timing("peer", "peer", cpu=[2.0 * x for x in load])
    ours = measuring.Timing("ours", "peer", cpu=[3.0 * x for x in load])
    assert measuring.ratio(ours, peer) == (1.5, 1.5, 1.5)
    shifted = measuring.Timing("ours", "peer", cpu=ours.cpu[1:] + ours.cpu[:1])
    assert measuring.ratio(shifted, peer).high > 2  # the negative control: what was not taken in pairs scatters
    assert measuring.spread([4.0]) == (4.0, 4.0, 4.0)

    measuring.write_times(tmp_path / "new" / "times.json", {"threads": 1}, {"table": [ours]})
    stored = json.loads((tmp_path / "new" / "times.json").read_text())
    assert stored["times"]["table"][0]["cpu"] == ours.cpu and stored["conditions"]["threads"] == 1
