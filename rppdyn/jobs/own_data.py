"""Fits to the user's own data: how data are split and scaled, their symmetry, and the fitted function."""

from __future__ import annotations

import logging
import math
import os
import tempfile
import zipfile
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
from rppdyn.dynamics._fitted import as_type_of, combine_members
from rppdyn.equivariance import discover
from rppdyn.equivariance._discover import describe_generator
from rppdyn.groups import GL, Group, Trivial
from rppdyn.jobs.config.base import AUTO, ConfigError
from rppdyn.jobs.config.fit import FitTrajectoriesConfig
from rppdyn.jobs.fit import StackFit
from rppdyn.nn import InvariantNormaliser
from rppdyn.reps import Rep, V, notation
from rppdyn.runs.statistics import evenly
from rppdyn.tasks import Recording, Recordings
from rppdyn.tasks._labelled import LabelledImages, Rows, indices_by_part, split_indices

logger = logging.getLogger(__name__)

MAX_SIZE_RATIO = 1e6
"""Ratio of the sizes of two columns from which on a warning is given."""

F = TypeVar("F", bound=StackFit)


@contextmanager
def data_file(data: str | os.PathLike[str] | Mapping[str, Any]) -> Iterator[str]:
    """The path of a data file; arrays by name are written to an NPZ file that exists in the block."""
    if not isinstance(data, Mapping):
        yield os.fspath(data)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "arrays.npz")
        with zipfile.ZipFile(path, "w") as archive:  # numpy.savez takes no array by the name `file`
            for name, values in data.items():
                try:
                    array = np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values)
                except ValueError:
                    raise ConfigError(
                        f"{name}: its trajectories differ in length; fill shorter ones up with nan"
                    ) from None
                with archive.open(f"{name}.npy", "w") as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
        yield str(path)


def take_all_steps(subject: F) -> F:
    """Fit a subject without a run folder, and return it."""
    for step in range(subject.steps):
        subject.step(step)
    subject.give_up()
    return subject


def vectors(text: str | None, group: Group, n: int, key: str, subject: str) -> Rep:
    """The representation given by a text, or without one as many vectors as make ``n`` numbers.

    Raises:
        ConfigError: the representation has another dimension, or no number of vectors makes ``n`` numbers.
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
    """Store the checksum of the data in a task's configuration; refuse other data than those the run began with."""
    if task.digest not in (None, digest):
        raise ConfigError(f"data={task.data}: not the data that the run began with; begin another with run_dir=")
    task.digest = digest


def splits_of(task: Any, data: Rows | LabelledImages, seeds: Sequence[int]) -> list[tuple[list[int], ...]]:
    """Indices of the training, validation and test data of each seed, by the task or by a column of the data."""
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
    """Warn of constant columns, and of columns of very different sizes."""
    for index in (values == values[0]).all(0).nonzero().flatten().tolist():
        logger.warning("%s is %g throughout: it tells nothing; leave it out", names[index], float(values[0, index]))
    sizes = values.square().mean(0).sqrt().tolist()
    by_size = sorted((size, name) for size, name in zip(sizes, names, strict=True) if size)
    if by_size and by_size[-1][0] >= MAX_SIZE_RATIO * by_size[0][0]:
        (small, smallest), (large, largest) = by_size[0], by_size[-1]
        logger.warning(
            "%s is %.1g times the size of %s: are the units right? Each is fitted in units of its own spread, up to what the "
            "symmetry mixes", largest, large / small, smallest,
        )  # fmt: skip


Arrays = NDArray | Tensor


class FittedFunction:
    """Fitted members of a regression or of an image model: `predict(x)` of arrays or tensors.

    Args:
        members: maps from raw inputs to raw outputs, for classifiers to logits.
        classes: names of the classes, for classifiers.
    """

    def __init__(self, members: Sequence[nn.Module], classes: Sequence[str] | None = None):
        self.members = [member.eval() for member in members]
        self.classes = None if classes is None else tuple(classes)

    @torch.no_grad()
    def predict(self, x: Arrays, *, members: str = "mean") -> Any:
        """Predict the outputs of ``(N, ...)``: the mean over members, or "all" along a new first axis."""
        first = next(self.members[0].parameters())
        inputs = torch.as_tensor(x).to(first.dtype)
        values = torch.stack([member(inputs) for member in self.members])
        return as_type_of(x, combine_members(values, members, self.members))

    def classify(self, x: Arrays) -> list[str]:
        """The names of the classes with the largest mean logits.

        Raises:
            ValueError: the outputs are no classes.
        """
        if self.classes is None:
            raise ValueError("the outputs are numbers, not classes: call predict")
        return [self.classes[index] for index in torch.as_tensor(self.predict(x)).argmax(-1).tolist()]


# -- `group=auto`: the symmetry of data, discovered before the networks are built --------------------------------------

MAX_DEFECT = 0.15
"""Largest relative defect of a symmetry of a network's values."""
MAX_GRADIENT_DEFECT = 0.3
"""Largest relative defect of a symmetry of a network's gradients, which are less accurate than its values."""
MAX_POINTS = 500
"""Number of points at which the symmetry of a network is measured."""
MAX_RATES = 200
"""Number of rates from which a symmetry is learned with a Hamiltonian."""
RATE_NOISE = 1e-3
"""Relative noise added to rates, about the error of finite differences: the evidence needs some noise."""
MIN_EVIDENCE_GAIN = 5.0
"""Least gain in log evidence by a symmetry."""
MAX_ENERGY_CHANGE = 0.03
"""Largest relative change of an invariant energy: evidence alone favours a symmetry that holds up to a tenth, too."""
MAX_STRETCH_SHARE = 0.1
"""Largest share of a generator that is removed as noise because it is no rotation."""


def learn_generator(z: Float[Tensor, "N n"], rates: Float[Tensor, "N n"], rep: Rep, seed: int) -> list[Tensor]:
    """Learn a Hamiltonian and its generator; returns no generator if evidence does not favour a symmetry.

    Args:
        rates: rates of change of the states, ``dz/dt``.
        rep: representation of states, bound to the family of candidate generators.
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
    """All generators under which a function, a plain network, is symmetric up to a small defect.

    For invariant outputs the gradients are tested, which transform as the dual of the inputs, since the defect of an invariant
    itself is 0 or 1 (:func:`rppdyn.equivariance.discover`).
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
    """Return generators as plain numbers, near rotations made exact, and log them with a description."""
    turns = [(A - A.T) / 2 for A in generators]
    if any(
        float((A - turn).norm()) > MAX_STRETCH_SHARE * float(A.norm())
        for A, turn in zip(generators, turns, strict=True)
    ):
        turns = list(generators)
    if turns:
        descriptions = "; ".join(
            f"{[[round(x, 3) for x in row] for row in A.tolist()]}, {describe_generator(A)}" for A in turns
        )
        logger.warning(
            "group=auto found %s in %s: %s", f"{len(turns)} generator" + "s" * (len(turns) > 1), family, descriptions
        )
    else:
        logger.warning("group=auto found no symmetry in %s: plain networks are fitted", family)
    return [A.tolist() for A in turns]


def group_of(task: Any, discover: Callable[[], list[Any]]) -> Group | None:
    """The configured group, or for group=auto the group of the discovered generators; None without a symmetry."""
    if task.group is None:
        return None
    if task.group != AUTO:
        return notation.group(task.group, "group")
    if task.generators is None:
        task.generators = discover()
    if not task.generators:
        return None
    return Group(f"found in {task.data}", lie_algebra=torch.tensor(task.generators, dtype=torch.float64))


# -- trajectories: split, units and representations --------------------------------------------------------------------


class Split(NamedTuple):
    """Trajectories for training, validation and test."""

    train: list[Recording]
    validation: list[Recording]
    test: list[Recording]


def check_data(config: FitTrajectoriesConfig, recordings: Recordings) -> None:
    """Refuse trajectories that are too short, or other data than a run began with; warn of odd sizes."""
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
    """Split by trajectory, at random; fewer than three trajectories are each split in time."""
    shares, chunk = config.task.split, config.task.chunk
    trajectories = list(recordings.trajectories)
    if len(trajectories) >= 3:
        return Split(*([trajectories[i] for i in part] for part in split_indices(len(trajectories), shares, seed)))
    parts: tuple[list[Recording], ...] = ([], [], [])
    for recording in trajectories:
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
    """The number of positions in a state; the size of the state if no columns are named positions.

    Raises:
        ConfigError: there are more or fewer velocities or momenta.
    """
    names, positions = recordings.names, config.task.positions
    if positions is None:
        return len(names)
    count = sum(name in positions or name.rpartition("[")[0] in positions for name in names)
    if 2 * count != len(names):
        raise ConfigError(f"{count} positions and {len(names) - count} velocities or momenta: give as many of each")
    return count


def vector_size(rep: str | None, n: int) -> int:
    """The dimension of the vectors in ``rep=k*V``, for a group that is not known yet."""
    if rep is None:
        return n
    count = notation.representation(rep, GL(1), "rep").dim
    if n % count:
        raise ConfigError(f"rep={rep}: {n} numbers are no {count} vectors")
    return n // count


def representations(config: FitTrajectoriesConfig, group: Group | None, recordings: Recordings) -> tuple[Rep, Rep]:
    """The representations of states and of controls."""
    n, m = len(recordings.names), len(recordings.control_names)
    if group is None:
        trivial = Trivial(1)
        return n * V(trivial), m * V(trivial) if m else V(trivial)
    positions = positions_count(config, recordings)
    rep = state_rep(config, group, positions)
    return rep, vectors(config.task.control_rep, group, m, "control_rep", "controls") if m else V(group)


def state_rep(config: FitTrajectoriesConfig, group: Group, positions: int) -> Rep:
    task = config.task
    rep = vectors(task.rep, group, positions, "rep", "positions" if task.positions else "the state")
    if task.velocities:
        return rep + rep
    if task.momenta:
        return rep + (rep if group.is_orthogonal else rep.T)
    return rep


def scaling_of(config: FitTrajectoriesConfig, recordings: Sequence[Recording], rep: Rep, control_rep: Rep) -> Scaling:
    """Units in which states have unit spread and change at unit rate, compatible with velocities and conjugate momenta."""
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
    recordings: Sequence[Recording], scaling: Scaling, max_steps: int
) -> tuple[Float[Tensor, "N T n"], Drive, Bool[Tensor, "N T"]]:
    """Scale trajectories and pad them to one length by steps of length 0; also returns a mask of the true states."""
    length = min(max(len(recording.states) for recording in recordings), max_steps + 1)
    states, steps, controls, masks = [], [], [], []
    for recording in recordings:
        y, drive = scaling.states(recording.states)[:length], drive_of(recording, scaling)
        missing = length - len(y)
        states.append(torch.cat([y, y[-1:].expand(missing, -1)]))
        steps.append(torch.cat([drive.steps[: length - 1], drive.steps.new_zeros(missing)])[: length - 1])
        u = drive.controls[: length - 1]
        controls.append(torch.cat([u, u.new_zeros(length - 1 - len(u), u.shape[1])]))
        masks.append(torch.arange(length) < len(y))
    return torch.stack(states), Drive(torch.stack(steps), torch.stack(controls)), torch.stack(masks)
