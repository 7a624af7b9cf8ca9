"""Whatever a library raises on a file, or an environment, is one line, exit status 2, in seconds; nothing is written."""

from __future__ import annotations

import random
import re
import struct
import time
import zipfile
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from rppdyn.cli import main

CRAWLER = Path(__file__).parents[2] / "docs" / "examples" / "crawler.xml"
FIT = ["positions=[x]", "velocities=[v]", "time=0.1", "model.hidden=4", "model.num_layers=1", "optimiser.epochs=1",
       "optimiser.batch_size=1000", "report=false", "rollout.trajectories=1", "evaluation.states=4"]  # fmt: skip
IMAGE = ["equivariance", "mine:net", "--image"]


def one_line(words, capfd, said=""):
    begin = time.monotonic()
    there = lambda: [path for path in sorted(Path().rglob("*")) if "__pycache__" not in str(path)]  # noqa: E731
    before = there()
    status, err = main(words), capfd.readouterr().err
    assert status == 2 and err.startswith("rppdyn: error: ") and err.count("\n") == 1, err
    assert re.search(said, err), err
    assert "Traceback" not in err and time.monotonic() - begin < 60
    assert there() == before


def crawler(inside: str, name: str = "own.xml") -> str:
    Path(name).write_text(CRAWLER.read_text().replace("<worldbody>", inside + "<worldbody>", 1))
    return name


def body(copies: int, inside: str = "") -> str:
    inside = inside or '<body><geom size=".1"/><freejoint/></body>'
    return f'<worldbody><replicate count="{copies}" offset="1 0 0">{inside}</replicate></worldbody>'


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ('<asset><hfield name="h" nrow="200000" ncol="200000" size="1 1 1 1"/></asset>', "takes .* GB"),
        ('<asset><texture name="t" type="skybox" builtin="flat" width="300000"/></asset>', "takes .* GB"),
        ('<size memory="900P"/>', "takes .* GB"),
        (body(1000, body(1000).replace("<worldbody>", "").replace("</worldbody>", "")), "elements"),
        ('<include file="many.xml"/>', "elements"),
        ('<include file="own.xml"/>', "MuJoCo can't compile"),
        ('<worldbody><body><geom size=".1" pos="nan 0 0"/><freejoint/></body></worldbody>', "of <geom> is no number"),
    ],
)  # fmt: skip
def test_what_a_model_declares_is_looked_at_before_it_is_compiled(tmp_path, monkeypatch, capfd, inside, said):
    monkeypatch.chdir(tmp_path)
    Path("many.xml").write_text(f"<mujocoinclude>{body(10**9)}</mujocoinclude>")
    name = crawler(inside)
    one_line(["certify", name, "--states", "20"], capfd, said)


def test_the_model_of_an_environments_option_too(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    name = crawler('<size memory="900P"/>')
    one_line(["train-agent", "env=Ant-v5", f"env.kwargs.xml_file={tmp_path / name}"], capfd, "takes .* GB")


RAISED = [("make", "KeyError('a')"), ("make", "SystemExit(3)"), ("reset", "RecursionError()"), ("reset", "MemoryError()"),
          ("import", "struct.error('x')"), ("import", "SystemExit(3)"), ("call", "StopIteration()"), ("call", "MemoryError()"),
          ("call", "UnicodeDecodeError('utf-8', b'x', 0, 1, 'bad')")]  # fmt: skip


def elsewhere(kind: str) -> None:
    with h5py.File("other.h5", "w") as file:
        file["x"] = np.zeros((3, 20, 1))
    Path("raw.bin").write_bytes(bytes(480))
    with h5py.File("own.h5", "w") as file:
        file["v"] = np.zeros((3, 20, 1))
        if kind == "external link":
            file["x"] = h5py.ExternalLink("other.h5", "x")
        elif kind == "linked group":
            file["x/y"] = h5py.ExternalLink("other.h5", "/")
        elif kind == "virtual":
            layout = h5py.VirtualLayout((3, 20, 1), float)
            layout[:] = h5py.VirtualSource("other.h5", "x", (3, 20, 1))
            file.create_virtual_dataset("x", layout)
        elif kind == "storage":
            file.create_dataset("x", (3, 20, 1), float, external=[("raw.bin", 0, 480)])
        elif kind == "circle":
            file["x/round"] = file["/"]
        elif kind == "soft circle":
            file["x/round"] = h5py.SoftLink("/")
        elif kind == "dangling":
            file["x"] = h5py.SoftLink("/nowhere")
        else:
            file.create_dataset("x", (10**7, 10**6, 1), float, compression="gzip", chunks=(10**4, 10, 1))


@pytest.mark.parametrize(
    "kind", ["external link", "linked group", "virtual", "storage", "circle", "soft circle", "dangling", "large"]
)
def test_hdf5_shows_nothing_but_what_is_in_it(tmp_path, monkeypatch, capfd, kind):
    monkeypatch.chdir(tmp_path)
    elsewhere(kind)
    said = {"dangling": "own.h5", "large": "GB", "circle": "second name", "soft circle": "second name"}
    one_line(["fit-dynamics", "data=own.h5", *FIT], capfd, said.get(kind, "own.h5: /x.* not read"))


def test_arrays_and_pictures_that_declare_more_than_fits(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("import torch\nnet = torch.nn.Conv2d(1, 1, 3)\n")
    header = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118)
    header += b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 10), }".ljust(117) + b"\n"
    Path("own.npy").write_bytes(header)
    with zipfile.ZipFile("own.npz", "w") as archive:
        archive.writestr("x.npy", header)
    one_line(["fit-dynamics", "data=own.npz", *FIT], capfd, "own.npz takes")
    one_line([*IMAGE, "own.npy"], capfd, "own.npy takes")

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">IIBBBBB", 2_000_000, 2_000_000, 8, 0, 0, 0, 0)
    Path("own.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", b"") + chunk(b"IEND", b""))
    one_line([*IMAGE, "own.png"], capfd, "own.png")


@pytest.mark.parametrize(("where", "error"), RAISED)
def test_whatever_a_module_raises(tmp_path, monkeypatch, capfd, error, where):
    monkeypatch.chdir(tmp_path)
    fails = {where: f"raise {error}"}
    Path("mine.py").write_text(f"""
import struct
import gymnasium as gym, torch
from gymnasium.envs.classic_control import PendulumEnv
{fails.get("import", "")}
class Env(PendulumEnv):
    def __init__(self, **options):
        super().__init__(**options)
        {fails.get("make", "")}
    def reset(self, **options):
        {fails.get("reset", "")}
        return super().reset(**options)
def net(x):
    {fails.get("call", "")}
    return x
gym.register("Mine-v0", "mine:Env", max_episode_steps=10)
""")
    np.save("x.npy", np.zeros((2, 1, 8, 8)))
    words = [*IMAGE, "x.npy"] if where in ("import", "call") else ["certify", "mine:Mine-v0", "--states", "20"]
    one_line(words, capfd, "mine|memory")


def test_files_that_are_changed_at_random(tmp_path, monkeypatch, capfd):
    """Some are read all the same."""
    monkeypatch.chdir(tmp_path)
    t, rng = np.arange(20) * 0.1, random.Random(0)
    x, v = (np.stack([f(t + k) for k in range(4)])[..., None] for f in (np.cos, lambda t: -np.sin(t)))
    np.savez("own.npz", x=x, v=v)
    np.savez_compressed("small.npz", x=x, v=v)
    with h5py.File("own.h5", "w") as file:
        file.create_dataset("x", data=x, compression="gzip")
        file["v"] = v
    Path("own.csv").write_text(
        "time,x,v\n" + "".join(f"{a:g},{b},{c}\n" for a, b, c in zip(t, x[0, :, 0], v[0, :, 0], strict=True))
    )
    Image.fromarray(np.zeros((8, 8), np.uint8)).save("own.png")
    Path("mine.py").write_text("import torch\nnet = torch.nn.Conv2d(1, 1, 3)\n")
    crawler("")
    for count in range(36):
        name = ["own.npz", "small.npz", "own.h5", "own.csv", "own.png", "own.xml"][count % 6]
        data = bytearray(Path(name).read_bytes())
        for _ in range(rng.choice([1, 2, 8])):
            place = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[place] = rng.randrange(256)
                case 1:
                    data[place:place] = rng.choice([b"\0", b"nan", b"1e999", b"9" * 30, b"<", b'"', b"\xff"])
                case 2:
                    del data[place : place + rng.randrange(1, 50)]
                case 3:
                    del data[place:]
        changed = Path("changed").with_suffix(Path(name).suffix)
        changed.write_bytes(data)
        words = {".png": [*IMAGE, str(changed)], ".xml": ["certify", str(changed), "--states", "20"]}
        status = main(words.get(changed.suffix, ["fit-dynamics", f"data={changed}", *FIT, f"run_dir=r{count}"]))
        err = capfd.readouterr().err
        assert status in (0, 2), (name, err)
        assert status == 0 or (err.count("rppdyn: error: ") == 1 and not Path(f"r{count}").exists()), (name, err)
