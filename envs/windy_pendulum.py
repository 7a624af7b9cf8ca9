"""`rppdyn/WindyPendulum-v0`: a task in which an agent holds a double spring pendulum plumb in the wind."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rppdyn.envs._spec import Entry, Space, Symmetry, SymmetrySpec
from rppdyn.groups import DkeR3, Group, O2eR3, SO2eR3
from rppdyn.tasks._pendulum import DRIFTS, KICKS, Pendulum

WINDY_PENDULUM = "rppdyn/WindyPendulum-v0"
EPISODE_STEPS = 200

TIME_STEP = 0.1
"""Seconds between two actions: one step of the integrator of order 8."""

MAX_TORQUE = 3.0
"""N m; limit of the torque's horizontal part and of its vertical part."""

REWARD_WIDTH = 0.5
"""m; distance s from the z axis at which the reward for being plumb is exp(-1/2)."""

TORQUE_COST = 0.001  # per (N m)^2

PADDED_KICKS = (0.0, *KICKS)
"""The kick before each drift of a step, which begins with a drift."""

MIN_ARM = 0.1
"""m; a torque acts on a shorter arm as on one of this length, which bounds its force."""

_CHOICES: Mapping[str, tuple[Group, tuple[str, ...]]] = {
    "O(2)": (O2eR3(), ("left-right", "yaw")),
    "SO(2)": (SO2eR3(), ("yaw",)),
    "D6": (DkeR3(6), ("sixth turn", "left-right")),
    "D4": (DkeR3(4), ("quarter turn", "left-right")),
}


class WindyPendulum(gym.Env[np.ndarray, np.ndarray]):
    r"""Hold the lower mass of a double spring pendulum plumb below its pivot, in a steady wind, by a torque on the upper arm.

    The dynamics are those of :class:`rppdyn.tasks.Pendulum` and a force on the upper mass,

    .. math:: F = \tau \times x_1 / |x_1|^2,

    whose torque about the pivot is the part of :math:`\tau` that is perpendicular to the arm :math:`x_1`. Without wind
    everything here, the reward included, is symmetric under rotations about the z axis and reflections in planes that hold
    it. The wind breaks that in proportion to its strength.

    Observation, ``(12,)``, float64:

    ======  =====================================  ======  ==============  ====================================
    index   name                                   unit    under g         drawn at reset from
    ======  =====================================  ======  ==============  ====================================
    0-2     x_1, the upper mass's position         m       g x_1           (0, 0, -1.5) + 0.2 N(0, 1)
    3-5     x_2, the lower mass's position         m       g x_2           (0, 0, -3) + 0.2 N(0, 1)
    6-8     p_1, its momentum                      kg m/s  g p_1           0.4 N(0, 1)
    9-11    p_2, its momentum                      kg m/s  g p_2           0.4 N(0, 1)
    ======  =====================================  ======  ==============  ====================================

    Action, ``(3,)``, float32, held for 0.1 s:

    ======  =============================  ======  ======================  ====================================
    index   name                           unit    under g                 range
    ======  =============================  ======  ======================  ====================================
    0-2     tau, the torque on the arm     N m     det(g) g tau            -3 to 3 each, and its horizontal part
                                                                           no longer than 3: it is shortened to that
    ======  =============================  ======  ======================  ====================================

    A torque is a pseudovector. A rotation turns it as any vector; a reflection also changes its sign, so that x -> -x keeps its
    x component and flips y and z.

    Reward: :math:`\exp(-d^2 / 2 s^2) - 0.001 |\tau|^2` with d the lower mass's distance from the z axis and s = 0.5 m; ``info``
    holds the two parts. Height does not count: a torque can't act along the arm. An episode is cut off after 200 steps,
    20 s, and never ends by itself. At the default wind the mean return is 66 without a torque, 168 with the best linear
    feedback that is equivariant, and 179 with a constant push against the wind beside it.

    Args:
        wind: the strength of the wind, 0.01 in the residual-pathway work. It pushes each mass with a force of
            ``wind * (-8, -5, 0)`` N; the masses weigh 1 N each.
        k2: the lower spring's stiffness, N/m.
        render_mode: "rgb_array" (frames of 480 x 480 pixels), "human" (a window of matplotlib's) or None.
    Raises:
        ValueError: a wind or stiffness that the pendulum refuses, or an unknown render mode.

    ``reset(options={"state": z})`` starts from a state of 12 numbers instead.

    Version history: v0, the first.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]  # Gymnasium annotates it as an instance's
        "render_modes": ["human", "rgb_array"],
        "render_fps": round(1 / TIME_STEP),
    }

    symmetry_choices: ClassVar[Mapping[str, tuple[str, ...]]] = {name: names for name, (_, names) in _CHOICES.items()}
    """The symmetries to choose from, the default first, and the names of each one's generators."""

    def __init__(self, wind: float = 0.01, k2: float = 1.0, render_mode: str | None = None):
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode={render_mode!r}: choose {', '.join(self.metadata['render_modes'])}, or None")
        self.pendulum = Pendulum(wind=wind, k2=k2)
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (12,), np.float64)
        self.action_space = spaces.Box(-MAX_TORQUE, MAX_TORQUE, (3,), np.float32)
        self._z = torch.zeros(12, dtype=torch.float64)
        self._torque = torch.zeros(3, dtype=torch.float64)
        self._figure: PendulumFigure | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """A random state, or the one in the options.

        Raises:
            ValueError: the state in the options is not 12 finite numbers, or a spring has no length in it.
        """
        super().reset(seed=seed)
        generator = torch.Generator().manual_seed(int(self.np_random.integers(2**63 - 1)))
        self._z = self.pendulum.initial_state(1, generator)[0]
        if options and "state" in options:
            self._z = _numbers(options["state"], 12, "state")
            if not self.pendulum.force(self._z[:6]).isfinite().all():
                raise ValueError(f"{WINDY_PENDULUM}: in state {self._z.tolist()} a spring has no length")
        self._torque = torch.zeros(3, dtype=torch.float64)
        if self._figure is not None:
            self._figure.trail.clear()
        if self.render_mode == "human":
            self.render()
        return self._observation(), {}

    @torch.no_grad()
    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One tenth of a second with a torque."""
        tx, ty, tz = _numbers(action, 3, "action").tolist()
        horizontal, vertical = (max(length / MAX_TORQUE, 1.0) for length in (math.hypot(tx, ty), abs(tz)))
        torque = [tx / horizontal, ty / horizontal, tz / vertical]  # both parts within MAX_TORQUE
        self._torque = torch.tensor(torque, dtype=torch.float64)
        self._z = torch.tensor(z := self._advance(self._z.tolist(), torque), dtype=torch.float64)
        info = {
            "reward_plumb": math.exp(-(z[3] ** 2 + z[4] ** 2) / (2 * REWARD_WIDTH**2)),
            "reward_torque": -TORQUE_COST * sum(part**2 for part in torque),
        }
        if self.render_mode == "human":
            self.render()
        return self._observation(), sum(info.values()), False, False, info

    def _advance(self, z: list[float], torque: list[float]) -> list[float]:
        """The state after a step: `symplectic_step` with `Pendulum.force` and the torque's force, on plain numbers.

        A step computes 17 forces of six numbers, for which NumPy is ten times as slow.
        """
        pendulum = self.pendulum
        wx, wy, wz = (pendulum.wind * part for part in pendulum.w)
        weight_1, weight_2 = pendulum.m1 * pendulum.g, pendulum.m2 * pendulum.g
        k1, k2, l1, l2 = pendulum.k1, pendulum.k2, pendulum.l1, pendulum.l2
        inverse_1, inverse_2 = TIME_STEP / pendulum.m1, TIME_STEP / pendulum.m2
        tx, ty, tz = torque
        x1, y1, z1, x2, y2, z2, px1, py1, pz1, px2, py2, pz2 = z
        for kick, drift in zip(PADDED_KICKS, DRIFTS, strict=True):
            if kick:  # by the force at the present positions
                square = x1 * x1 + y1 * y1 + z1 * z1
                dx, dy, dz = x2 - x1, y2 - y1, z2 - z1
                upper = k1 - k1 * l1 / (math.sqrt(square) or math.nan)
                lower = k2 - k2 * l2 / (math.sqrt(dx * dx + dy * dy + dz * dz) or math.nan)
                push, s = 1 / max(square, MIN_ARM**2), kick * TIME_STEP
                px1 += s * (wx - upper * x1 + lower * dx + (ty * z1 - tz * y1) * push)
                py1 += s * (wy - upper * y1 + lower * dy + (tz * x1 - tx * z1) * push)
                pz1 += s * (wz - weight_1 - upper * z1 + lower * dz + (tx * y1 - ty * x1) * push)
                px2 += s * (wx - lower * dx)
                py2 += s * (wy - lower * dy)
                pz2 += s * (wz - weight_2 - lower * dz)
            s1, s2 = drift * inverse_1, drift * inverse_2
            x1, y1, z1 = x1 + s1 * px1, y1 + s1 * py1, z1 + s1 * pz1
            x2, y2, z2 = x2 + s2 * px2, y2 + s2 * py2, z2 + s2 * pz2
        return [x1, y1, z1, x2, y2, z2, px1, py1, pz1, px2, py2, pz2]

    def _observation(self) -> np.ndarray:
        return self._z.numpy().copy()

    # -- symmetry and state -------------------------------------------------------------------------------------------

    def symmetry_spec(self, symmetry: str | None = None) -> SymmetrySpec:
        """Action of a group on observations and actions; called by `rppdyn.envs.symmetry_spec`.

        Args:
            symmetry: one of `symmetry_choices`; None is O(2).
        Raises:
            ValueError: there is no such symmetry.
        """
        symmetry = next(iter(_CHOICES)) if symmetry is None else symmetry
        if symmetry not in _CHOICES:
            raise ValueError(f"{WINDY_PENDULUM} has no symmetry {symmetry!r}; known: {', '.join(_CHOICES)}")
        group, names = _CHOICES[symmetry]
        lie, discrete = group.lie_algebra.numpy(), group.discrete_generators.numpy()
        determinants = np.linalg.det(discrete).round()[:, None, None]
        states = tuple(
            Entry(f"{name} {axis}", mass, unit)
            for name, mass, unit in (
                ("x_1", "upper mass", "m"), ("x_2", "lower mass", "m"),
                ("p_1", "upper mass", "kg m/s"), ("p_2", "lower mass", "kg m/s"),
            ) for axis in "xyz"
        )  # fmt: skip
        torques = tuple(Entry(f"tau {axis}", "upper arm", "N m") for axis in "xyz")
        push = float(np.linalg.norm(np.multiply(self.pendulum.wind, self.pendulum.w)))
        note = f"A wind of {push:.3g} N on each mass breaks it; weights are 1 N." if push else ""
        verdict = "exact" if push == 0 else "approximate" if push < self.pendulum.g * self.pendulum.m1 else "broken"
        return SymmetrySpec(
            WINDY_PENDULUM,
            group,
            obs=Space(states, [np.kron(np.eye(4), h) for h in discrete], [np.kron(np.eye(4), A) for A in lie]),
            action=Space(torques, determinants * discrete, lie),
            symmetries=tuple(Symmetry(name, verdict, True, note) for name in names),
        )

    def simulator_state(self) -> dict[str, Any]:
        """The state that determines the next step, without random generators; called by `rppdyn.envs.capture_state`."""
        return {"state": self._z.numpy().copy(), "torque": self._torque.numpy().copy()}

    def restore_simulator_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `simulator_state` returned."""
        self._z, self._torque = _numbers(state["state"], 12, "state"), _numbers(state["torque"], 3, "torque")

    # -- drawing ------------------------------------------------------------------------------------------------------

    def render(self) -> np.ndarray | None:
        """A frame, (480, 480, 3) of uint8; None if it is shown in a window."""
        if self.render_mode is None:
            gym.logger.warn("render() without a render_mode draws nothing; pass render_mode to gymnasium.make")
            return None
        if self._figure is None:
            self._figure = PendulumFigure(self.pendulum, window=self.render_mode == "human")
        return self._figure.draw(self._z.numpy(), self._torque.numpy())

    def close(self) -> None:
        if self._figure is not None:
            self._figure.close()
            self._figure = None


def _numbers(values: Any, n: int, name: str) -> Tensor:
    array = np.array(values, dtype=np.float64)
    if array.shape != (n,) or not np.isfinite(array).all():
        raise ValueError(f"{WINDY_PENDULUM}: {name} {array.tolist()} must be {n} finite numbers")
    return torch.from_numpy(array)


# -- rendering --------------------------------------------------------------------------------------------------------------

PIXELS, DPI = 480, 100
REACH, DEPTH = 3.0, 7.5  # half width and depth of the drawn box, in metres
TRAIL_STEPS = 40  # steps of the lower mass that are drawn
COILS, COIL_RADIUS = 9, 0.12  # a drawn spring's number of coils and their radius in metres
AZIMUTH = -60  # of the camera, in degrees
SPRING, UPPER, LOWER, WIND, TORQUE, FAINT = "#5b6470", "#2f6db5", "#d1602b", "#3d9970", "#8e44ad", "#b8bec6"


class PendulumFigure:
    """Springs, masses, the lower mass's trail and shadow, the wind and the torque.

    Args:
        pendulum: the pendulum.
        window: show frames in a window of matplotlib, and don't return pixels.
    """

    def __init__(self, pendulum: Pendulum, window: bool):
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # matplotlib is not needed to train
        from matplotlib.figure import Figure

        self.window, size = window, (PIXELS / DPI, PIXELS / DPI)
        if window:
            import matplotlib
            from matplotlib import pyplot
            from matplotlib.backends import BackendFilter, backend_registry

            backend = matplotlib.get_backend().lower()
            if backend not in backend_registry.list_builtin(BackendFilter.INTERACTIVE):
                gym.logger.warn(
                    f"render_mode='human' draws nothing here: matplotlib's backend {backend} has no window; "
                    "use render_mode='rgb_array', or a machine with a display"
                )
            self.figure = pyplot.figure(figsize=size, dpi=DPI)
        else:
            self.figure = Figure(figsize=size, dpi=DPI)
            self._pixels = FigureCanvasAgg(self.figure)
        self.trail: deque[np.ndarray] = deque(maxlen=TRAIL_STEPS)
        self._draw_background(pendulum)

    def _draw_background(self, pendulum: Pendulum) -> None:
        axes: Any = self.figure.add_axes((0, 0, 1, 1), projection="3d")
        axes.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), zlim=(-DEPTH, 0.5))
        axes.set_box_aspect((2 * REACH, 2 * REACH, DEPTH + 0.5), zoom=1.15)
        axes.set_axis_off()
        axes.view_init(elev=14, azim=AZIMUTH)
        turn = np.linspace(0, 2 * np.pi, 73)
        for radius in (1.0, 2.0, 3.0):  # the floor
            axes.plot(radius * np.cos(turn), radius * np.sin(turn), -DEPTH, color=FAINT, lw=0.7, alpha=0.7)
        axes.plot([0, 0], [0, 0], [0, -DEPTH], color=FAINT, lw=0.9, ls=(0, (4, 4)))  # the plumb line
        plate = 0.35 * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]])
        axes.plot(plate[:, 0], plate[:, 1], 0, color=SPRING, lw=2.5)
        w = np.multiply(pendulum.wind, pendulum.w)
        if force := float(np.linalg.norm(w)):
            arrow = w / force * (0.6 + 8 * min(force, 0.2))
            right = np.array([-np.sin(np.radians(AZIMUTH)), np.cos(np.radians(AZIMUTH)), 0.0])  # in the picture
            centre = 0.7 * REACH * right - np.array([0, 0, 1.2])
            axes.quiver(*(centre - arrow / 2), *arrow, color=WIND, lw=2, arrow_length_ratio=0.25)
            axes.text(*(centre + np.array([0, 0, 0.3])), "wind", color=WIND, fontsize=9, ha="center")
        self._springs = [axes.plot([], [], [], color=SPRING, lw=1.3)[0] for _ in range(2)]
        self._path = axes.plot([], [], [], color=LOWER, lw=1.2, alpha=0.45)[0]
        self._torque = axes.plot([], [], [], color=TORQUE, lw=2.2)[0]
        self._shadow = axes.plot([], [], [], "o", color=FAINT, ms=9)[0]
        self._masses = [axes.plot([], [], [], "o", color=color, ms=13, mec="white")[0] for color in (UPPER, LOWER)]

    def draw(self, z: np.ndarray, torque: np.ndarray) -> np.ndarray | None:
        """Draw a state and a torque; return the frame, (480, 480, 3), or show it in the window for a time step."""
        x1, x2 = z[:3], z[3:6]
        self.trail.append(x2.copy())
        for line, (start, end) in zip(self._springs, ((np.zeros(3), x1), (x1, x2)), strict=True):
            line.set_data_3d(*_coil(start, end))
        for line, x in zip(self._masses, (x1, x2), strict=True):
            line.set_data_3d(*x[:, None])
        self._shadow.set_data_3d([x2[0]], [x2[1]], [-DEPTH])
        self._path.set_data_3d(*np.array(self.trail).T)
        self._torque.set_data_3d(*np.array([np.zeros(3), 0.4 * torque]).T)
        if self.window:
            from matplotlib import pyplot

            pyplot.pause(TIME_STEP)
            return None
        self._pixels.draw()
        return np.asarray(self._pixels.buffer_rgba())[..., :3].copy()

    def close(self) -> None:
        if self.window:
            from matplotlib import pyplot

            pyplot.close(self.figure)


def _coil(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Points of a spring between two places, (3, n)."""
    along = end - start
    length = np.linalg.norm(along)
    if length == 0:
        return start[:, None]
    direction = along / length
    across = np.cross(direction, np.eye(3)[np.abs(direction).argmin()])
    across /= np.linalg.norm(across)
    t = np.linspace(0, 1, 24 * COILS)
    radius = COIL_RADIUS * np.clip(8 * np.minimum(t, 1 - t), 0, 1)  # straight at both ends
    angle = 2 * np.pi * COILS * t
    offset = np.outer(across, np.cos(angle)) + np.outer(np.cross(direction, across), np.sin(angle))
    return start[:, None] + np.outer(along, t) + radius * offset
