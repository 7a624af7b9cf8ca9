"""Every field of MuJoCo's model: compared under a symmetry, or known to be without effect."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from planting import Plant, exact, fields, judge

from rppdyn.envs.derivation import derive
from rppdyn.envs.derivation.fields import CARRIED, CONSTANTS, SAME, WITHOUT_EFFECT, role_of


@pytest.fixture(scope="module")
def puppet():
    return exact("puppet")


def listed() -> list[str]:
    tables = [*SAME.values(), CARRIED, CONSTANTS]
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
}


def test_nothing_deviates_from_the_puppet(puppet):
    model, symmetry = puppet
    assert not derive(model)[symmetry].deviations


@pytest.mark.parametrize("field", ONE_SIDED)
def test_what_is_planted_on_one_side_is_named(puppet, field):
    model, symmetry = puppet
    index = ONE_SIDED[field][: 1 if field.startswith("opt.") else getattr(model, field).ndim]
    assert judge(Plant(field, index), model, symmetry) == "named"
