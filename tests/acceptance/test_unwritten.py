"""What was measured is printed where it can't be written, and that it was not is said."""

from __future__ import annotations

import json
import resource
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from rppdyn.cli import main
from rppdyn.jobs import playing
from rppdyn.jobs.config.command import EvaluateAgentConfig
from rppdyn.runs.files import UnwrittenError

pytestmark = pytest.mark.rendered

PLAY = ["evaluate-agent", "dl", "--episodes", "1"]
MEASURE = ["equivariance", "dl", "--episodes", "1", "--states", "4"]
CERTIFY = ["certify", "InvertedPendulum-v5", "--states", "20"]


@pytest.fixture
def run(small_run, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(small_run, "dl"))


@contextmanager
def no_file_larger_than(size: int):
    """As `ulimit -f` does; it holds for root, too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("words", "printed", "files"),
    [
        (PLAY, "mean return", ["dl/evaluation.json"]),
        (MEASURE, "free pathway", ["dl/equivariance.json", "dl/figures/equivariance.png"]),
        ([*CERTIFY, "--json", "dl/certificate.json"], "left-right", ["dl/certificate.json"]),
    ],
    ids=["evaluate-agent", "equivariance", "certify"],
)
def test_no_room_for_the_result(run, capsys, words, printed, files):
    with no_file_larger_than(0):
        status = main(words)
    out, err = capsys.readouterr()
    assert status == 2
    assert printed in out and "written:" not in out
    said = [line for line in err.splitlines() if line.startswith("rppdyn: error: ")]
    assert len(said) == 1 and "Traceback" not in err
    for file in files:
        assert f"{file} can't be written (File too large)" in said[0]
        assert not Path(file).exists()


def test_another_file_stands_in_the_way(run, capsys):
    """What can be written is; the figure's folder is a file here."""
    shutil.rmtree(run / "figures", ignore_errors=True)
    (run / "figures").touch()
    assert main(MEASURE) == 2
    out, err = capsys.readouterr()
    assert "free pathway" in out
    assert "dl/figures/equivariance.png can't be written" in err and "equivariance.json" not in err
    assert "policy" in json.loads((run / "equivariance.json").read_text())["functions"]


def test_in_python_the_error_has_the_result(run):
    (run / "evaluation.json").mkdir()
    with pytest.raises(UnwrittenError, match=r"evaluation\.json can't be written") as error:
        playing.evaluate(EvaluateAgentConfig(run="dl", episodes=1))
    assert error.value.result.lengths
