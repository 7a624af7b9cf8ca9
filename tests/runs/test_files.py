"""Files that are whole or not there."""

from __future__ import annotations

import resource

import pytest
import torch

from rppdyn.errors import is_out_of_space, is_user_error
from rppdyn.runs import CheckpointError, MetricsLog, files
from rppdyn.runs.files import load_tensors, write_json, write_tensors


def test_equal_tensors_make_equal_files_whatever_their_names(tmp_path):
    tensors = {"a": torch.arange(3.0), "b": torch.eye(2, dtype=torch.float64)}
    files = [tmp_path / "one.pt", tmp_path / "folder" / "another.pt"]
    for file in files:
        write_tensors(file, tensors)
    assert files[0].read_bytes() == files[1].read_bytes()
    read = torch.load(files[0], weights_only=True)
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    write_tensors(files[1], {"a": torch.arange(3.0) + 1})
    assert files[0].read_bytes() != files[1].read_bytes()


@pytest.mark.parametrize("write", [write_json, lambda path, value: MetricsLog(path).append(0, value)])
def test_a_file_that_may_not_be_larger_is_named(tmp_path, write):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*spec\.json'") as found:
            write(tmp_path / "spec.json", {"a": list(range(1000))})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert is_user_error(found.value) and is_out_of_space(found.value)


def test_a_file_that_could_not_be_written_leaves_the_old_one(tmp_path):
    file = tmp_path / "a.pt"
    write_tensors(file, {"a": torch.ones(2)})
    before = file.read_bytes()
    with pytest.raises(AttributeError, match="pickle"):
        write_tensors(file, {"a": lambda: None})
    with pytest.raises(TypeError):
        write_json(file, {"a": object()})
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]


def test_a_flipped_bit_in_tensors_is_seen(tmp_path):
    path, tensors = tmp_path / "members.pt", {"index": torch.arange(1000), "weight": torch.ones(1000)}
    write_tensors(path, tensors)
    assert all(torch.equal(value, tensors[name]) for name, value in load_tensors(path).items())
    content = bytearray(path.read_bytes())
    place = content.index((7).to_bytes(8, "little") + (8).to_bytes(8, "little"))
    content[place + 6] ^= 1  # torch.load reads it: an index of 2^48 + 7
    path.write_bytes(content)
    assert torch.load(path, weights_only=True)["index"][7] == 2**48 + 7
    with pytest.raises(CheckpointError, match=r"members\.pt is damaged"):
        load_tensors(path)


def test_a_folder_that_another_process_finishes_meanwhile_is_none_of_ours(tmp_path, monkeypatch):
    """Its hidden folder was found and gone when it was to be locked, which ended ours in a FileNotFoundError."""
    (tmp_path / ".new-other").mkdir()
    opening = files._locked

    def finished(folder):
        if folder.name == ".new-other" and folder.exists():
            folder.rename(tmp_path / "other")
        return opening(folder)

    monkeypatch.setattr(files, "_locked", finished)
    with files.new_folder(tmp_path / "ours") as folder:
        (folder / "a").touch()
    assert (tmp_path / "ours" / "a").exists() and (tmp_path / "other").exists()
