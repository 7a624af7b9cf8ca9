"""A test of certification: a right spec with one sign flipped, or two rows swapped, must be found out.

Every discrete generator's and Lie algebra generator's matrix on every space is changed in one place at a time. A change to
the action on the observation alone needs no new simulation; for the others a few states are stepped again, and all
of them where those few do not refute the change. Two kinds of change can't be refuted and are listed: those that change no
image of any visited state (entries that never vary, or always agree), and those that are symmetries themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rppdyn.envs._simulator import Outcome, Simulator
from rppdyn.envs._spec import SPACES, SymmetrySpec
from rppdyn.envs.certification._evidence import Comparison, Elements, SimulatedSteps

__all__ = ["Mutation", "MutationCount", "mutations", "refute_mutations"]

FEW = 12  # states that refute nearly every change
SAME = 1e-12  # below which two images of a state are the same


@dataclass(frozen=True)
class Mutation:
    """One change to the matrix of generator `k` on a space: the sign of one row flipped, or two rows swapped."""

    k: int
    space: str
    rows: tuple[int, ...]

    def of(self, matrix: np.ndarray) -> np.ndarray:
        """The changed matrix."""
        changed = matrix.copy()
        if len(self.rows) == 1:
            changed[self.rows] *= -1
        else:
            changed[list(self.rows)] = matrix[list(self.rows[::-1])]
        return changed

    def name(self, spec: SymmetrySpec) -> str:
        """What is changed, in words."""
        names = [getattr(spec, self.space).features[i].name for i in self.rows]
        what = f"sign of {names[0]}" if len(names) == 1 else f"{names[0]} and {names[1]} swapped"
        return f"{spec.generator_names[self.k]}, {self.space}: {what}"


@dataclass(frozen=True)
class MutationCount:
    """What became of the mutations of a spec.

    Args:
        env_id: what the spec describes.
        verdicts: number of mutations by verdict on the dynamics, those below left out.
        unseen: mutations that change no image of a visited state.
        symmetries: mutations that change images and are exact all the same.
    """

    env_id: str
    verdicts: dict[str, int]
    unseen: tuple[str, ...]
    symmetries: tuple[str, ...]

    @property
    def refuted(self) -> int:
        """How many were found out."""
        return sum(self.verdicts.values())


def mutations(spec: SymmetrySpec) -> Iterator[Mutation]:
    """Every sign of a row and every pair of rows, of every generator on every space; those without effect left out."""
    for key in SPACES:
        if (space := getattr(spec, key)) is None:
            continue
        for k, matrix in enumerate(map(np.array, (*space.discrete_generators, *space.lie_algebra))):
            for i in range(space.feature_dim):
                for rows in ((i,), *((j, i) for j in range(i))):
                    mutation = Mutation(k, key, rows)
                    if not np.array_equal(mutation.of(matrix), matrix):
                        yield mutation


def refute_mutations(simulator: Simulator, spec: SymmetrySpec, *, n_states: int = 100, seed: int = 0) -> MutationCount:
    """Certify every mutation of an exact spec, and count what is found.

    Args:
        simulator: a `Simulator` of the spec's environment or model.
        n_states: visited states; a mutation is called a symmetry, or unseen, on all of them only.
        seed: of the states and of the elements of continuous groups.
    """
    evidence = SimulatedSteps.visit(simulator, n_states, np.random.default_rng(seed))
    few = evidence.subset(FEW)
    verdicts: Counter[str] = Counter()
    unseen, symmetries = [], []
    images: dict[int, tuple[Elements, Outcome]] = {}
    for mutation in mutations(spec):
        if mutation.k not in images:
            right = Elements.of_generator(spec, mutation.k, np.random.default_rng(seed))
            images[mutation.k] = right, evidence.images(right)
        right, m = images[mutation.k]
        wrong = right.with_generator(mutation.space, mutation.of(right.generators[mutation.space]))
        if not _is_seen(evidence, right, wrong, mutation.space):
            unseen.append(mutation.name(spec))
            continue
        if mutation.space == "obs":
            verdict = Comparison.of_space(wrong, "obs", evidence.outcome, m).verdict
        else:
            try:
                verdict = few.verdict(wrong)
            except ValueError:
                verdict = "broken"  # MuJoCo resets an image: it is no state
            if verdict == "exact":
                verdict = evidence.verdict(wrong)
        if verdict == "exact":
            symmetries.append(mutation.name(spec))
        else:
            verdicts[verdict] += 1
    return MutationCount(spec.env_id, dict(verdicts), tuple(unseen), tuple(symmetries))


def _is_seen(evidence: SimulatedSteps, right: Elements, wrong: Elements, key: str) -> bool:
    """Whether a mutation changes the image of any visited state or action."""
    if key == "action":
        values = [evidence.actions]
    else:
        values = [getattr(evidence.outcome, key), getattr(evidence.outcome, f"next_{key}")]
    for y in values:
        z = getattr(right.spec, key).encode(y)
        if (np.abs(right.image(key, z) - wrong.image(key, z)) > SAME * (1 + np.abs(z).max())).any():
            return True
    return False
