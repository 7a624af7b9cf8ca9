"""From the user's trajectories to what is fitted: their split, their units, and how a group acts on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rppdyn.dynamics import Drive, Scaling
from rppdyn.groups import GL, Group, Trivial
from rppdyn.jobs.config import notation
from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.config.own import AUTO
from rppdyn.jobs.config.trajectories import FitTrajectoriesConfig
from rppdyn.jobs.fitting.own import vectors, warn_of_sizes
from rppdyn.nn import InvariantNormaliser
from rppdyn.reps import Rep, V
from rppdyn.tasks import Recording, Recordings
from rppdyn.tasks.labelled import shared_out

__all__ = ["Split", "check_data", "drive_of", "padded", "positions_count", "positions_rep", "representations", "scaling_of",
           "split_of", "state_rep", "vector_size"]  # fmt: skip


class Split(NamedTuple):
    """Trajectories for training, validation and test."""

    train: list[Recording]
    validation: list[Recording]
    test: list[Recording]


def check_data(config: FitTrajectoriesConfig, recordings: Recordings) -> None:
    """Refuse data that are others than a run began with, or too short; warn of columns of very different sizes."""
    task = config.task
    if task.digest not in (None, recordings.digest):
        raise ConfigError(f"data={task.data}: the numbers are others than the run began with; begin another, run_dir=")
    task.digest = recordings.digest
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
        return Split(*([every[i] for i in own] for own in shared_out(len(every), shares, seed)))
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
                    recording.controls[start : stop - 1],
                )
            )  # fmt: skip
    return Split(*parts)


def positions_count(config: FitTrajectoriesConfig, recordings: Recordings) -> int:
    """Numbers of a state that are positions; all where it is not said which are.

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
    """Of the vectors of which ``rep=k*V`` are made where the group is not known."""
    rep = config.task.rep
    if rep is None:
        raise ConfigError("group=auto without rep=: say how many vectors the positions (or the state) are, rep=2*V")
    count = notation.representation("rep", rep, GL(1)).dim
    if n % count:
        raise ConfigError(f"rep={rep}: {n} numbers are no {count} vectors")
    return n // count


def representations(config: FitTrajectoriesConfig, group: Group | None, recordings: Recordings) -> tuple[Rep, Rep]:
    """Of states and of controls."""
    n, m = len(recordings.names), len(recordings.control_names)
    if group is None:
        trivial = Trivial(1)
        return n * V(trivial), m * V(trivial) if m else V(trivial)
    positions = positions_count(config, recordings)
    rep = state_rep(config, group, positions)
    return rep, vectors(config.task.control_rep, group, m, "control_rep", "controls") if m else V(group)


def positions_rep(config: FitTrajectoriesConfig, group: Group, recordings: Recordings) -> Rep:
    """Of the positions."""
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


def padded(
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
        own = drive.controls[: length - 1]
        controls.append(torch.cat([own, own.new_zeros(length - 1 - len(own), own.shape[1])]))
        known.append(torch.arange(length) < len(y))
    return torch.stack(states), Drive(torch.stack(steps), torch.stack(controls)), torch.stack(known)
