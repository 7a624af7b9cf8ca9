"""Tasks of point masses that move to goals in the plane. Their groups are large, and one number breaks each in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from PIL import Image, ImageDraw

from rppdyn.envs._spec import Entry, Space, Symmetry, SymmetrySpec
from rppdyn.groups import D, Group, O, S
from rppdyn.reps import Rep, V

NAVIGATION = "rppdyn/Navigation-v0"
SWARM = "rppdyn/Swarm-v0"

STEP_SECONDS = 0.1
SUBSTEPS = 4
"""Steps of the semi-implicit Euler method per step of the environment."""

EPISODE_STEPS = 50
MAX_THRUST = 2.0
"""N; largest thrust on a mass of 1 kg."""

DRAG = 1.0
"""N s/m."""

START_RADIUS = 1.0
"""m; radius of the disc in which masses and goals begin."""

GOAL_RADIUS = 0.3
"""m; distance from its goal at which a mass earns half the reward."""

THRUST_COST = 0.01  # per squared thrust, as shares of `MAX_THRUST`

HILL_CENTRE, HILL_RADIUS, MAX_HILL = (0.45, 0.0), 0.3, 2.0
"""m, m, J; without thrust a mass at rest rolls off the hill."""

REPULSION, REPULSION_RADIUS = 0.05, 0.15
"""J, m; potential of two masses at one place, and the distance at which it has fallen to 0.6 of that."""

MAX_FAULT = 2.0
"""Largest share of its thrust that a mass lacks: at 1 it drifts, at 2 its thruster pushes the wrong way."""

PIXELS, FRAME_RADIUS = 480, 1.6
"""Size of a frame in pixels, and half its width in metres."""

BLUE, ORANGE, GREY, RED = (47, 109, 181), (209, 96, 43), (184, 190, 198), (190, 60, 60)


class PointMasses(gym.Env[np.ndarray, np.ndarray]):
    """Base class of the two tasks: thrusts move masses of 1 kg in the plane, each to its own goal.

    Observation, float64: positions (m), velocities (m/s) and goals (m), each of all masses in turn, x and y; action, float32:
    thrusts as shares of 2 N, -1 to 1 in x and y, those longer than 1 shortened to that, held for 0.1 s. Goals and positions are
    drawn from the unit disc, velocities are 0. Reward: the sum over masses of ``1 / (1 + (d / 0.3 m)^2) - 0.01 |thrust|^2``,
    with d the distance to the goal. An episode is cut off after 50 steps, 5 s, and never ends by itself.

    Args:
        count: number of masses.
        render_mode: "rgb_array" (frames of 480 x 480 pixels) or None.
    """

    env_id: ClassVar[str]
    symmetry_choices: ClassVar[Mapping[str, tuple[str, ...]]]
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": round(1 / STEP_SECONDS)}  # type: ignore[misc]

    def __init__(self, count: int, render_mode: str | None):
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode={render_mode!r}: choose rgb_array, or None")
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (6 * count,), np.float64)
        self.action_space = spaces.Box(-1.0, 1.0, (2 * count,), np.float32)
        self._positions, self._velocities, self._goals = np.zeros((3, count, 2))
        self._thrusts = np.zeros((count, 2))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Random positions and goals, at rest."""
        super().reset(seed=seed)
        shape = self._goals.shape
        radii = START_RADIUS * np.sqrt(self.np_random.random((2, shape[0])))
        angles = 2 * np.pi * self.np_random.random((2, shape[0]))
        self._positions, self._goals = np.stack([radii * np.cos(angles), radii * np.sin(angles)], -1)
        self._velocities, self._thrusts = np.zeros(shape), np.zeros(shape)
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Step by 0.1 s under these thrusts."""
        thrusts = np.array(action, dtype=np.float64)
        if thrusts.shape != self.action_space.shape or not np.isfinite(thrusts).all():
            raise ValueError(f"action {thrusts.tolist()} must be {self._thrusts.size} finite numbers")
        thrusts = thrusts.reshape(-1, 2)
        self._thrusts = thrusts / np.maximum(np.linalg.norm(thrusts, axis=1, keepdims=True), 1.0)
        seconds = STEP_SECONDS / SUBSTEPS
        p, v = self._positions, self._velocities
        for _ in range(SUBSTEPS):
            v = v + seconds * (self.forces(p) - DRAG * v)
            p = p + seconds * v
        self._positions, self._velocities = p, v
        squares = np.square(p - self._goals).sum(1)
        info = {
            "reward_goal": float(np.sum(1 / (1 + squares / GOAL_RADIUS**2))),
            "reward_thrust": -THRUST_COST * float(np.square(self._thrusts).sum()),
            **self.costs(),
        }
        return self._observation(), sum(info.values()), False, False, info

    def forces(self, positions: np.ndarray) -> np.ndarray:
        """Forces without drag on masses at these positions, under the last thrusts; N, (count, 2)."""
        return MAX_THRUST * self._thrusts

    def costs(self) -> dict[str, float]:
        """Further parts of the reward."""
        return {}

    def _observation(self) -> np.ndarray:
        return np.concatenate([self._positions.ravel(), self._velocities.ravel(), self._goals.ravel()])

    def simulator_state(self) -> dict[str, Any]:
        """The state that determines the next step and a frame, without the random generator; for `envs.capture_state`."""
        return {"state": self._observation(), "thrusts": self._thrusts.ravel()}

    def restore_simulator_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `simulator_state` returned."""
        values = np.array(state["state"], dtype=np.float64)
        if values.shape != self.observation_space.shape or not np.isfinite(values).all():
            raise ValueError(f"{self.env_id}: state {values.tolist()} must be {3 * self._goals.size} finite numbers")
        self._positions, self._velocities, self._goals = values.reshape(3, *self._goals.shape)
        thrusts = state.get("thrusts", np.zeros(self._goals.size))  # of the last step, for a frame
        self._thrusts = np.array(thrusts, dtype=np.float64).reshape(-1, 2)

    def render(self) -> np.ndarray | None:
        """A frame, (480, 480, 3) of uint8: masses, their goals and thrusts, and what breaks the symmetry in red."""
        if self.render_mode is None:
            gym.logger.warn("render() without a render_mode draws nothing; pass render_mode to gymnasium.make")
            return None
        image = Image.new("RGB", (PIXELS, PIXELS), "white")
        self._draw(ImageDraw.Draw(image))
        return np.asarray(image).copy()

    def _draw(self, draw: ImageDraw.ImageDraw) -> None:
        draw_disc(draw, np.zeros(2), START_RADIUS, outline=GREY)
        for p, goal, thrust in zip(self._positions, self._goals, self._thrusts, strict=True):
            draw.line([*to_pixels(p), *to_pixels(goal)], fill=GREY, width=1)
            draw_disc(draw, goal, GOAL_RADIUS / 2, outline=ORANGE, width=3)
            draw.line([*to_pixels(p), *to_pixels(p + 0.25 * thrust)], fill=ORANGE, width=4)
            draw_disc(draw, p, 0.05, fill=BLUE)

    def choose_group(self, symmetry: str | None, groups: Mapping[str, Group]) -> tuple[Group, tuple[str, ...]]:
        """(group, names of its generators) of a choice; None for the first choice."""
        symmetry = next(iter(groups)) if symmetry is None else symmetry
        if symmetry not in groups:
            raise ValueError(f"{self.env_id} has no symmetry {symmetry!r}; known: {', '.join(groups)}")
        return groups[symmetry], self.symmetry_choices[symmetry]

    def make_spec(self, group: Group, vectors: Rep, notes: Sequence[tuple[str, str]]) -> SymmetrySpec:
        """The spec in which `vectors` acts on positions, velocities, goals and thrusts alike.

        Args:
            notes: (name, note on what breaks it or "") of each generator.
        """
        discrete = [vectors.rho(h).numpy() for h in group.discrete_generators]
        lie = [vectors.drho(A).numpy() for A in group.lie_algebra]
        masses = range(1, len(self._goals) + 1)
        states, thrusts = (
            tuple(
                Entry(f"{kind} {i} {axis}", f"mass {i}", unit) for kind, unit in kinds for i in masses for axis in "xy"
            )
            for kinds in ((("position", "m"), ("velocity", "m/s"), ("goal", "m")), (("thrust", ""),))
        )
        copies = np.eye(3)  # positions, velocities, goals
        return SymmetrySpec(
            self.env_id,
            group,
            obs=Space(states, [np.kron(copies, h) for h in discrete], [np.kron(copies, A) for A in lie]),
            action=Space(thrusts, discrete, lie),
            symmetries=tuple(Symmetry(name, "approximate" if note else "exact", True, note) for name, note in notes),
        )


def check_range(env_id: str, name: str, value: float, largest: float) -> float:
    """The value as a float, if it lies between 0 and the largest.

    Raises:
        ValueError: it does not.
    """
    if isinstance(value, bool) or not (isinstance(value, Real) and 0 <= value <= largest):
        raise ValueError(f"{env_id}: {name}={value!r}: give a number from 0 to {largest:.4g}")
    return float(value)


def to_pixels(position: np.ndarray) -> tuple[float, float]:
    """Pixel coordinates of a position, from the upper left corner."""
    x, y = PIXELS / 2 * (1 + np.array([1.0, -1.0]) * position / FRAME_RADIUS)
    return float(x), float(y)


def draw_disc(draw: ImageDraw.ImageDraw, centre: np.ndarray, radius: float, **style: Any) -> None:
    """Draw a disc, filled or as an outline."""
    (x, y), size = to_pixels(centre), radius * PIXELS / 2 / FRAME_RADIUS
    draw.ellipse([x - size, y - size, x + size, y + size], **style)


class Navigation(PointMasses):
    """One mass moves to its goal. Its symmetry O(2) is broken by a round hill beside the centre.

    Observation (6,), action (2,) and reward: `PointMasses`; the potential on the hill costs, too.

    Args:
        hill: height of the hill in joules, 0 to 2, at (0.45, 0), with a radius of 0.3 m; from 0.99 J on its slope is too steep
            for full thrust.
        render_mode: "rgb_array" or None.
    Raises:
        ValueError: the height is out of range, or an unknown render mode.

    Version history: v0, the first.
    """

    env_id: ClassVar[str] = NAVIGATION
    symmetry_choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "O(2)": ("left-right", "turn"), "D8": ("eighth turn", "left-right"), "D4": ("quarter turn", "left-right"),
    }  # fmt: skip
    """The symmetries to choose from, the default first, and the names of each one's generators."""

    def __init__(self, hill: float = 0.0, render_mode: str | None = None):
        self.hill = check_range(NAVIGATION, "hill", hill, MAX_HILL)
        super().__init__(1, render_mode)

    def heights(self, positions: np.ndarray) -> np.ndarray:
        """Potential on the hill in joules, (count,)."""
        return self.hill * np.exp(-0.5 * np.square((positions - HILL_CENTRE) / HILL_RADIUS).sum(1))

    def forces(self, positions: np.ndarray) -> np.ndarray:
        slopes = self.heights(positions)[:, None] * (positions - HILL_CENTRE) / HILL_RADIUS**2
        return super().forces(positions) + slopes

    def costs(self) -> dict[str, float]:
        return {"reward_hill": -float(self.heights(self._positions).sum())}

    def symmetry_spec(self, symmetry: str | None = None) -> SymmetrySpec:
        """Action of a group on observations and actions; called by `rppdyn.envs.symmetry_spec`."""
        group, names = self.choose_group(symmetry, {"O(2)": O(2), "D8": D(8), "D4": D(4)})
        note = f"A hill of {self.hill:g} J breaks it." if self.hill else ""
        return self.make_spec(group, V(group), [(name, note) for name in names])

    def _draw(self, draw: ImageDraw.ImageDraw) -> None:
        if self.hill:
            draw_disc(draw, np.array(HILL_CENTRE), HILL_RADIUS, outline=RED, width=2)
        super()._draw(draw)


class Swarm(PointMasses):
    """Four masses that repel each other move to their goals. The symmetry is S(4) x D(4), of 192 elements.

    Observation (24,) and action (8,): `PointMasses`. S(4) exchanges masses with their goals, D(4) turns and reflects the plane.

    Args:
        fault: share of its thrust that the first mass lacks, 0 to 2; above 1 its thruster pushes the wrong way. It breaks S(4)
            and leaves D(4) exact.
        render_mode: "rgb_array" or None.
    Raises:
        ValueError: the fault is out of range, or an unknown render mode.

    Version history: v0, the first.
    """

    env_id: ClassVar[str] = SWARM
    symmetry_choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "S(4) x D(4)": ("exchange", "cycle", "quarter turn", "left-right"), "D(4)": ("quarter turn", "left-right"),
    }  # fmt: skip
    """The symmetries to choose from, the default first, and the names of each one's generators."""

    def __init__(self, fault: float = 0.0, render_mode: str | None = None):
        self.fault = check_range(SWARM, "fault", fault, MAX_FAULT)
        super().__init__(4, render_mode)

    def forces(self, positions: np.ndarray) -> np.ndarray:
        offsets = (positions[:, None] - positions) / REPULSION_RADIUS
        slopes = REPULSION / REPULSION_RADIUS * np.exp(-0.5 * np.square(offsets).sum(-1, keepdims=True))
        forces = super().forces(positions) + (slopes * offsets).sum(1)
        forces[0] -= self.fault * MAX_THRUST * self._thrusts[0]
        return forces

    def symmetry_spec(self, symmetry: str | None = None) -> SymmetrySpec:
        """Action of a group on observations and actions; called by `rppdyn.envs.symmetry_spec`."""
        masses, plane = S(4), D(4)
        group, names = self.choose_group(symmetry, {"S(4) x D(4)": masses * plane, "D(4)": plane})
        vectors = 4 * V(plane) if group == plane else V(masses).lift(group) * V(plane).lift(group)
        note = f"The first mass lacks {self.fault:g} of its thrust." if self.fault else ""
        return self.make_spec(group, vectors, [(name, note if name in ("exchange", "cycle") else "") for name in names])

    def _draw(self, draw: ImageDraw.ImageDraw) -> None:
        super()._draw(draw)
        if self.fault:
            draw_disc(draw, self._positions[0], 0.07, outline=RED, width=3)
