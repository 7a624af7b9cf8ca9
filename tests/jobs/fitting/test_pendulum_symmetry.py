"""What a fit in wind says of the pendulum's symmetry."""

from __future__ import annotations

import re

import pytest

from rppdyn.jobs import fit_dynamics
from rppdyn.jobs.config import compose

SMALL = ("task=windy_pendulum", "task.train=2", "task.validation=1", "task.test=1", "task.horizon=1", "rollout.trajectories=1",
         "model=mlp_ode", "model.hidden=4", "model.num_layers=1", "evaluation.states=1", "device=cpu")  # fmt: skip


@pytest.mark.parametrize(("masses", "about_its_axis"), [("[1,1]", None), ("[1,2]", 0.3303)])
def test_wind_breaks_the_symmetry_of_unequal_masses_alone(masses, about_its_axis):
    config = compose.composed("fit_dynamics", [*SMALL, "task.wind=0.1", f"task.masses={masses}"])
    said = fit_dynamics.Dynamics(config).symmetry()
    assert float(re.search(r"by ([\d.]+);", said)[1]) > 0.2  # about the vertical it is broken either way
    if about_its_axis is None:
        assert said.endswith("it is symmetric exactly.")
    else:
        assert float(re.search(r"but for ([\d.]+) of it", said)[1]) == pytest.approx(about_its_axis, rel=0.1)
