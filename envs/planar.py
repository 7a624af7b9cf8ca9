"""Point masses in the plane on their way to goals: tasks with large groups, each broken in one place by one number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from PIL import Image, ImageDraw

from rppdyn.envs.spec import Entry, Space, Symmetry, SymmetrySpec
from rppdyn.groups import D, Group, O, S
from rppdyn.reps import Rep, V

NAVIGATION = "rppdyn/Navigation-v0"
SWARM = "rppdyn/Swarm-v0"

STEP_SECONDS = 0.1
SUBSTEPS = 4
"""Steps of the semi-implicit Euler method in one of the environment's."""

EPISODE_STEPS = 50
MAX_THRUST = 2.0
"""N, on a mass of 1 kg."""

DRAG = 1.0
"""N s/m."""

START_RADIUS = 1.0
"""Metres, of the disc in which masses and goals begin."""

GOAL_RADIUS = 0.3
"""Metres from its goal at which a mass earns half of what it earns there."""

THRUST_COST = 0.01

HILL_CENTRE, HILL_RADIUS, MAX_HILL = (0.5, 0.0), 0.25, 2.0
"""Metres, metres, joules. Without thrust a mass at rest rolls off."""

REPULSION, REPULSION_RADIUS = 0.05, 0.15
"""Joules that two masses have where they meet, and metres over which that falls to 0.6 of it."""

MAX_FAULT = 2.0
"""Share of its thrust that a mass lacks: at 1 it drifts, at 2 its thruster is wired the wrong way round."""

PIXELS, SHOWN_RADIUS = 480, 1.6
"""Size of a frame, and metres from its middle to its edge."""

BLUE, ORANGE, GREY, RED = (47, 109, 181), (209, 96, 43), (184, 190, 198), (190, 60, 60)


class PointMasses(gym.Env[np.ndarray, np.ndarray]):
    """Masses of 1 kg in the plane, each of which a thrust brings to a goal of its own; the base of the two tasks.

    Observation, float64: positions (m), velocities (m/s) and goals (m), each of all masses in turn, x and y; action, float32:
    thrusts as shares of 2 N, -1 to 1 in x and y, those longer than 1 shortened to that, held for 0.1 s. Goals and positions are
    drawn from the unit disc, velocities are 0. Reward: the sum over masses of ``1 / (1 + (d / 0.3 m)^2) - 0.01 |thrust|^2``,
    with d the distance to the goal. An episode is cut off after 50 steps, 5 s, and never ends by itself.

    Args:
        count: how many masses there are.
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
        """One tenth of a second with these thrusts."""
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
        }
        return self._observation(), sum(info.values()), False, False, info

    def forces(self, positions: np.ndarray) -> np.ndarray:
        """Forces on masses at these positions under the last thrusts, but for the drag; N, (count, 2)."""
        return MAX_THRUST * self._thrusts

    def _observation(self) -> np.ndarray:
        return np.concatenate([self._positions.ravel(), self._velocities.ravel(), self._goals.ravel()])

    def simulator_state(self) -> dict[str, Any]:
        """The state that the next step follows from, beside the random generator; `rppdyn.envs.capture_state` asks for it."""
        return {"state": self._observation()}

    def restore_simulator_state(self, state: Mapping[str, Any]) -> None:
        """Take up a state that `simulator_state` returned."""
        values = np.array(state["state"], dtype=np.float64)
        self._positions, self._velocities, self._goals = values.reshape(3, *self._goals.shape)

    def render(self) -> np.ndarray | None:
        """A frame, (480, 480, 3) of uint8: masses, their goals and thrusts, and what breaks the symmetry in red."""
        if self.render_mode is None:
            gym.logger.warn("render() without a render_mode draws nothing; pass render_mode to gymnasium.make")
            return None
        image = Image.new("RGB", (PIXELS, PIXELS), "white")
        self._draw(ImageDraw.Draw(image))
        return np.asarray(image).copy()

    def _draw(self, draw: ImageDraw.ImageDraw) -> None:
        disc(draw, np.zeros(2), START_RADIUS, outline=GREY)
        for p, goal, thrust in zip(self._positions, self._goals, self._thrusts, strict=True):
            draw.line([*pixel(p), *pixel(goal)], fill=GREY, width=1)
            disc(draw, goal, GOAL_RADIUS / 2, outline=ORANGE, width=3)
            draw.line([*pixel(p), *pixel(p + 0.25 * thrust)], fill=ORANGE, width=4)
            disc(draw, p, 0.05, fill=BLUE)

    def choose(self, symmetry: str | None, groups: Mapping[str, Group]) -> tuple[Group, tuple[str, ...]]:
        """The group of a choice, and the names of its generators; None is the first choice."""
        symmetry = next(iter(groups)) if symmetry is None else symmetry
        if symmetry not in groups:
            raise ValueError(f"{self.env_id} has no symmetry {symmetry!r}; known: {', '.join(groups)}")
        return groups[symmetry], self.symmetry_choices[symmetry]

    def spec_of(self, group: Group, vectors: Rep, notes: Sequence[tuple[str, str]]) -> SymmetrySpec:
        """The spec in which `vectors` acts on positions, velocities, goals and thrusts alike.

        Args:
            notes: name of each generator, and what breaks it, if anything.
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
        three = np.eye(3)
        return SymmetrySpec(
            self.env_id,
            group,
            obs=Space(states, [np.kron(three, h) for h in discrete], [np.kron(three, A) for A in lie]),
            action=Space(thrusts, discrete, lie),
            symmetries=tuple(Symmetry(name, "approximate" if note else "exact", True, note) for name, note in notes),
        )


def check_range(env_id: str, name: str, value: float, largest: float) -> float:
    """A number between 0 and the largest.

    Raises:
        ValueError: it is not.
    """
    if not (math.isfinite(value) and 0 <= value <= largest):
        raise ValueError(f"{env_id}: {name}={value}: give 0 to {largest:.4g}")
    return float(value)


def pixel(position: np.ndarray) -> tuple[float, float]:
    """Where a position is drawn, from the upper left corner."""
    x, y = PIXELS / 2 * (1 + np.array([1.0, -1.0]) * position / SHOWN_RADIUS)
    return float(x), float(y)


def disc(draw: ImageDraw.ImageDraw, centre: np.ndarray, radius: float, **style: Any) -> None:
    """Draw a disc, or its edge."""
    (x, y), size = pixel(centre), radius * PIXELS / 2 / SHOWN_RADIUS
    draw.ellipse([x - size, y - size, x + size, y + size], **style)


class Navigation(PointMasses):
    """One mass on its way to its goal, under O(2); a round hill beside the middle breaks that where it stands.

    Observation (6,) and action (2,): `PointMasses`.

    Args:
        hill: its height in joules, 0 to 2, at (0.5, 0), with a radius of 0.25 m; its slope is steeper than full
            thrust from 0.83 J on.
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

    def forces(self, positions: np.ndarray) -> np.ndarray:
        away = (positions - HILL_CENTRE) / HILL_RADIUS
        slope = self.hill / HILL_RADIUS * np.exp(-0.5 * np.square(away).sum(1, keepdims=True))
        return super().forces(positions) + slope * away

    def symmetry_spec(self, symmetry: str | None = None) -> SymmetrySpec:
        """Action of a group on observations and actions; `rppdyn.envs.symmetry_spec` asks for it."""
        group, names = self.choose(symmetry, {"O(2)": O(2), "D8": D(8), "D4": D(4)})
        note = f"A hill of {self.hill:g} J breaks it." if self.hill else ""
        return self.spec_of(group, V(group), [(name, note) for name in names])

    def _draw(self, draw: ImageDraw.ImageDraw) -> None:
        if self.hill:
            disc(draw, np.array(HILL_CENTRE), HILL_RADIUS, outline=RED, width=2)
        super()._draw(draw)


class Swarm(PointMasses):
    """Four masses that repel each other, each on its way to its own goal, under S(4) x D(4), 192 elements.

    Observation (24,) and action (8,): `PointMasses`. S(4) exchanges masses with their goals, D(4) turns and reflects the plane.

    Args:
        fault: the share of its thrust that the first mass lacks, 0 to 2; above 1 its thruster pushes the wrong way. It breaks
            S(4), and leaves D(4) exact.
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
        between = (positions[:, None] - positions) / REPULSION_RADIUS
        sizes = REPULSION / REPULSION_RADIUS * np.exp(-0.5 * np.square(between).sum(-1, keepdims=True))
        forces = super().forces(positions) + (sizes * between).sum(1)
        forces[0] -= self.fault * MAX_THRUST * self._thrusts[0]
        return forces

    def symmetry_spec(self, symmetry: str | None = None) -> SymmetrySpec:
        """Action of a group on observations and actions; `rppdyn.envs.symmetry_spec` asks for it."""
        masses, plane = S(4), D(4)
        group, names = self.choose(symmetry, {"S(4) x D(4)": masses * plane, "D(4)": plane})
        vectors = 4 * V(plane) if group == plane else V(masses).lift(group) * V(plane).lift(group)
        note = f"The first mass lacks {self.fault:g} of its thrust." if self.fault else ""
        return self.spec_of(group, vectors, [(name, note if name in ("exchange", "cycle") else "") for name in names])

    def _draw(self, draw: ImageDraw.ImageDraw) -> None:
        super()._draw(draw)
        if self.fault:
            disc(draw, self._positions[0], 0.07, outline=RED, width=3)
