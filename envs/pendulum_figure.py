"""A picture of the double spring pendulum, drawn again at every step."""

from __future__ import annotations

from collections import deque

import gymnasium as gym
import matplotlib
import numpy as np
from matplotlib.backends import BackendFilter, backend_registry
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d import Axes3D

from rppdyn.tasks.pendulum import Pendulum

PIXELS, DPI = 480, 100
REACH, DEPTH = 3.0, 7.5  # of the box that is drawn, in metres
TRAIL = 40  # steps
COILS, COIL_RADIUS = 9, 0.12
AZIMUTH = -60  # of the camera, in degrees
SPRING, UPPER, LOWER, WIND, TORQUE, FAINT = "#5b6470", "#2f6db5", "#d1602b", "#3d9970", "#8e44ad", "#b8bec6"


class PendulumFigure:
    """Springs, masses, the lower mass's trail and shadow, the wind and the torque.

    Args:
        pendulum: whose springs and wind they are.
        window: show it in a window of matplotlib's, where that has one, rather than return pixels.
    """

    def __init__(self, pendulum: Pendulum, window: bool = False):
        self.window = window
        size = (PIXELS / DPI, PIXELS / DPI)
        if window:
            backend = matplotlib.get_backend().lower()
            if backend not in backend_registry.list_builtin(BackendFilter.INTERACTIVE):
                gym.logger.warn(
                    f"render_mode='human' draws nothing here: matplotlib's backend {backend} has no window; "
                    "use render_mode='rgb_array', or a machine with a display"
                )
            from matplotlib import pyplot

            self.figure = pyplot.figure(figsize=size, dpi=DPI)
        else:
            self.figure = Figure(figsize=size, dpi=DPI)
            self._pixels = FigureCanvasAgg(self.figure)
        self._trail: deque[np.ndarray] = deque(maxlen=TRAIL)
        self._scene(pendulum)

    def _scene(self, pendulum: Pendulum) -> None:
        axes: Axes3D = self.figure.add_axes((0, 0, 1, 1), projection="3d")
        self.axes = axes
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

    def draw(self, z: np.ndarray, torque: np.ndarray, pause: float = 0.1) -> np.ndarray | None:
        """The frame of a state and a torque, (480, 480, 3), or None and for ``pause`` seconds in the window."""
        x1, x2 = z[:3], z[3:6]
        self._trail.append(x2.copy())
        for line, (start, end) in zip(self._springs, ((np.zeros(3), x1), (x1, x2)), strict=True):
            line.set_data_3d(*_coil(start, end))
        for line, x in zip(self._masses, (x1, x2), strict=True):
            line.set_data_3d(*x[:, None])
        self._shadow.set_data_3d([x2[0]], [x2[1]], [-DEPTH])
        self._path.set_data_3d(*np.array(self._trail).T)
        self._torque.set_data_3d(*np.array([np.zeros(3), 0.4 * torque]).T)
        if self.window:
            from matplotlib import pyplot

            pyplot.pause(pause)
            return None
        self._pixels.draw()
        return np.asarray(self._pixels.buffer_rgba())[..., :3].copy()

    def forget(self) -> None:
        """Begin another trail."""
        self._trail.clear()

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
