"""`group=auto`: the symmetry of data, found before networks are given one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rppdyn.dynamics import learn_symmetry
from rppdyn.equivariance import discover
from rppdyn.groups import Group
from rppdyn.reps import Rep

__all__ = ["by_evidence", "found_group", "generators_of", "in_function"]

logger = logging.getLogger(__name__)

LARGEST = 0.15
"""Relative defect of a symmetry that is found in a network; a whole family may be below more by chance."""
POINTS = 500
"""At which a symmetry is looked for in a network."""
OF_GRADIENTS = 0.3
"""The same in a network's gradients, which are less accurate than its values."""
RATES = 200
"""From which it is learned with a Hamiltonian."""
BLUR = 1e-3
"""Of rates, about what differences in place of derivatives are off by: the evidence needs some noise."""
DECISIVE = 5.0
"""Logarithm of the evidence that a symmetry has to gain."""
INVARIANT = 0.03
"""Relative change of an energy that is called invariant: evidence favours a symmetry that holds but for a tenth, too."""
TURNS = 0.1
"""Share of a generator that may be no rotation and is left out as noise."""


def by_evidence(z: Float[Tensor, "N n"], rates: Float[Tensor, "N n"], rep: Rep, seed: int) -> list[Tensor]:
    """The generator that a Hamiltonian learns with its weights; none where evidence does not favour a symmetric one.

    Args:
        rates: of change of the states, ``dz/dt``.
        rep: of states, bound to the family that the generator is looked for in.
    """
    generator = torch.Generator().manual_seed(seed)
    rates = rates + BLUR * rates.std(0) * torch.randn(rates.shape, generator=generator, dtype=rates.dtype)
    chosen = _evenly(len(z), RATES)
    with_symmetry, without = (
        learn_symmetry(z[chosen], rates[chosen], family, generator=torch.Generator().manual_seed(seed))
        for family in (rep, None)
    )
    gain = with_symmetry.log_evidence - without.log_evidence
    defect = with_symmetry.defect(z[chosen], rep)
    logger.info("group=auto: a symmetric energy has %.1f more log evidence, with a defect of %.2g", gain, defect)
    holds = gain > DECISIVE and defect < INVARIANT
    return [with_symmetry.generator] if holds and with_symmetry.generator is not None else []


def in_function(f: Callable[[Tensor], Tensor], rep_in: Rep, rep_out: Rep, x: Float[Tensor, "N n"]) -> list[Tensor]:
    """All generators that a function, a plain network, is symmetric under but for a small defect.

    Of invariants they are looked for in their gradients, which transform as the dual of inputs do: of the invariants themselves
    a defect is 0 or 1 (:func:`rppdyn.equivariance.discover`).
    """
    largest = LARGEST
    if not float(rep_out.lie_generators.abs().max()):
        largest = OF_GRADIENTS
        value, f = f, lambda x: torch.func.vmap(torch.func.jacrev(lambda one: value(one[None])[0]))(x).flatten(1)
        rep_out = rep_out.dim * rep_in.T
    found = discover(f, rep_in, rep_out, x[_evenly(len(x), POINTS)], largest=largest)
    logger.info("group=auto: %s", found)
    return list(found.generators)


def generators_of(found: Sequence[Tensor], family: Group) -> list[Any]:
    """What was found as plain numbers, rotations without what is no rotation; it is said, too."""
    turns = [(A - A.T) / 2 for A in found]
    if any(float((A - turn).norm()) > TURNS * float(A.norm()) for A, turn in zip(found, turns, strict=True)):
        turns = list(found)
    if turns:
        shown = "; ".join(str([[round(x, 3) for x in row] for row in A.tolist()]) for A in turns)
        logger.warning(
            "group=auto found %s in %s: %s", f"{len(turns)} generator" + "s" * (len(turns) > 1), family, shown
        )
    else:
        logger.warning("group=auto found no symmetry in %s: plain networks are fitted", family)
    return [A.tolist() for A in turns]


def found_group(generators: Sequence[Any], source: str) -> Group:
    """The group that generators from :func:`generators_of` make."""
    return Group(f"found in {source}", lie_algebra=torch.tensor(generators, dtype=torch.float64))


def _evenly(count: int, most: int) -> Tensor:
    return torch.linspace(0, count - 1, min(most, count)).round().long()
