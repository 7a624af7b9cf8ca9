"""Run folders: created in one step, refused when they exist, locked while they are written."""

from __future__ import annotations

import math

import pytest

from rppdyn.runs import MetricsLog, RunFolder, RunFolderError, differences, read_metrics, series
from rppdyn.runs.files import plain

CONFIG = {
    "seed": 3,
    "agent": {"learning_rate": 3e-4, "betas": [0.5, 0.999]},
    "env": {"id": "Walker2d-v5", "kwargs": {}},
}


def test_the_configuration_comes_back_as_it_was(tmp_path):
    RunFolder.create(tmp_path / "a" / "run", CONFIG)
    assert RunFolder.open(tmp_path / "a" / "run").config() == CONFIG
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["run"]
    (tmp_path / "empty").mkdir()
    assert RunFolder.create(tmp_path / "empty", CONFIG).config() == CONFIG


def test_numbers_that_json_lacks_come_back_too(tmp_path):
    config = CONFIG | {"env": {"id": "Hopper-v5", "kwargs": {"healthy_z_range": [0.8, math.inf], "height": math.nan}}}
    stored = RunFolder.create(tmp_path / "run", config).config()
    assert stored["env"]["kwargs"]["healthy_z_range"] == [0.8, math.inf] and differences(stored, config) == []
    assert differences(stored, CONFIG | {"env": {"id": "Hopper-v5", "kwargs": {"height": None}}}) != []


def test_what_is_no_place_for_a_run_and_no_run_is_refused(tmp_path):
    RunFolder.create(tmp_path / "run", CONFIG)
    (tmp_path / "file").write_text("")
    for place, said in (("run", r"exists: add --resume .* run_dir=FOLDER"), ("file", "file is a file: choose another place"),
                        ("file/below", "below can't be made: .*file is a file: choose another place")):  # fmt: skip
        with pytest.raises(RunFolderError, match=said):
            RunFolder.create(tmp_path / place, CONFIG)
    for place, said in (("absent", "no run at"), (".", r"has no config\.yaml.*in it, such as .*run$")):
        with pytest.raises(RunFolderError, match=said):
            RunFolder.open(tmp_path / place)


@pytest.mark.parametrize("text", ["a: [", "3", "a: ${b"])
def test_a_damaged_configuration_is_named(tmp_path, text):
    folder = RunFolder.create(tmp_path / "run", CONFIG)
    folder.config_file.write_text(text)
    with pytest.raises(RunFolderError, match=r"config\.yaml"):
        folder.config()


def test_results(tmp_path):
    folder = RunFolder.create(tmp_path / "run", CONFIG)
    assert folder.result() is None
    folder.write_result({"steps": 3, "nan": float("nan")})
    assert folder.result() == {"steps": 3, "nan": None}
    for text in ("{", "{}", "[]", "null"):
        folder.result_file.write_text(text)
        with pytest.raises(RunFolderError, match=r"result\.json is damaged"):
            folder.result()


def test_a_folder_is_written_by_one_process_at_a_time(tmp_path):
    folder = RunFolder.create(tmp_path / "run", CONFIG)
    with folder.lock():
        with pytest.raises(RunFolderError, match="another process"), RunFolder.open(folder.path).lock():
            pass
    with folder.lock():
        pass


def test_differences_are_dotted_keys():
    asked = {"seed": 4, "agent": {"learning_rate": 3e-4, "betas": [0.9, 0.999]}, "env": {"id": "Walker2d-v5"}}
    found = differences(CONFIG, asked)
    assert [key for key, _, _ in found] == ["agent.betas", "env.kwargs", "seed"]
    assert found[0][1:] == ([0.5, 0.999], [0.9, 0.999])
    assert differences(CONFIG, CONFIG) == []


def test_metrics_are_appended_and_rewound(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    assert log.last() == {}
    log.rewind(10)  # of nothing
    for step in (0, 10, 20):
        log.append(step, {"eval/return_mean": step / 3, "error": None if step else float("inf")})
    before = log.path.read_text().splitlines(keepends=True)
    with open(log.path, "a") as file:
        file.write('{"step": 30, "eval/ret')  # a process killed while writing
    assert [record["step"] for record in read_metrics(log.path)] == [0, 10, 20]
    log.rewind(10)
    assert log.path.read_text() == "".join(before[:2])
    assert log.last() == {"step": 10, "eval/return_mean": 10 / 3, "error": None}
    assert series(read_metrics(log.path), "error") == ([], [])
    log.path.write_text('{"step": 0}\nrubbish\n{"step": 1}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_metrics(log.path)


@pytest.mark.parametrize("end", [b"\xff", b'{"step": 20, "a": \xff}\n', b'{"step": 5}\n', b"[" * 9999 + b"\n"])
def test_a_damaged_end_of_the_metrics_is_left_out(tmp_path, end, caplog):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(10, {"a": 1.0})
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + end)
    assert [record["step"] for record in read_metrics(log.path)] == [10] and log.last()["a"] == 1.0
    assert ("line 2 is no metrics record" in caplog.text) == end.endswith(b"\n")
    log.rewind(10)
    assert log.path.read_bytes() == whole


def test_plain_values(tmp_path):
    import numpy as np
    import torch

    value = {"a": np.float32(1.5), "b": (np.arange(2), torch.tensor([1.0])), "c": tmp_path, "d": float("nan"), 3: True}
    assert plain(value, finite=True) == {"a": 1.5, "b": [[0, 1], [1.0]], "c": str(tmp_path), "d": None, "3": True}
    with pytest.raises(TypeError, match="no JSON form"):
        plain(object())


def test_a_retired_key_is_left_out_where_it_says_what_is_always_done_now(tmp_path):
    for value, left in (("pathways", {"kind": "rpp"}), ("dense", {"kind": "rpp", "parametrisation": "dense"})):
        folder = RunFolder.create(tmp_path / value, {"model": {"kind": "rpp", "parametrisation": value}})
        assert folder.config() == {"model": left}
    for i, (value, left) in enumerate([(None, {}), ({"members": 5}, {"imagination": {"members": 5}})]):
        folder = RunFolder.create(tmp_path / str(i), {"agent": {"tau": 0.1, "imagination": value}})
        assert folder.config() == {"agent": {"tau": 0.1} | left}
    assert RunFolder.create(tmp_path / "new", {"agent": {"tau": 0.1}}).config() == {"agent": {"tau": 0.1}}
    for i, (loggers, left) in enumerate(
        [("mlflow", "tensorboard"), (["mlflow", "wandb"], ["wandb"]), ("wandb", "wandb")]
    ):
        assert RunFolder.create(tmp_path / f"logger{i}", {"logger": loggers}).config() == {"logger": left}
