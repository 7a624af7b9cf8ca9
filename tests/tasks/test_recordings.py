"""Robots' logs, in the layouts of those who write them."""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from rppdyn.tasks import _tables, read_recordings

EPISODES, STEPS = 4, 30


@pytest.fixture
def paths():
    """Angles and their rates, (episodes, steps, 2) each."""
    times = 0.05 * np.arange(STEPS) + np.arange(EPISODES)[:, None]
    return np.stack([np.sin(times), np.cos(2 * times)], -1), np.stack([np.cos(times), -2 * np.sin(2 * times)], -1)


def same(found, positions, velocities):
    assert len(found.trajectories) == EPISODES
    for recording, q, v in zip(found.trajectories, positions, velocities, strict=True):
        assert np.allclose(recording.states, np.concatenate([q, v], 1), atol=1e-6)
        assert np.allclose(recording.times.diff(), 0.05)


def d4rl(file, q, v):
    """`antmaze-umaze-v2.hdf5`: all episodes one after the other, with what the simulator had beside."""
    file["observations"] = np.concatenate([q, v], -1).reshape(-1, 4).astype(np.float32)
    file["actions"], file["rewards"] = np.zeros((q.size // 2, 3), np.float32), np.zeros(q.size // 2)
    file["terminals"] = np.zeros(q.size // 2, bool)
    file["timeouts"] = np.arange(q.size // 2) % STEPS == STEPS - 1
    file["infos/qpos"], file["infos/qvel"] = q.reshape(-1, 2), v.reshape(-1, 2)
    file["metadata/algorithm"] = "SAC"
    return {"state": ["infos/qpos", "infos/qvel"], "controls": ["actions"]}


def robomimic(file, q, v):
    """`low_dim_v15.hdf5`, with the images of `image_v15.hdf5`."""
    file.create_group("data").attrs["env_args"] = json.dumps({"env_name": "Lift"})
    for i in range(EPISODES):
        demo = file.create_group(f"data/demo_{i}")
        demo.attrs["num_samples"] = STEPS
        demo["actions"], demo["rewards"] = np.zeros((STEPS, 7)), np.zeros(STEPS)
        demo["dones"] = np.arange(STEPS) == STEPS - 1
        demo["states"] = np.zeros((STEPS, 32))
        for group in ("obs", "next_obs"):
            demo[f"{group}/robot0_joint_pos"], demo[f"{group}/robot0_joint_vel"] = q[i], v[i]
            demo[f"{group}/agentview_image"] = np.zeros((STEPS, 4, 4, 3), np.uint8)
    file["mask/train"] = np.array([b"demo_0", b"demo_1"])
    return {"state": ["obs/robot0_joint_pos", "obs/robot0_joint_vel"], "controls": ["actions"]}


def isaac_lab(file, q, v):
    """A dataset of Isaac Lab Mimic's, whose poses are matrices and whose first states have one row."""
    for i in range(EPISODES):
        demo = file.create_group(f"data/demo_{i}")
        demo.attrs["success"] = True
        demo["actions"] = np.zeros((STEPS, 7), np.float32)
        demo["obs/joint_pos"], demo["obs/datagen_info/eef_pose/franka"] = q[i], np.tile(np.eye(4), (STEPS, 1, 1))
        demo["initial_state/articulation/robot/joint_position"] = q[i, :1]
        demo["states/articulation/robot/joint_position"] = q[i]
        demo["states/articulation/robot/joint_velocity"] = v[i]
    robot = "states/articulation/robot/joint_"
    return {"state": [f"{robot}position", f"{robot}velocity"], "controls": ["actions"]}


@pytest.mark.parametrize("layout", [d4rl, robomimic, isaac_lab])
def test_hdf5_of_trainers(tmp_path, paths, layout):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        asked = layout(file, *paths)
    same(read_recordings(tmp_path / "log.hdf5", time=0.05, **asked), *paths)
    if layout is isaac_lab:
        poses = read_recordings(tmp_path / "log.hdf5", ["obs/datagen_info/eef_pose/franka"], time=0.05)
        assert poses.trajectories[0].states.shape == (STEPS, 16)


def lerobot(folder, q, v, version):
    """A LeRobot dataset: a file for each episode (2.1), or for several (3.0)."""
    import pyarrow as pa
    import pyarrow.parquet

    about = {"codebase_version": version, "fps": 20, "features": {"observation.state": {"shape": [4]}}}
    (folder / "meta").mkdir(parents=True)
    (folder / "meta" / "info.json").write_text(json.dumps(about), encoding="utf-8")
    rows = []
    for i in range(EPISODES):
        state = np.concatenate([q[i], v[i]], 1)
        kind = pa.list_(pa.float32()) if version == "v2.1" else pa.list_(pa.float32(), 4)
        rows.append(pa.table({
            "observation.state": pa.array(list(state), kind),
            "action": pa.array(list(np.zeros((STEPS, 2), np.float32)), pa.list_(pa.float32())),
            "observation.image": pa.array([{"bytes": b"png", "path": None}] * STEPS),
            "timestamp": pa.array(0.05 * np.arange(STEPS), pa.float32()),
            "frame_index": np.arange(STEPS), "episode_index": np.full(STEPS, i), "task_index": np.zeros(STEPS, int),
        }))  # fmt: skip
    (folder / "data" / "chunk-000").mkdir(parents=True)
    if version == "v2.1":
        for i, table in enumerate(rows):
            pyarrow.parquet.write_table(table, folder / "data" / "chunk-000" / f"episode_{i:06d}.parquet")
        return
    for i in (0, 2):  # two files of two episodes
        (folder / "data" / f"chunk-{i:03d}").mkdir(exist_ok=True)
        pair = pa.concat_tables(rows[i : i + 2])
        pyarrow.parquet.write_table(pair, folder / "data" / f"chunk-{i:03d}" / "file-000.parquet")


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_lerobot(tmp_path, paths, version):
    pytest.importorskip("pyarrow")
    lerobot(tmp_path / "own", *paths, version)
    same(read_recordings(tmp_path / "own", ["observation.state"], controls=["action"]), *paths)
    parts = read_recordings(tmp_path / "own", ["observation.state[0:2]", "observation.state[2:4]"], time="timestamp")
    same(parts, *paths)
    first = min((tmp_path / "own").glob("data/*/*.parquet"))
    assert len(read_recordings(first, ["observation.state"]).trajectories) == (1 if version == "v2.1" else 2)
    with pytest.raises(ValueError, match=r"state=observation.image: .*struct<bytes: binary.* is no number"):
        read_recordings(first, ["observation.image"])
    whole = first.read_bytes()
    first.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"{first.name} can't be read as a Parquet file"):
        read_recordings(tmp_path / "own", ["observation.state"])


# -- the formats' own libraries, which `make test-extras` installs -----------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_what_lerobots_own_writer_writes(tmp_path, paths, monkeypatch):
    if find_spec("lerobot") is None:
        pytest.skip("lerobot is not installed: make test-extras")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):  # of a build that is not torch's; it is asked for pictures alone
        for name in ("", ".transforms", ".transforms.v2", ".transforms.v2.functional", ".io"):
            stub = MagicMock(__path__=[], __spec__=ModuleSpec(f"torchvision{name}", None))
            monkeypatch.setitem(sys.modules, f"torchvision{name}", stub)
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features = {"observation.state": {"dtype": "float32", "shape": (4,), "names": list("abcd")},
                "action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]}}  # fmt: skip
    dataset = LeRobotDataset.create("me/own", fps=20, features=features, root=tmp_path / "own", use_videos=False)
    for states in np.concatenate(paths, -1).astype(np.float32):
        for state in states:
            dataset.add_frame({"observation.state": state, "action": np.zeros(2, np.float32), "task": "swing"})
        dataset.save_episode()
    dataset.finalize()
    same(read_recordings(tmp_path / "own", ["observation.state"], controls=["action"]), *paths)


@pytest.mark.filterwarnings("ignore")
def test_robomimics_own_reader_reads_the_same(tmp_path, paths):
    """Its writers play demonstrations again in a simulator, so what is tested above is held beside its reader."""
    reader = pytest.importorskip("robomimic.utils.dataset")
    from robomimic.utils.obs_utils import initialize_obs_modality_mapping_from_dict

    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        asked = robomimic(file, *paths)
    names = [name.removeprefix("obs/") for name in asked["state"]]
    initialize_obs_modality_mapping_from_dict({"low_dim": names})
    theirs = reader.SequenceDataset(str(tmp_path / "log.hdf5"), names, ["actions"], hdf5_use_swmr=False)
    assert len(theirs) == EPISODES * STEPS
    ours = read_recordings(tmp_path / "log.hdf5", time=0.05, **asked)
    for i in (0, STEPS - 1, STEPS, EPISODES * STEPS - 1):
        state = np.concatenate([theirs[i]["obs"][name][0] for name in names])
        assert np.allclose(ours.trajectories[i // STEPS].states[i % STEPS], state)


@pytest.mark.parametrize(
    ("time", "words"),
    [
        (None, "has no column time or t"),  # elsewhere than in a LeRobot dataset a timestamp may be in milliseconds
        *((step, r"time=.*: give the step between two states in seconds, above 0") for step in (0, -0.1, np.nan)),
    ],
)
def test_times_that_are_not_known_are_asked_for(tmp_path, time, words):
    (tmp_path / "own.csv").write_text("timestamp,x\n0,1\n20,2\n40,3\n", encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        read_recordings(tmp_path / "own.csv", ["x"], time=time)


def test_arrays_that_nobody_asked_for_change_nothing(tmp_path, paths):
    q, v = paths
    others = {
        "none": {}, "parameters": {"parameters": np.ones((EPISODES, 8))}, "masses": {"masses": np.ones(2)},
        "sensor": {"sensor": np.where(np.arange(STEPS) < 10, 1.0, np.nan)[None].repeat(EPISODES, 0)[..., None]},
        "images": {"images": np.zeros((EPISODES, 3, 4, 4, 3))},
    }  # fmt: skip
    for name, more in others.items():
        np.savez(tmp_path / f"{name}.npz", q=q, v=v, **more)
        same(read_recordings(tmp_path / f"{name}.npz", ["q", "v"], time=0.05), q, v)
    one_after_the_other = dict(
        q=q.reshape(-1, 2), v=v.reshape(-1, 2), dones=np.arange(q.size // 2) % STEPS == STEPS - 1
    )
    np.savez(tmp_path / "longer.npz", **one_after_the_other, reference=np.zeros((q.size // 2 + 1, 2)))
    same(read_recordings(tmp_path / "longer.npz", ["q", "v"], time=0.05), q, v)


def test_times_that_trajectories_share(tmp_path, paths):
    q, v = paths
    for name, times in (("row", 0.05 * np.arange(STEPS)), ("column", 0.05 * np.arange(STEPS)[:, None])):
        np.savez(tmp_path / f"{name}.npz", q=q, v=v, time=times)
        same(read_recordings(tmp_path / f"{name}.npz", ["q", "v"]), q, v)
        np.savez(tmp_path / f"{name}.npz", q=q[0], v=v[0], stamp=times)
        assert len(read_recordings(tmp_path / f"{name}.npz", ["q", "v"], time="stamp").trajectories[0].states) == STEPS
    np.savez(tmp_path / "square.npz", q=q[:, :EPISODES], time=np.arange(EPISODES))
    assert len(read_recordings(tmp_path / "square.npz", ["q"]).trajectories) == EPISODES


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"v": np.where(np.arange(STEPS) < 20, 0, np.nan)[None, :, None].repeat(EPISODES, 0)}, "nan in row 21, column v"),
        ({"v": np.zeros((EPISODES - 1, STEPS, 2))}, "v has 3 trajectories, and others have 4"),
        ({"u": np.zeros((EPISODES, STEPS - 2, 1))}, "28 controls for 30 states"),
        ({"q": np.zeros((60, 2)), "v": np.zeros((60, 2)), "u": np.zeros((60, 1)), "dones": np.arange(61) % 20 == 19},
         "dones has 61 rows for 60 states"),
        ({"q": np.zeros((3, 2)), "v": np.zeros((3, 2)), "u": np.zeros((3, 1)), "run": np.array([0, 0, np.nan])},
         "row 3 has none"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(tmp_path, paths, change, words):
    np.savez(tmp_path / "log.npz", **({"q": paths[0], "v": paths[1], "u": np.zeros((EPISODES, STEPS, 1))} | change))
    with pytest.raises(ValueError, match=words):
        read_recordings(
            tmp_path / "log.npz", ["q", "v"], controls=["u"], time=0.05, trajectory="run" if "run" in change else None
        )


@pytest.mark.parametrize(
    "head", ["t,q,p", "#t,q,p", "# t,q,p", "# log of a robot\n# made, today\nt,q,p", "# log\n#t,q,p"]
)
def test_comments_and_hidden_files_are_passed_over(tmp_path, head):
    rows = np.arange(30.0).reshape(10, 3)
    (tmp_path / "a.csv").write_text(f"{head}\n" + "\n".join(",".join(map(str, row)) for row in rows))
    (tmp_path / "._a.csv").write_bytes(b"\x00\x05\x16\x07")  # as macOS leaves them
    (found,) = read_recordings(tmp_path, ["q", "p"]).trajectories
    assert found.times.tolist() == rows[:, 0].tolist() and found.states.tolist() == rows[:, 1:].tolist()


def lengths(path, asked, **options):
    return [
        (r.name.partition(", ")[2], len(r.states))
        for r in read_recordings(path, asked, time=0.05, **options).trajectories
    ]


def test_ends_of_episodes_in_words_and_within_labels(tmp_path):
    """The columns of ends as pandas writes them, and those of a vectorised log, whose label is the environment."""
    steps = range(60)
    words = "\n".join(f"{t % 30},{t % 30 == 29},false" for t in steps)
    (tmp_path / "words.csv").write_text(f"x,terminated,truncated\n{words}\n", encoding="utf-8")
    assert lengths(tmp_path / "words.csv", ["x"]) == [("episode 0", 30), ("episode 1", 30)]
    rows = "\n".join(f"{e},{t % 20 + 100 * e},{int(t % 20 == 19)}" for t in steps for e in range(3))
    (tmp_path / "vector.csv").write_text(f"env,x,done\n{rows}\n", encoding="utf-8")
    read = lengths(tmp_path / "vector.csv", ["x"], trajectory="env")
    assert read == [(f"env {e}, episode {k}", 20) for e in range(3) for k in range(3)]
    assert read_recordings(tmp_path / "vector.csv", ["x"], time=0.05, trajectory="env").trajectories[4].rows[0] == 62
    (tmp_path / "text.csv").write_text("x,done\n0,False\n1,\n2,True\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"text.csv, row 2: '' in done says not .*write true or false"):
        read_recordings(tmp_path / "text.csv", ["x"], time=0.05)


def test_a_demonstration_is_whole_where_dones_mark_its_success(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        for i in range(2):
            file[f"data/demo_{i}/obs/x"], file[f"data/demo_{i}/dones"] = np.zeros((50, 3)), np.arange(50) >= 40
    assert lengths(tmp_path / "log.hdf5", ["obs/x"]) == [("data, demo_0", 50), ("data, demo_1", 50)]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"q": np.zeros((50, 100)), "t": np.arange(100)}, "100, 1.* of it for 50 states; .* with a last axis of 1"),
        (
            {"q": np.zeros((200, 16, 4)), "t": np.arange(200)},
            "200, 1.* of it for 16 states.* (trajectories, time, numbers)",
        ),
        ({"q": np.zeros((20, 16, 4)), "t": np.zeros((20, 17))}, "17, 1.* of it for 16 states"),
    ],
)
def test_more_times_than_states_are_refused(tmp_path, arrays, words):
    np.savez(tmp_path / "log.npz", **arrays)
    with pytest.raises(ValueError, match=words.replace("(", r"\(").replace(")", r"\)")):
        read_recordings(tmp_path / "log.npz", ["q"])


def test_observations_of_minari_may_be_nested_and_hold_text(tmp_path, monkeypatch):
    episode = SimpleNamespace(id=0, actions=np.zeros((5, 2)), observations={
        "goal": {"kettle": np.ones((6, 2)), "mission": ["put it there"] * 6}, "pixels": np.zeros((6, 4, 4), np.uint8),
    })  # fmt: skip
    monkeypatch.setattr(_tables, "open_dataset", lambda source: SimpleNamespace(iterate_episodes=lambda: [episode]))
    (tmp_path / "data").mkdir()
    (found,) = read_recordings(tmp_path, ["observations.goal.kettle"], controls=["actions"], time=0.05).trajectories
    assert found.states.tolist() == [[1.0, 1.0]] * 6
    with pytest.raises(ValueError, match="'put it there' is no number"):
        read_recordings(tmp_path, ["observations.goal.mission"], time=0.05)
