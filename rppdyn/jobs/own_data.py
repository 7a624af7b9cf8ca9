"""Fits to the user's own data: data in, their units and symmetry, a fitted function out."""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from rppdyn.dynamics import Drive, Scaling, learn_symmetry
from rppdyn.equivariance import discover
from rppdyn.equivariance.discover import kind_of
from rppdyn.groups import GL, Group, Trivial
from rppdyn.jobs.config.base import AUTO, ConfigError
from rppdyn.jobs.config.fit import FitTrajectoriesConfig
from rppdyn.jobs.fit import StackFit
from rppdyn.nn import InvariantNormaliser
from rppdyn.reps import Rep, V, notation
from rppdyn.runs.statistics import evenly
from rppdyn.tasks import Recording, Recordings
from rppdyn.tasks.labelled import LabelledImages, Rows, indices_by_part, split_indices

logger = logging.getLogger(__name__)

MAX_SIZE_RATIO = 1e6
"""Ratio of the sizes of two columns that is worth a warning."""

F = TypeVar("F", bound=StackFit)


@contextmanager
def data_file(data: str | os.PathLike[str] | Mapping[str, Any]) -> Iterator[str]:
    """The path of data in a file; of arrays by name that of an NPZ file, as long as the block lasts."""
    if not isinstance(data, Mapping):
        yield os.fspath(data)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "arrays.npz")
        arrays: dict[str, Any] = {name: np.asarray(values) for name, values in data.items()}
        np.savez(path, **arrays)
        yield str(path)


def fitted(subject: F) -> F:
    """A subject after all its steps, without a run folder."""
    for step in range(subject.steps):
        subject.step(step)
    subject.give_up()
    return subject


def vectors(text: str | None, group: Group, n: int, key: str, subject: str) -> Rep:
    """The representation that a text says, or as many vectors as ``n`` numbers are.

    Raises:
        ConfigError: it has another dimension, or the numbers are no vectors.
    """
    vector = V(group)
    if text is None:
        if n % vector.dim:
            raise ConfigError(
                f"group={group}: it acts on vectors of {vector.dim} numbers, and there are {n} in {subject}; say how it acts, "
                f"{key}=T(0)+{max(1, (n - 1) // vector.dim)}*V for example"
            )
        return (n // vector.dim) * vector
    rep = notation.representation(text, group, key)
    if rep.dim != n:
        raise ConfigError(
            f"{key}={text}: under {group} it has {rep.dim} numbers, and there are {n} in {subject}; make them the same"
        )
    return rep


def check_digest(task: Any, digest: str) -> None:
    """Note the checksum of the data in a task's configuration, and refuse others than a run began with."""
    if task.digest not in (None, digest):
        raise ConfigError(f"data={task.data}: the numbers are others than the run began with; begin another, run_dir=")
    task.digest = digest


def splits_of(task: Any, data: Rows | LabelledImages, seeds: Sequence[int]) -> list[tuple[list[int], ...]]:
    """Indices of the data for training, validation and test, of each seed, as the task says or the data themselves do."""
    check_digest(task, data.digest)
    split_seeds = seeds if task.split_seed is None else [task.split_seed]
    classes = data.y if isinstance(data, LabelledImages) and data.classes is not None else None
    source = f"split={task.split}" if isinstance(task.split, str) else "its folders"
    try:
        splits = [
            split_indices(len(data.x), task.split, seed, classes)
            if data.parts is None
            else indices_by_part(data.parts, source)
            for seed in split_seeds
        ]
    except ValueError as error:
        raise ConfigError(f"data={task.data}: {error}") from error
    return splits * (len(seeds) // len(split_seeds))


def warn_of_sizes(values: Float[Tensor, "N n"], names: Sequence[str]) -> None:
    """Warn of columns of very different sizes, and of those that are constant."""
    for index in (values == values[0]).all(0).nonzero().flatten().tolist():
        logger.warning("%s is %g throughout: it tells nothing; leave it out", names[index], float(values[0, index]))
    sizes = values.square().mean(0).sqrt()
    smallest, largest = int(sizes.argmin()), int(sizes.argmax())
    if sizes[largest] >= MAX_SIZE_RATIO * sizes[smallest]:
        logger.warning(
            "%s is %.1g times the size of %s: are the units right? Each is fitted in units of its own spread, up to what the "
            "symmetry mixes",
            names[largest], float(sizes[largest] / sizes[smallest]), names[smallest],
        )  # fmt: skip


Arrays = NDArray | Tensor


class FittedFunction:
    """Fitted members of one function, of a regression or of images: `predict(x)`, arrays or tensors.

    Args:
        members: from raw inputs to raw outputs, of classifiers logits.
        classes: their names, of classifiers.
    """

    def __init__(self, members: Sequence[nn.Module], classes: Sequence[str] | None = None):
        self.members = [member.eval() for member in members]
        self.classes = None if classes is None else tuple(classes)

    @torch.no_grad()
    def predict(self, x: Arrays, *, members: str = "mean") -> Any:
        """The mean over members of what they say of ``(N, ...)``, or "all" of them along a new first axis."""
        first = next(self.members[0].parameters())
        inputs = torch.as_tensor(x).to(first.dtype)
        return as_type_of(x, mean_or_all(torch.stack([member(inputs) for member in self.members]), members))

    def classify(self, x: Arrays) -> list[str]:
        """The names of the classes that the members give the largest mean logits.

        Raises:
            ValueError: the outputs are no classes.
        """
        if self.classes is None:
            raise ValueError("the outputs are numbers, not classes: call predict")
        return [self.classes[index] for index in torch.as_tensor(self.predict(x)).argmax(-1).tolist()]


def mean_or_all(values: Tensor, members: str) -> Tensor:
    """The mean over the first axis, or all.

    Raises:
        ValueError: it is neither "mean" nor "all".
    """
    if members not in ("mean", "all"):
        raise ValueError(f"members={members!r}: give 'mean' or 'all'")
    return values.mean(0) if members == "mean" else values


def as_type_of(example: Any, values: Tensor) -> Any:
    """A tensor for a tensor, else an array."""
    return values if isinstance(example, Tensor) else values.numpy()


# -- `group=auto`: the symmetry of data, found before networks are given one -------------------------------------------

MAX_DEFECT = 0.15
"""Relative defect of a symmetry that is found in a network; a whole family may be below more by chance."""
MAX_POINTS = 500
"""Number of points at which a symmetry is looked for in a network."""
MAX_GRADIENT_DEFECT = 0.3
"""The same in a network's gradients, which are less accurate than its values."""
MAX_RATES = 200
"""Number of rates from which it is learned with a Hamiltonian."""
RATE_NOISE = 1e-3
"""Noise of rates, about the error of differences in place of derivatives: the evidence needs some noise."""
MIN_EVIDENCE_GAIN = 5.0
"""Logarithm of the evidence that a symmetry has to gain."""
MAX_ENERGY_CHANGE = 0.03
"""Relative change of an energy that is called invariant: evidence favours a symmetry that holds but for a tenth, too."""
MAX_STRETCH_SHARE = 0.1
"""Share of a generator that may be no rotation and is left out as noise."""


def learn_generator(z: Float[Tensor, "N n"], rates: Float[Tensor, "N n"], rep: Rep, seed: int) -> list[Tensor]:
    """The generator that a Hamiltonian learns with its weights; none where evidence does not favour a symmetric one.

    Args:
        rates: rates of change of the states, ``dz/dt``.
        rep: representation of states, bound to the family that the generator is looked for in.
    """
    generator = torch.Generator().manual_seed(seed)
    rates = rates + RATE_NOISE * rates.std(0) * torch.randn(rates.shape, generator=generator, dtype=rates.dtype)
    chosen = evenly(len(z), MAX_RATES)
    with_symmetry, without = (
        learn_symmetry(z[chosen], rates[chosen], family, generator=torch.Generator().manual_seed(seed))
        for family in (rep, None)
    )
    gain = with_symmetry.log_evidence - without.log_evidence
    defect = with_symmetry.defect(z[chosen], rep)
    logger.info("group=auto: a symmetric energy has %.1f more log evidence, with a defect of %.2g", gain, defect)
    holds = gain > MIN_EVIDENCE_GAIN and defect < MAX_ENERGY_CHANGE
    return [with_symmetry.generator] if holds and with_symmetry.generator is not None else []


def discover_generators(
    f: Callable[[Tensor], Tensor], rep_in: Rep, rep_out: Rep, x: Float[Tensor, "N n"]
) -> list[Tensor]:
    """All generators that a function, a plain network, is symmetric under but for a small defect.

    Of invariants they are looked for in their gradients, which transform as the dual of inputs do: of the invariants themselves
    a defect is 0 or 1 (:func:`rppdyn.equivariance.discover`).
    """
    max_defect = MAX_DEFECT
    if not float(rep_out.lie_generators.abs().max()):
        max_defect = MAX_GRADIENT_DEFECT
        value, f = f, lambda x: torch.func.vmap(torch.func.jacrev(lambda row: value(row[None])[0]))(x).flatten(1)
        rep_out = rep_out.dim * rep_in.T
    discovery = discover(f, rep_in, rep_out, x[evenly(len(x), MAX_POINTS)], largest=max_defect)
    logger.info("group=auto: %s", discovery)
    return list(discovery.generators)


def round_generators(generators: Sequence[Tensor], family: Group) -> list[Any]:
    """Return the generators as plain numbers, rotations made exact, and print them with what they are in words."""
    turns = [(A - A.T) / 2 for A in generators]
    if any(
        float((A - turn).norm()) > MAX_STRETCH_SHARE * float(A.norm())
        for A, turn in zip(generators, turns, strict=True)
    ):
        turns = list(generators)
    if turns:
        shown = "; ".join(f"{[[round(x, 3) for x in row] for row in A.tolist()]}, {kind_of(A)}" for A in turns)
        logger.warning(
            "group=auto found %s in %s: %s", f"{len(turns)} generator" + "s" * (len(turns) > 1), family, shown
        )
    else:
        logger.warning("group=auto found no symmetry in %s: plain networks are fitted", family)
    return [A.tolist() for A in turns]


def group_of(task: Any, discover: Callable[[], list[Any]]) -> Group | None:
    """The configured group, or for group=auto the one that the discovered generators span."""
    if task.group is None:
        return None
    if task.group != AUTO:
        return notation.group(task.group, "group")
    if task.generators is None:
        task.generators = discover()
    if not task.generators:
        return None
    return Group(f"found in {task.data}", lie_algebra=torch.tensor(task.generators, dtype=torch.float64))


# -- trajectories: their split, their units, and how a group acts on them ----------------------------------------------


class Split(NamedTuple):
    """Trajectories for training, validation and test."""

    train: list[Recording]
    validation: list[Recording]
    test: list[Recording]


def check_data(config: FitTrajectoriesConfig, recordings: Recordings) -> None:
    """Refuse data that are others than a run began with, or too short; warn of columns of very different sizes."""
    task = config.task
    check_digest(task, recordings.digest)
    for recording in recordings.trajectories:
        if len(recording.states) <= task.chunk:
            raise ConfigError(
                f"task.chunk={task.chunk}: {recording.name} has {len(recording.states) - 1} steps; give a smaller chunk, or "
                "leave that trajectory out"
            )
    warn_of_sizes(torch.cat([recording.states for recording in recordings.trajectories]), recordings.names)


def split_of(recordings: Recordings, config: FitTrajectoriesConfig, seed: int) -> Split:
    """By trajectory, in an order that is drawn; fewer than three are each cut in time."""
    shares, chunk = config.task.split, config.task.chunk
    every = list(recordings.trajectories)
    if len(every) >= 3:
        return Split(*([every[i] for i in part] for part in split_indices(len(every), shares, seed)))
    parts: tuple[list[Recording], ...] = ([], [], [])
    for recording in every:
        ends = [0, *(round(float(share) * len(recording.states)) for share in np.cumsum(shares))]
        for part, start, stop in zip(parts, ends[:-1], ends[1:], strict=True):
            if stop - start <= chunk:
                raise ConfigError(
                    f"data={config.task.data}: a part of {stop - start} states of {recording.name} is shorter than "
                    f"task.chunk={chunk}; give three trajectories or more, or a smaller chunk"
                )
            part.append(
                Recording(
                    recording.name, recording.times[start:stop], recording.states[start:stop],
                    recording.controls[start : stop - 1], recording.rows[start:stop],
                )
            )  # fmt: skip
    return Split(*parts)


def positions_count(config: FitTrajectoriesConfig, recordings: Recordings) -> int:
    """The number of positions in a state; all of it if the columns aren't told apart.

    Raises:
        ConfigError: velocities or momenta are not as many.
    """
    names, positions = recordings.names, config.task.positions
    if positions is None:
        return len(names)
    count = sum(name in positions or name.rpartition("[")[0] in positions for name in names)
    if 2 * count != len(names):
        raise ConfigError(f"{count} positions and {len(names) - count} velocities or momenta: give as many of each")
    return count


def vector_size(config: FitTrajectoriesConfig, n: int) -> int:
    """Return the dimension of the vectors in ``rep=k*V`` where the group is not known."""
    rep = config.task.rep
    if rep is None:  # one vector
        return n
    count = notation.representation(rep, GL(1), "rep").dim
    if n % count:
        raise ConfigError(f"rep={rep}: {n} numbers are no {count} vectors")
    return n // count


def representations(config: FitTrajectoriesConfig, group: Group | None, recordings: Recordings) -> tuple[Rep, Rep]:
    """Return the representations of states and of controls."""
    n, m = len(recordings.names), len(recordings.control_names)
    if group is None:
        trivial = Trivial(1)
        return n * V(trivial), m * V(trivial) if m else V(trivial)
    positions = positions_count(config, recordings)
    rep = state_rep(config, group, positions)
    return rep, vectors(config.task.control_rep, group, m, "control_rep", "controls") if m else V(group)


def positions_rep(config: FitTrajectoriesConfig, group: Group, recordings: Recordings) -> Rep:
    """Return the representation of the positions."""
    n = positions_count(config, recordings)
    if config.task.group is None or (not config.task.generators and config.task.group == AUTO):
        return n * V(group)
    return vectors(config.task.rep, group, n, "rep", "positions")


def state_rep(config: FitTrajectoriesConfig, group: Group, positions: int) -> Rep:
    task = config.task
    rep = vectors(task.rep, group, positions, "rep", "positions" if task.positions else "the state")
    if task.velocities:
        return rep + rep
    if task.momenta:
        return rep + (rep if group.is_orthogonal else rep.T)
    return rep


def scaling_of(config: FitTrajectoriesConfig, recordings: Sequence[Recording], rep: Rep, control_rep: Rep) -> Scaling:
    """Units in which states have a spread of one and change by about as much in unit time; pairs of conjugates keep theirs."""
    z = torch.cat([recording.states for recording in recordings])
    normaliser = InvariantNormaliser(rep)
    normaliser.update(z)
    centre, scale = normaliser.mean.double().clone(), normaliser.std.double().clone()
    rates = torch.cat([r.states.diff(dim=0) / r.times.diff()[:, None] for r in recordings])
    seconds = float((rates / scale).square().mean().rsqrt())
    if not 0 < seconds < math.inf:
        raise ConfigError(f"data={config.task.data}: nothing moves in it")
    d = rep.dim // 2
    if config.task.velocities:  # dq/dt = v in scaled units too
        seconds = float((scale[:d] / scale[d:]).log().mean().exp())
        centre[d:], scale[d:] = 0.0, scale[:d] / seconds
    elif config.task.momenta:  # scale_q scale_p is one number, so that Hamilton's equations stay what they are
        scale[d:] = (scale[:d] * scale[d:]).log().mean().exp() / scale[:d]
    m = recordings[0].controls.shape[1]
    if not m:
        return Scaling(centre, scale, seconds, torch.zeros(0).double(), torch.ones(0).double())
    controls = InvariantNormaliser(control_rep)
    controls.update(torch.cat([recording.controls for recording in recordings]))
    return Scaling(centre, scale, seconds, controls.mean.double().clone(), controls.std.double().clone())


def drive_of(recording: Recording, scaling: Scaling) -> Drive:
    return Drive(recording.times.diff() / scaling.seconds, scaling.controls(recording.controls))


def pad_trajectories(
    recordings: Sequence[Recording], scaling: Scaling, most: int
) -> tuple[Float[Tensor, "N T n"], Drive, Bool[Tensor, "N T"]]:
    """Scaled trajectories of one length: after its end each stands still, in steps of length 0; and where it is known."""
    length = min(max(len(recording.states) for recording in recordings), most + 1)
    states, steps, controls, known = [], [], [], []
    for recording in recordings:
        y, drive = scaling.states(recording.states)[:length], drive_of(recording, scaling)
        missing = length - len(y)
        states.append(torch.cat([y, y[-1:].expand(missing, -1)]))
        steps.append(torch.cat([drive.steps[: length - 1], drive.steps.new_zeros(missing)])[: length - 1])
        drawn = drive.controls[: length - 1]
        controls.append(torch.cat([drawn, drawn.new_zeros(length - 1 - len(drawn), drawn.shape[1])]))
        known.append(torch.arange(length) < len(y))
    return torch.stack(states), Drive(torch.stack(steps), torch.stack(controls)), torch.stack(known)
