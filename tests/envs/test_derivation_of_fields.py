"""Every field of MuJoCo's model: compared under a symmetry, or known to be without effect."""

from __future__ import annotations

import copy
from fnmatch import fnmatchcase

import mujoco
import numpy as np
import pytest
from planting import Plant, exact, fields, judge, plants, states_of
from refusals import refused

from rppdyn.envs.derivation import derive
from rppdyn.envs.derivation.fields import CARRIED, CONSTANTS, SAME, SHORTCUTS, WITHOUT_EFFECT, role_of


@pytest.fixture(scope="module")
def puppet():
    return exact("puppet")


@pytest.fixture(scope="module")
def states(puppet):
    return states_of(puppet[0])


def listed() -> list[str]:
    tables = [*SAME.values(), CARRIED, CONSTANTS, SHORTCUTS]
    return [field for table in tables for names in table.values() for field in names.split()]


def test_every_field_has_a_role(puppet):
    model, _ = puppet
    unknown = [field for field in fields(model) if role_of(field) is None]
    assert not unknown, f"say in derivation/fields.py how a symmetry carries {unknown}, or why they cannot matter"
    assert role_of("jnt_colour") is None


def test_no_field_is_both_compared_and_without_effect(puppet):
    model, _ = puppet
    patterns = [name for names in WITHOUT_EFFECT.values() for name in names.split()]
    both = [field for field in listed() if any(fnmatchcase(field, p) for p in patterns)]
    assert all(field.startswith("opt.") for field in both)  # of which the others concern the whole model
    sizes = [field for field in fields(model) if field[0] == "n" and not field.startswith(("name", "numeric"))]
    assert all(isinstance(getattr(model, field), int) for field in sizes)


ONE_SIDED = {
    "pair_friction": (0, 0),
    "pair_solref": (0, 0),
    "pair_margin": (1, 0),
    "site_pos": (0, 2),
    "tendon_actfrclimited": (0, 0),
    "actuator_actearly": (0, 0),
    "eq_data": (3, 1),
    "eq_solref": (3, 0),
    "geom_surfacevel": (7, 1),
    "actuator_delay": (0, 0),
    "body_gravcomp": (3, 0),
    "dof_invweight0": (7, 0),
    "opt.wind": (1,),
    "geom_aabb": (6, 4),
    "geom_rbound": (6,),
    "geom_sameframe": (6,),
    "site_sameframe": (3,),
    "body_margin": (4,),
    "body_contype": (4,),
    "body_sameframe": (2,),
    "body_simple": (4,),
    "bvh_aabb": (4, 1),
}


def test_nothing_deviates_from_the_puppet(puppet):
    model, symmetry = puppet
    assert not derive(model)[symmetry].deviations


@pytest.mark.parametrize("field", ONE_SIDED)
def test_what_is_planted_on_one_side_is_named(puppet, states, field):
    model, symmetry = puppet
    index = ONE_SIDED[field][: 1 if field.startswith("opt.") else getattr(model, field).ndim]
    assert judge(Plant(field, index), model, symmetry, states) == "named"


def test_of_random_numbers_none_is_missed(puppet, states):
    """A sample of what `benchmarks/asymmetries.py` goes through."""
    model, symmetry = puppet
    rng = np.random.default_rng(7)
    numbers = [plant for plant in plants(model, 1, rng) if plant.into(model) is not None]
    chosen = [numbers[k] for k in rng.choice(len(numbers), 25, replace=False)]
    verdicts = {str(plant): judge(plant, model, symmetry, states) for plant in chosen}
    assert not [plant for plant, verdict in verdicts.items() if verdict in ("MISSED", "refused")]
    assert list(verdicts.values()).count("named") > 5


def test_a_number_that_nothing_compares_is_missed(puppet, states, monkeypatch):
    """What the sweep would say if a field were forgotten."""
    model, symmetry = puppet
    kept = SAME["body"]["moving"].replace("body_gravcomp", "")
    monkeypatch.setitem(SAME["body"], "moving", kept)
    assert judge(Plant("body_gravcomp", (3,)), model, symmetry, states) == "MISSED"


def test_bounds_that_are_off_alike_do_not_deviate(puppet):
    """Sizes that were changed by hand on both sides, without `mj_setConst`; on one side their bounds are named too."""
    model, symmetry = puppet
    thick = copy.copy(model)
    for side in "lr":
        thick.geom_size[thick.geom(f"shin_{side}").id] *= 1.1
        names = {d.parameter for d in derive(thick)[symmetry].deviations}
        assert names == ({"size", "rbound", "aabb"} if side == "l" else set())


def test_flags_of_slower_paths_do_not_deviate(puppet):
    model, symmetry = puppet
    slow = copy.copy(model)
    slow.geom_sameframe[:] = slow.site_sameframe[:] = 0
    assert not derive(slow)[symmetry].deviations


def test_a_model_whose_constants_cannot_be_computed_is_refused(puppet, states):
    model, symmetry = puppet
    assert judge(Plant("body_simple", (3,)), model, symmetry, states) == "refused"
    ball = mujoco.MjModel.from_xml_string(BALL)
    assert ball.body_simple[1] and derive(ball).names
    ball.body_ipos[1] = [0.01, 0.02, 0]
    with refused("constants", "simple", "compile it again"):
        derive(ball)


BALL = """<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 1"><freejoint/><geom size=".1"/></body>
</worldbody></mujoco>"""
