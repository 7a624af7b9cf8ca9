"""What is kept is found by all that it depends on: each ingredient changed is another entry."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np
import pytest
import torch

import rppdyn.basis._problem
import rppdyn.basis.cache
import rppdyn.envs._catalogue
import rppdyn.envs.certification._certificate
import rppdyn.tasks._pendulum
from rppdyn.basis._problem import Factor, Problem
from rppdyn.basis.cache import problem_key
from rppdyn.envs import certificate_for, certify, make_env, save_certificate, symmetry_spec
from rppdyn.envs.certification._certificate import find_certificate
from rppdyn.groups import D, Z
from rppdyn.reps import V
from rppdyn.tasks import Pendulum, load_trajectories

ASSETS = Path(gym.envs.mujoco.__file__).parent / "assets"
NAME = "InvertedPendulum-v5"
CODE = """
from gymnasium.envs.mujoco.inverted_pendulum_v5 import InvertedPendulumEnv

class Mine(InvertedPendulumEnv):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, {factor} * reward, *rest
"""


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("RPPDYN_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def mine(monkeypatch, tmp_path):
    """An environment of a file of one's own; given a number, the file is edited."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(factor: float = 1.0, **options):
        (tmp_path / "kept_env.py").write_text(CODE.format(factor=factor))
        sys.modules.pop("kept_env", None)
        importlib.invalidate_caches()
        gym.registry.pop("Kept-v0", None)
        gym.register("Kept-v0", importlib.import_module("kept_env").Mine, kwargs=options, order_enforce=False)
        return gym.make("Kept-v0")

    yield make
    gym.registry.pop("Kept-v0", None)
    sys.modules.pop("kept_env", None)


class Half(gym.RewardWrapper):
    def reward(self, reward):
        return 0.5 * reward


def edited(tmp_path, old: str, new: str) -> str:
    """The file of the pendulum with one setting changed."""
    text = (ASSETS / "inverted_pendulum.xml").read_text()
    assert old in text
    (tmp_path / "edited.xml").write_text(text.replace(old, new))
    return str(tmp_path / "edited.xml")


CERTIFICATES = {
    "frame skip": lambda mine, path: mine(frame_skip=3),
    "width of resets": lambda mine, path: mine(reset_noise_scale=0.2),
    "time step": lambda mine, path: mine(xml_file=edited(path, 'timestep="0.02"', 'timestep="0.01"')),
    "integrator": lambda mine, path: mine(xml_file=edited(path, 'integrator="RK4"', 'integrator="Euler"')),
    "strength": lambda mine, path: mine(xml_file=edited(path, 'gear="100"', 'gear="90"')),
    "code": lambda mine, path: mine(2.0),
    "class": lambda mine, path: gym.make(NAME),
    "reward's wrapper": lambda mine, path: Half(mine()),
    "action's wrapper": lambda mine, path: gym.wrappers.ClipAction(mine()),
    "observation's wrapper": lambda mine, path: gym.wrappers.TransformObservation(mine(), np.abs, None),
    "no environment": lambda mine, path: mine().unwrapped.model,
}


@pytest.mark.parametrize("ingredient", CERTIFICATES)
def test_a_certificate_is_of_everything_that_was_stepped(mine, tmp_path, ingredient):
    env = mine()
    spec = symmetry_spec(env, symmetry="left-right")
    certificate = certify(env, spec, n_states=20, n_resets=20)
    save_certificate(certificate)
    assert find_certificate(mine(), spec) == certificate == certificate_for(make_env("Kept-v0"), spec)[0]
    other = CERTIFICATES[ingredient](mine, tmp_path)
    assert find_certificate(other, spec) is None and certificate_for(other, spec)[0] is None


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        (mujoco, "__version__", "3.9.9"),
        (gym, "__version__", "1.9.9"),
        (rppdyn.envs.certification._certificate, "__version__", "9.9.9"),
        (rppdyn.envs.certification._certificate, "FORMAT", 99),
    ],
)
def test_a_certificate_is_of_its_versions(mine, monkeypatch, where, name, value):
    env = mine()
    spec = symmetry_spec(env, symmetry="left-right")
    save_certificate(certify(env, spec, n_states=20, n_resets=20))
    assert find_certificate(env, spec, solver="tight") is None
    assert find_certificate(env, replace(spec, obs=replace(spec.obs, origin=(0.5, 0, 0, 0)))) is None
    monkeypatch.setattr(where, name, value)
    assert find_certificate(env, spec) is None


def test_a_certificate_with_weaker_controls_is_another(mine):
    env = mine()
    spec = symmetry_spec(env, symmetry="left-right")
    save_certificate(certify(env, spec, n_states=20, n_resets=20, control_scale=0.5))
    assert find_certificate(env, spec) is None


def test_an_environment_whose_options_are_not_known_is_certified_again(caplog):
    from gymnasium.envs.mujoco.inverted_pendulum_v5 import InvertedPendulumEnv

    class Own(InvertedPendulumEnv):
        pass

    env = Own()
    spec = symmetry_spec(env, symmetry="left-right")
    assert save_certificate(certify(env, spec, n_states=20, n_resets=20)) is None and "options" in caplog.text
    assert find_certificate(env, spec) is None


@pytest.mark.parametrize(
    ("options", "known"),
    [
        ({}, True),
        (dict(frame_skip=1), False),
        (dict(forward_reward_weight=-1.0), False),
        (dict(healthy_z_range=(0.9, 2.0)), False),
        (dict(render_mode="rgb_array"), True),
    ],
)
def test_the_verdicts_of_the_package_are_of_tasks_without_options(options, known):
    spec = symmetry_spec(gym.make("Walker2d-v5", **options))
    assert (spec.symmetries[0].verdict == "exact") is known


def test_a_spec_is_of_what_is_registered(mine):
    mine()
    stock = symmetry_spec("Kept-v0", symmetry="left-right")
    gym.registry.pop("Kept-v0")
    gym.register("Kept-v0", "gymnasium.envs.mujoco.hopper_v5:HopperEnv")
    assert symmetry_spec("Kept-v0", symmetry="front-back").obs.dim == 11 != stock.obs.dim


SPECS = {
    "nothing": lambda mine, path: (mine(), "left-right"),
    "symmetry": lambda mine, path: (mine(), None),
    "name of a joint": lambda mine, path: (mine(xml_file=edited(path, 'name="hinge"', 'name="pivot"')), "left-right"),
    "strength": CERTIFICATES["strength"],
    "options": CERTIFICATES["width of resets"],
    "code": CERTIFICATES["code"],
    "class": CERTIFICATES["class"],
    "observation's wrapper": CERTIFICATES["observation's wrapper"],
    "no environment": CERTIFICATES["no environment"],
}


@pytest.mark.parametrize("ingredient", SPECS)
def test_a_spec_is_derived_again_where_anything_differs(mine, monkeypatch, tmp_path, ingredient):
    spec = symmetry_spec(mine(), symmetry="left-right")

    def fail(model):
        raise LookupError("derived")

    monkeypatch.setattr(rppdyn.envs._catalogue, "derive", fail)
    assert symmetry_spec(mine(), symmetry="left-right") == spec
    other = SPECS[ingredient](mine, tmp_path)
    env, symmetry = other if isinstance(other, tuple) else (other, "left-right")
    if ingredient == "nothing":
        assert symmetry_spec(env, symmetry=symmetry) == spec
    else:
        with pytest.raises(LookupError, match="derived"):
            symmetry_spec(env, symmetry=symmetry)


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        (mujoco, "__version__", "3.9.9"),
        (gym, "__version__", "1.9.9"),
        (np, "__version__", "9.9.9"),
        (rppdyn.envs.certification._certificate, "__version__", "9.9.9"),
        (rppdyn.envs.certification._certificate, "_source_digest", lambda: "another"),
    ],
)
def test_a_spec_is_of_its_versions(mine, monkeypatch, caplog, tmp_path, where, name, value):
    spec = symmetry_spec(mine(), symmetry="left-right")
    monkeypatch.setattr(where, name, value)
    assert symmetry_spec(mine(), symmetry="left-right") == spec
    files = [*(tmp_path / "cache" / "specs").iterdir()]
    assert len(files) == 2
    files[0].write_text("{")
    files[1].write_text("[]")
    assert symmetry_spec(mine(), symmetry="left-right") == spec and "damaged" in caplog.text


def problem(*factors: Factor, name: str = "a") -> Problem:
    return Problem(factors, name, factors[0].lie.dtype)


def leaf(scale: float = 1.0, dtype: type = np.float64, group=None) -> Factor:
    rep = V(Z(3) if group is None else group)
    return Factor(rep.lie_generators.numpy().astype(dtype), scale * rep.discrete_generators.numpy().astype(dtype))


BASES = {
    "generators": lambda: (leaf(1 + 1e-15), leaf()),
    "group": lambda: (leaf(group=D(3)), leaf(group=D(3))),
    "factors": lambda: (leaf(),),
    "order": lambda: (leaf(), leaf(-1.0)),
    "dtype": lambda: (leaf(dtype=np.complex128), leaf(dtype=np.complex128)),
}


@pytest.mark.parametrize("ingredient", BASES)
def test_a_basis_is_of_its_problem(ingredient):
    assert problem_key(problem(leaf(), leaf())) == problem_key(problem(leaf(), leaf(), name="b"))
    reference = (leaf(-1.0), leaf()) if ingredient == "order" else (leaf(), leaf())
    assert problem_key(problem(*BASES[ingredient]())) != problem_key(problem(*reference))


@pytest.mark.parametrize("name", ["RESIDUAL_LIMIT", "ORTHONORMALITY_LIMIT", "RANK_GAP_LIMIT", "ZERO", "FORMAT_VERSION"])
def test_a_basis_is_of_its_tolerances(monkeypatch, name):
    before = problem_key(problem(leaf(), leaf()))
    where = rppdyn.basis.cache if name == "FORMAT_VERSION" else rppdyn.basis._problem
    monkeypatch.setattr(where, name, 2 * getattr(where, name))
    assert problem_key(problem(leaf(), leaf())) != before


FEW = dict(n_train=1, n_validation=1, n_test=1, horizon=1.0, chunk=1)


@pytest.mark.parametrize(
    "change",
    [
        *(dict(FEW, **{name: 2}) for name in ("n_train", "n_validation", "n_test", "chunk", "seed")),
        dict(FEW, dt=0.1),
        dict(FEW, horizon=2.0),
        *({"pendulum": Pendulum(**parameter)} for parameter in ({"m1": 2.0}, {"k2": 2.0}, {"w": (0.1, 0, 0)})),
        *({"constant": name} for name in ("MAX_STEP", "ENERGY_TOLERANCE", "MAX_HALVINGS", "FORMAT_VERSION")),
    ],
    ids=str,
)
def test_a_dataset_is_of_its_parameters(monkeypatch, change):
    folder = rppdyn.tasks._pendulum.TASK_CACHE
    load_trajectories(Pendulum(), **FEW)
    load_trajectories(Pendulum(), **FEW)
    assert folder.summary().count == 1
    if (name := change.get("constant")) is not None:
        monkeypatch.setattr(rppdyn.tasks._pendulum, name, 2 * getattr(rppdyn.tasks._pendulum, name))
    rest = FEW if "pendulum" in change or name is not None else change
    load_trajectories(change.get("pendulum", Pendulum()), **rest)
    assert folder.summary().count == 2


def test_groups_and_representations_are_keys_by_their_content():
    """What is kept in memory by representations, hidden layers among it, is of generators, and of no name."""
    one, other = (type(Z(2))("G", discrete_generators=torch.tensor([m])) for m in ([[-1.0]], [[1.0]]))
    assert one != other and V(one) != V(other) and len({V(one), V(other)}) == 2
