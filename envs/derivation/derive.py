"""The derived symmetries of a model, and the table that a person reads."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from rppdyn.envs.derivation.search import search
from rppdyn.envs.derivation.trees import Skeleton
from rppdyn.envs.model_symmetry import Deviation, ModelSymmetry, control_addresses, name_of
from rppdyn.envs.spec import align

MAX_DEVIATION_ROWS = 12  # deviations that a table spells out


@dataclass(frozen=True, eq=False)
class Derivation:
    """The result of a derivation: a model's candidate symmetries, discrete ones first."""

    model: mujoco.MjModel
    symmetries: tuple[ModelSymmetry, ...]

    def __getitem__(self, name: str) -> ModelSymmetry:
        """The symmetry of this name.

        Raises:
            ValueError: there is none.
        """
        for symmetry in self.symmetries:
            if symmetry.name == name:
                return symmetry
        raise ValueError(f"the model has no symmetry {name!r}; found: {', '.join(self.names) or 'none'}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(symmetry.name for symmetry in self.symmetries)

    def table(self) -> str:
        """Images of joints and controls under each symmetry, a column each, and what deviates from it.

        A continuous symmetry's column is the derivative along it; its deviations are those of a turn by one radian.
        """
        if not self.symmetries:
            return "no symmetry found"
        rows = [["", *self.names]]
        rows.append(["world", *(_axes(s.rotation, s.is_continuous) for s in self.symmetries)])
        columns = [_joints(self.model, s) + _controls(self.model, s) for s in self.symmetries]
        for cells in zip(*columns, strict=True):
            rows.append([cells[0][0], *(cell for _, cell in cells)])
        lines = align(rows)
        for s in self.symmetries:
            lines += _deviating(s.name, s.deviations)
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()


def derive(model: mujoco.MjModel) -> Derivation:
    """Candidate symmetries of a MuJoCo model, with their action on bodies, joints, velocities and controls.

    The structure must match: the tree, the types of its joints and their axes, what the actuators drive. Parameters that
    don't match are kept as `Deviation`s.

    Raises:
        ValueError: the model has flexible parts, or none that move.
    """
    if getattr(model, "nflex", 0):
        raise ValueError(f"the model has {model.nflex} flexes, whose symmetry is not derived; remove them")
    if not model.nv:
        raise ValueError("the model has no joints: there is nothing to derive a symmetry of")
    return Derivation(model, tuple(candidate.symmetry for candidate in search(model)))


def _deviating(name: str, deviations: tuple[Deviation, ...]) -> list[str]:
    """Lines that say how many parameters deviate, and the first `MAX_DEVIATION_ROWS` of them."""
    count = len(deviations)
    what = {0: "nothing deviates", 1: "one parameter deviates"}.get(count, f"{count} parameters deviate")
    lines = ["", f"{name}: {what}", *(f"  {d}" for d in deviations[:MAX_DEVIATION_ROWS])]
    if count > MAX_DEVIATION_ROWS:
        lines.append(
            f"  and {count - MAX_DEVIATION_ROWS} more, none larger than {deviations[MAX_DEVIATION_ROWS].relative:.1%}"
        )
    return lines


def _axes(matrix: np.ndarray, is_continuous: bool) -> str:
    """Images of x, y and z, or the axis about which a generator turns."""
    if is_continuous:
        axis = np.array([matrix[2, 1], matrix[0, 2], matrix[1, 0]])
        return "stays" if not axis.any() else f"turns about {_sum(axis, 'xyz')}"
    return ", ".join(_sum(row, "xyz") for row in matrix.T)


def _sum(row: np.ndarray, names) -> str:
    """A linear combination in words: ``-a``, ``0.5 a + b``; a generator of zero leaves its coordinate where it is."""
    terms = []
    for c, name in zip(row, names, strict=True):
        if abs(c) > 1e-9:
            terms.append(f"{'-' if c < 0 else '+'} {'' if abs(abs(c) - 1) < 1e-9 else f'{abs(c):.3g} '}{name}")
    text = " ".join(terms) or "stays"
    return "-" + text[2:] if text.startswith("- ") else text.removeprefix("+ ")


def _joints(model: mujoco.MjModel, s: ModelSymmetry) -> list[tuple[str, str]]:
    """(joint, what it becomes) of every joint."""
    scalars = [int(j) for j in Skeleton(model).scalars]
    names = [name_of(model, "joint", j).removeprefix("joint ") for j in range(model.njnt)]
    joints = []
    for j in range(model.njnt):
        if j in scalars:
            n = scalars.index(j)
            text, shift = _sum(s.joint_matrix[n], [names[k] for k in scalars]), s.joint_shift[n]
            if shift:
                text = f"{shift:.4g}" if text == "stays" else f"{text} {'-' if shift < 0 else '+'} {abs(shift):.4g}"
            joints.append((names[j], text))
        else:
            body = int(model.jnt_bodyid[j])
            source = s.bodies.index(body)
            of = "" if source == body else f" of {name_of(model, 'body', source).removeprefix('body ')}"
            joints.append((f"{names[j]} (own axes)", _axes(s.frames[source], s.is_continuous) + of))
    return joints


def _controls(model: mujoco.MjModel, s: ModelSymmetry) -> list[tuple[str, str]]:
    """(control, what it becomes) of every control."""
    names, (_, counts) = [], control_addresses(model)
    for i, count in enumerate(counts):
        names += [name_of(model, "actuator", i)] * count
    short = [name.removeprefix("actuator ").removeprefix("of ") for name in names]
    return [(f"control of {short[k]}", _sum(s.controls[k], short)) for k in range(model.nu)]
