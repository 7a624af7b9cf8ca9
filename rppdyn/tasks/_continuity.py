"""Checks of trajectories: wrapped angles, jumps in the middle, velocities that are not the rates of positions.

Correct logs have impacts, noisy sensors, coarse steps and differences of first order. Thresholds are far above these effects
and relative to the spread of the data.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from rppdyn.errors import UserError
from rppdyn.tasks._recordings import Recordings

logger = logging.getLogger(__name__)

PERIODS = ((np.pi, "pi"), (2 * np.pi, "2 pi"), (180.0, "180"), (360.0, "360"))
UNITS = (
    (-1.0, "of the other sign"),
    (180 / np.pi, "in degrees, and the positions in radians"),
    (np.pi / 180, "in radians, and the positions in degrees"),
)
MAX_SPREAD = 1.05
"""Largest spread of a wrapped angle in periods: noise of a sensor goes beyond the period."""
MAX_JUMP_SHARE = 0.2
"""Largest share of steps that count as jumps: more of them are the system's motion, or noise."""
MIN_REPEATED_SHARE = 0.1
"""Least share of rows that repeat the row before, in the midst of motion, for a warning."""
TRAJECTORY_ADVICE = ", trajectory=NAME names the column that tells trajectories apart"
MAX_CLIPPED_VELOCITY = 1e30
"""Bound of the true velocity where a log has clipped it."""
MIN_CORRELATION = 0.8
"""Least squared correlation (through zero) of a rate and a velocity for their ratio to be judged; noise lowers it."""
MAX_RATE_RATIO = 1.5
"""Largest ratio of a rate to its velocity that noise and coarse steps can cause at such a correlation."""


class Log:
    """Trajectories under examination; :meth:`check` returns them with angles unwrapped.

    Args:
        pairs: number of positions, the first columns, whose velocities follow in the same order; 0 without velocities.
        unwrap: columns of angles to unwrap, ``[]`` for none; None for those whose velocities show that they wrap.
        limit: size at which the log clips velocities; velocities of that size are ignored.
        has_keys: whether the user can describe columns by keys such as ``unwrap=``; if not, wrapped angles are warned of.
    """

    def __init__(self, recordings: Recordings, *, pairs: int, unwrap: Sequence[str] | None, limit: float = np.inf,
                 has_keys: bool = True):  # fmt: skip
        self.recordings, self.names, self.unwrap = recordings, recordings.names, unwrap
        self.limit, self.has_keys = 0.9 * limit, has_keys  # sensors are noisy
        self.states = [recording.states.numpy().copy() for recording in recordings.trajectories]
        self.seconds = [recording.times.diff().numpy() for recording in recordings.trajectories]
        self.pairs = pairs
        self.unwrapped: list[str] = []

    def check(self, judge: bool = True) -> Recordings:
        """Unwrap angles, and refuse data from which a fit would silently learn something wrong.

        Args:
            judge: whether to refuse and to warn; if not, angles are only unwrapped.
        Raises:
            UserError: naming the column, the trajectory, the row and the remedy.
        """
        unknown = [column for column in self.unwrap or () if not any(_is_part(name, column) for name in self.names)]
        if unknown:
            raise UserError(
                f"unwrap=[{unknown[0]}]: there is no such column in the state, which has {', '.join(self.names)}"
            )
        positions = range(self.pairs or len(self.names))
        for column in positions:
            self._unwrap(column)
        if judge:
            for angle in self.unwrap or ():
                if not any(_is_part(name, angle) for name in self.unwrapped):
                    logger.warning("unwrap=[%s]: it wraps nowhere, and is left as it is", angle)
            for column in range(self.pairs if self.unwrap != [] else 0):
                self._refuse_jump(column)
            if self.pairs:
                self._refuse_other_velocities()
            else:
                self._warn_of_jumps()
            self._warn_of_repeated_rows()
        pairs = zip(self.recordings.trajectories, self.states, strict=True)
        return replace(
            self.recordings,
            trajectories=tuple(replace(recording, states=torch.from_numpy(states)) for recording, states in pairs),
        )

    def place(self, step: int) -> str:
        """The trajectory and the row in the file at the end of a step."""
        for recording in self.recordings.trajectories:
            if step < len(recording.times) - 1:
                return f"{recording.name}, row {recording.rows[step + 1]}"
            step -= len(recording.times) - 1
        raise IndexError(step)

    def _ends(self, column: int, step: int) -> tuple[float, float]:
        before = np.concatenate([states[:-1, column] for states in self.states])
        after = np.concatenate([states[1:, column] for states in self.states])
        return float(before[step]), float(after[step])

    def _sizes(self, column: int) -> NDArray:
        return np.concatenate([np.diff(states[:, column]) for states in self.states])

    def _predict_changes(self, column: int) -> tuple[NDArray, NDArray]:
        """The change of a column in each step as predicted by its velocity, and the tolerance of that prediction."""
        expected, slack = [], []
        for states, seconds in zip(self.states, self.seconds, strict=True):
            v = states[:, self.pairs + column]
            expected.append(seconds * (v[1:] + v[:-1]) / 2)
            sizes = np.abs(np.concatenate([v[:1], v, v[-1:]]))  # an impact within a step shows in its neighbours
            widest = np.max([sizes[:-3], sizes[1:-2], sizes[2:-1], sizes[3:]], 0)
            slack.append(2 * seconds * np.where(widest < self.limit, widest, MAX_CLIPPED_VELOCITY))
        return np.concatenate(expected), np.concatenate(slack)

    def _unwrap(self, column: int) -> None:
        name = self.names[column]
        values = np.concatenate([states[:, column] for states in self.states])
        spread = np.ptp(values)
        period, period_name = next((each for each in PERIODS if spread <= MAX_SPREAD * each[0]), (np.inf, ""))
        large = np.abs(self._sizes(column)) > period / 2
        if not large.any():
            return
        if self.unwrap is None:
            low, high = values.min() / period + 1e-6, values.max() / period - 1e-6
            wraps = spread > 0.95 * period or (low > 0 and high < 1) or (low > -0.5 and high < 0.5)
            if large.mean() > MAX_JUMP_SHARE or not (self.pairs or wraps) or not self._continues(column, large, period):
                return
        elif not any(_is_part(name, angle) for angle in self.unwrap):
            return
        first = int(large.nonzero()[0][0])
        before, after = self._ends(column, first)
        jump = f"{self.place(first)}: {name} goes from {before:.4g} to {after:.4g}, and wraps at {period_name}"
        if not self.has_keys:
            logger.warning(
                "%s (%d such places): a model takes that for motion; log the angle unwrapped, as numpy.unwrap does, or its "
                "cosine and sine", jump, large.sum(),
            )  # fmt: skip
        elif self.unwrap is None and not self.pairs:
            raise UserError(
                f"{jump}: give unwrap=[{name}] if it is an angle, unwrap=[] to leave all columns as they are"
            )
        elif self.unwrap is None:
            logger.warning(
                "%s, as its velocity shows: it is unwrapped, in %d places; unwrap=[] leaves it", jump, large.sum()
            )
        self.unwrapped.append(name)
        for states in self.states:
            states[:, column] = np.unwrap(states[:, column], period=period)

    def _continues(self, column: int, large: NDArray, period: float) -> bool:
        """True if large steps, less a period, agree with the velocity; without a velocity, with the neighbouring steps."""
        smooth = [np.diff(np.unwrap(states[:, column], period=period)) for states in self.states]
        if self.pairs:
            expected, slack = self._predict_changes(column)
            errors = np.abs(np.concatenate(smooth) - expected) - slack / 4
        else:
            change = [np.abs(np.diff(steps, prepend=steps[:1], append=steps[-1:])) for steps in smooth]
            errors = np.concatenate([np.maximum(steps[:-1], steps[1:]) for steps in change])
        typical = np.quantile(errors[~large], 0.9)
        return bool(
            typical < 0.05 * period and (errors[large] <= max(0.03 * period, 3 * typical)).mean() > MIN_CORRELATION
        )

    def _refuse_jump(self, column: int) -> None:
        """Refuse a step that neither its own velocities nor the largest logged ones explain."""
        name, velocity, sizes = self.names[column], self.names[self.pairs + column], self._sizes(column)
        expected, slack = self._predict_changes(column)
        errors = np.abs(sizes - expected)
        values = np.concatenate([states[:, column] for states in self.states])
        factor = 1 if self._smooth()[column] else 4
        is_jump = errors > factor * np.maximum(10 * np.quantile(errors, 0.8), 0.1 * np.std(values)) + slack
        is_jump = is_jump & (np.abs(sizes) > 2 * np.quantile(np.abs(expected), 0.99))
        if not is_jump.any() or is_jump.mean() > MAX_JUMP_SHARE:
            return
        step = int(is_jump.nonzero()[0][0])
        before, after = self._ends(column, step)
        raise UserError(
            f"{self.place(step)}: {name} jumps from {before:.4g} to {after:.4g}, where its velocity {velocity} says "
            f"{before + expected[step]:.4g} ({is_jump.sum()} such steps): another episode begins there, or rows are missing; "
            f"cut the trajectory there{TRAJECTORY_ADVICE if self.has_keys else ''}"
        )

    def _smooth(self) -> NDArray:
        """Mask of the velocities that predict the motion between two rows; others have coarse steps or large noise."""
        v = [states[:, self.pairs :] for states in self.states]
        change = np.concatenate([np.diff(velocities, axis=0) for velocities in v])
        return (change**2).sum(0) < 0.5 * (np.concatenate([velocities[1:] for velocities in v]) ** 2).sum(0)

    def _refuse_other_velocities(self) -> None:
        """Refuse velocities that clearly are not the rates of their positions."""
        n = self.pairs
        dt = np.concatenate(self.seconds)
        rates = np.concatenate([np.diff(states[:, :n], axis=0) for states in self.states]) / dt[:, None]
        v = np.concatenate([(states[1:, n:] + states[:-1, n:]) / 2 for states in self.states])
        clipped = np.concatenate([np.maximum(np.abs(s[1:, n:]), np.abs(s[:-1, n:])) for s in self.states]) >= self.limit
        rates[clipped] = v[clipped] = 0.0
        size, power, product = (rates**2).sum(0), (v**2).sum(0), rates.T @ v
        with np.errstate(divide="ignore", invalid="ignore"):
            alike = np.nan_to_num(product**2 / np.outer(size, power)) * self._smooth()
            ratios = np.nan_to_num(np.diag(product) / power)
        for i in range(n):
            name, velocity = self.names[i], self.names[n + i]
            best, ratio = int(alike[i].argmax()), float(ratios[i])
            if max(alike[i, i], alike[best, best]) < MIN_CORRELATION / 2 and alike[i, best] > MIN_CORRELATION:
                remedy = "give positions= and velocities= in one order" if self.has_keys else "log them in that order"
                raise UserError(
                    f"velocities: {velocity} is not the rate of {name}, and {self.names[n + best]} is: {remedy}"
                )
            if alike[i, i] > MIN_CORRELATION and not 1 / MAX_RATE_RATIO < ratio < MAX_RATE_RATIO:
                of = next(
                    (description for unit, description in UNITS if 1 / MAX_RATE_RATIO < unit * ratio < MAX_RATE_RATIO),
                    "in another unit, or the time is",
                )
                row = int(np.abs(rates[:, i]).argmax())
                raise UserError(
                    f"velocities: {velocity} is not the rate of {name}, which is {ratio:.3g} times as large (at "
                    f"{self.place(row)}, {rates[row, i]:.3g} for {v[row, i]:.3g}): it is {of}; "
                    f"give rates{', or state=[...] with all columns if they are something else' if self.has_keys else ''}"
                )

    def _warn_of_jumps(self) -> None:
        """Warn of a step in which all columns jump at once; an impact would not move the positions."""
        z = np.concatenate(self.states)
        steps = np.abs(np.concatenate([np.diff(states, axis=0) for states in self.states]))
        moving = np.ptp(z, axis=0) > 0
        if moving.sum() < 2 or len(steps) < 20:
            return
        steps, spread = steps[:, moving], np.std(z[:, moving], axis=0)
        typical = np.quantile(steps, 0.9, axis=0)
        sizes = np.sqrt(np.mean((steps / spread) ** 2, axis=1))
        is_jump = ((steps > 6 * typical).mean(1) > 0.6) & (sizes > 0.5)
        if is_jump.any() and is_jump.mean() < MAX_JUMP_SHARE / 2:
            step = int(is_jump.nonzero()[0][0])
            logger.warning(
                "%s: all columns jump at once (%d such steps): does another episode begin there? Cut the trajectory there%s",
                self.place(step), is_jump.sum(), TRAJECTORY_ADVICE if self.has_keys else "",
            )  # fmt: skip

    def _warn_of_repeated_rows(self) -> None:
        """Warn of a log that was written more often than its sensors were read."""
        still: list[NDArray] = [np.all(states[1:] == states[:-1], axis=1) for states in self.states]
        alone = np.concatenate([repeats[1:-1] & ~repeats[:-2] & ~repeats[2:] for repeats in still])
        if len(alone) and alone.mean() > MIN_REPEATED_SHARE:
            name = self.recordings.trajectories[0].name
            logger.warning(
                "%s: %.0f %% of rows repeat the row before them and others don't: was the log written more often than the "
                "sensors were read? Keep the rows that are new", name, 100 * alone.mean(),
            )  # fmt: skip


def _is_part(name: str, column: str) -> bool:
    """True if a coordinate is a column or an entry of one: ``q[2]`` of ``q``."""
    return column in (name, name.rpartition("[")[0])
