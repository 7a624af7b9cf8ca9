"""Sweeps by Hydra's launchers: on this machine, and on a Ray cluster that loses a node. `make test-cluster` installs them."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from .conftest import SMALL
from .test_resume import assert_same_run

RUNS = "runs/train-agent/*/*/*"
"""Their folders; `**` would look into checkpoints that are renamed while it looks."""

SWEEP = ("train-agent", "--multirun", "--resume", *SMALL, "total_steps=210", "seed=0,1")


def installed(launcher: str) -> bool:
    return find_spec("hydra_plugins") is not None and find_spec(f"hydra_plugins.hydra_{launcher}_launcher") is not None


def needs(launcher: str) -> pytest.MarkDecorator:
    """Skip a test where the launcher is not installed, before its sweeps are run."""
    reason = f"hydra's launcher {launcher} is not installed: make test-cluster"
    return pytest.mark.skipif(not installed(launcher), reason=reason)


LAUNCHERS = {"": True, "joblib": installed("joblib"), "submitit_local": installed("submitit")}


@pytest.fixture(scope="module")
def sweeps(rppdyn, fresh, tmp_path_factory):
    """The folder of a sweep by each launcher, and without one, with names of runs relative to it; all are started together.

    By a launcher it has an interpreter of its own: a forked one waits at its end until joblib's workers have been idle for five
    minutes.
    """
    folders = {name: tmp_path_factory.mktemp(name or "sequential") for name, is_there in LAUNCHERS.items() if is_there}

    def sweep(name):
        run, words = (fresh, [f"hydra/launcher={name}"]) if name else (rppdyn, [])
        return run(*SWEEP, *words, cwd=folders[name])

    with ThreadPoolExecutor() as pool:
        for status, _, err in pool.map(sweep, folders):
            assert status == 0, err
    return folders


def assert_same_sweep(folder, reference):
    runs = sorted(path.parent.relative_to(reference) for path in reference.glob("runs/**/result.json"))
    assert len(runs) == 2
    for run in runs:
        assert_same_run(folder / run, reference / run)


def first_steps(events):
    """The first step that each start of a run wrote to TensorBoard; None of one killed before its first was flushed."""
    files = sorted(events.glob("events.out.tfevents.*"), key=lambda path: path.stat().st_mtime_ns)
    read = [EventAccumulator(str(path)).Reload() for path in files]
    return [min((each.Scalars(tag)[0].step for tag in each.Tags()["scalars"]), default=None) for each in read]


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [pytest.param("joblib", marks=needs("joblib")), pytest.param("submitit_local", marks=needs("submitit"))],
)
def test_several_at_a_time(sweeps, launcher):
    assert_same_sweep(sweeps[launcher], sweeps[""])


@pytest.mark.slow
@needs("ray")
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_cluster_that_loses_a_node(sweeps, environment, monkeypatch, tmp_path):
    """Two nodes with a run each; one is killed in mid-run, and its run ends elsewhere as if nothing had happened."""
    from ray.cluster_utils import Cluster

    for name, value in {**environment, "RAY_USAGE_STATS_ENABLED": "0"}.items():
        monkeypatch.setenv(name, value)  # the nodes are this process's children
    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        second = cluster.add_node(**node)
        words = ("hydra/launcher=ray", f"hydra.launcher.ray.init.address={cluster.address}",
                 "hydra.launcher.ray.init.object_store_memory=null")  # fmt: skip
        sweep = subprocess.Popen(
            [sys.executable, "-m", "rppdyn.cli", *SWEEP, *words],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        end = time.monotonic() + 200
        while len({path.parent for path in tmp_path.glob(f"{RUNS}/checkpoints/step-*")}) < 2 and sweep.poll() is None:
            assert time.monotonic() < end, "no checkpoints"
            time.sleep(0.01)
        assert len(list(tmp_path.glob(f"{RUNS}/result.json"))) < 2, "a run was over before its node was killed"
        cluster.remove_node(second, allow_graceful=False)
        out, _ = sweep.communicate(timeout=300)
        assert sweep.returncode == 0, out
        assert "retries remaining" in out
    finally:
        cluster.shutdown()
    assert_same_sweep(tmp_path, sweeps[""])
    begun, again = sorted((first_steps(folder) for folder in tmp_path.glob("runs/**/events")), key=len)
    assert begun == [0] and again[0] in {0, None} and again[1] > 0, "the run that was lost began anew"
