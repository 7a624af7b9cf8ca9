"""Groups and representations as text: what is understood, and that nothing is executed."""

from __future__ import annotations

import pytest

from rppdyn.groups import SO, D, O, SO13p, Z
from rppdyn.jobs.config.base import ConfigError
from rppdyn.reps import Pseudoscalar, Scalar, T, V, notation


@pytest.mark.parametrize(
    "text, expected", [("SO(3)", SO(3)), ("D(4)", D(4)), ("SO13p()", SO13p()), (" SO(3) * Z(2) ", SO(3) * Z(2))]
)
def test_groups(text, expected):
    assert notation.group(text) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("5*T(0)+5*T(1)", 5 * T(0) + 5 * T(1)),
        ("V**2", V * V),
        ("T(1,1) + Scalar*3", T(1, 1) + 3 * Scalar),
        ("abs(Pseudoscalar) + V.T", abs(Pseudoscalar) + V.T),
    ],
)
def test_representations(text, expected):
    assert notation.representation(text, O(3), "--rep-in") == expected(O(3))


@pytest.mark.parametrize("text", ["__import__('os')", "SO(", "SO", "SO(2.5)", "Q(3)", "SO(3)+2", "(lambda: SO(3))()",
                                  "SO(3).name", "", "SO(n=3)", "[1]"])  # fmt: skip
def test_what_is_no_group_is_one_line(text):
    with pytest.raises(ConfigError, match="--group") as error:
        notation.group(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["5", "T", "T(-1)", "V**-1", "V.__class__", "V(1)", "T(True)", "V - V", "SO(3)"])
def test_what_is_no_representation_is_one_line(text):
    with pytest.raises(ValueError) as error:
        notation.representation(text, SO(3), "--rep-in")
    assert "\n" not in str(error.value)
