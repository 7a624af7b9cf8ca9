r"""The abstract group that chosen symmetries generate, as small matrices.

Discrete symmetries are multiplied out on the state; then the smallest of a few candidates for their matrices is taken
whose group is the same: the same number of elements, alone and together with the state. A continuous symmetry turns the
world, so it adds the 2 x 2 block on which discrete ones act by how they turn or reflect the horizontal plane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.linalg import block_diag

from rppdyn.envs.mirror import mirror_group
from rppdyn.envs.model_symmetry import ModelSymmetry
from rppdyn.groups import SO, D, Group, O, Trivial
from rppdyn.groups.group import MAX_ORDER

__all__ = ["order_of", "symmetry_group"]


def symmetry_group(symmetries: Sequence[ModelSymmetry]) -> Group:
    """A faithful matrix group whose generators are the discrete symmetries, in order, then the continuous one.

    One mirror gives `mirror_group()`, yaw `SO(2)`, yaw with a mirror of the world `O(2)`.

    Raises:
        ValueError: a discrete symmetry after a continuous one, more than one continuous one, more than `MAX_ORDER`
            discrete elements, or a turn of the world beside yaw, which contains it.
    """
    discrete = [s for s in symmetries if not s.is_continuous]
    continuous = [s for s in symmetries if s.is_continuous]
    names = ", ".join(s.name for s in symmetries)
    if [*discrete, *continuous] != list(symmetries):
        raise ValueError(f"symmetries {names}: give the discrete ones first")
    if len(continuous) > 1:
        raise ValueError(f"symmetries {names}: {len(continuous)} continuous ones are given; choose one")
    if not continuous:
        return _finite(discrete) if discrete else Trivial(1)
    if not discrete:
        return SO(2)
    planes = [_horizontal(s.rotation, continuous[0].rotation) for s in discrete]
    if any(np.linalg.det(plane) > 0 and not np.allclose(plane, np.eye(2)) for plane in planes):
        raise ValueError(f"symmetries {names}: a turn of the world is contained in the continuous one; leave it out")
    if len(discrete) == 1 and np.linalg.det(planes[0]) < 0 and len(_closure([_State.of(discrete[0])])) == 2:
        return O(2)
    finite = _finite(discrete)
    generator = SO(2).lie_algebra[0].numpy()
    zero = np.zeros((finite.d, finite.d))
    return Group(
        f"{finite.name} with SO(2)",
        discrete_generators=[block_diag(p, f) for p, f in zip(planes, finite.discrete_generators.numpy(), strict=True)],
        lie_algebra=[block_diag(generator, zero)],
    )


def order_of(symmetry: ModelSymmetry) -> int:
    """How often a discrete symmetry must be repeated to change nothing."""
    return len(_closure([_State.of(symmetry)]))


def _horizontal(rotation: np.ndarray, generator: np.ndarray) -> np.ndarray:
    """Its block on the plane that the generator turns."""
    plane = [a for a in range(3) if generator[a].any()]
    return rotation[np.ix_(plane, plane)]


def _finite(symmetries: Sequence[ModelSymmetry]) -> Group:
    """The group of discrete symmetries."""
    states = [_State.of(s) for s in symmetries]
    order = len(_closure(states))
    for name, matrices in _candidates(symmetries, states, order):
        group = Group(name, discrete_generators=matrices)
        together = [_State(*state.parts, m) for state, m in zip(states, matrices, strict=True)]
        if group.order == order == len(_closure(together)):
            return group
    raise AssertionError("the regular representation is faithful")


def _candidates(symmetries, states, order) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Matrices for the generators that may be faithful, small ones first."""
    k = len(symmetries)
    if k == 1 and order == 2:
        yield "Z(2)", [mirror_group().discrete_generators[0].numpy()]
    if k == 1 and order > 2:
        yield f"Z({order})", [_turn(order)]
    orders = [len(_closure([state])) for state in states]
    if k == 2 and 2 in orders and order == 2 * max(orders) > 4:
        # A turn and a mirror.
        turn, mirror = D(order // 2).discrete_generators.numpy()
        yield f"D({order // 2})", [mirror if n == 2 else turn for n in orders]
    if order == 2**k:
        yield " x ".join(["Z(2)"] * k), [np.diag([-1.0 if i == n else 1.0 for i in range(k)]) for n in range(k)]
    for matrices in (_frames(symmetries), [s.rotation for s in symmetries]):
        for axis in range(3):
            plane, e = [a for a in range(3) if a != axis], np.eye(3)[axis]
            if all(np.allclose(m[axis], e) and np.allclose(m[:, axis], e) for m in matrices):
                yield f"group of order {order}", [m[np.ix_(plane, plane)] for m in matrices]
    moved = [b for b in range(len(symmetries[0].bodies)) if any(s.bodies[b] != b for s in symmetries)]
    if 0 < len(moved) <= order:
        yield f"group of order {order}", [_permutation([moved.index(s.bodies[b]) for b in moved]) for s in symmetries]
    elements = _closure(states)
    yield f"group of order {order}", [_permutation([_find(elements, s @ e) for e in elements]) for s in states]


def _frames(symmetries: Sequence[ModelSymmetry]) -> list[np.ndarray]:
    """M of the first body that stays where it is in the tree, the torso of a robot."""
    stays = [b for b in range(1, len(symmetries[0].bodies)) if all(s.bodies[b] == b for s in symmetries)]
    return [s.frames[stays[0]] if stays else np.eye(3) for s in symmetries]


class _State:
    """An element as it acts on the state: matrices, of which the first also has a shift, in angles modulo a turn."""

    def __init__(self, joints: np.ndarray, shift: np.ndarray, *linear: np.ndarray):
        self.joints, self.shift, self.linear = joints, shift, linear

    @classmethod
    def of(cls, s: ModelSymmetry) -> _State:
        return cls(s.joint_matrix, s.joint_shift, s.dofs, s.controls, s.activations)

    @property
    def parts(self) -> tuple[np.ndarray, ...]:
        return self.joints, self.shift, *self.linear

    def __matmul__(self, other: _State) -> _State:
        linear = (a @ b for a, b in zip(self.linear, other.linear, strict=True))
        return _State(self.joints @ other.joints, self.joints @ other.shift + self.shift, *linear)

    def equals(self, other: _State) -> bool:
        turn = (self.shift - other.shift + np.pi) % (2 * np.pi) - np.pi
        pairs = zip((self.joints, *self.linear), (other.joints, *other.linear), strict=True)
        return bool(np.allclose(turn, 0, atol=1e-6)) and all(np.allclose(a, b, atol=1e-6) for a, b in pairs)


def _closure(generators: Sequence[_State]) -> list[_State]:
    """All products, the identity first."""
    one = generators[0]
    identity = _State(np.eye(len(one.joints)), np.zeros(len(one.shift)), *(np.eye(len(m)) for m in one.linear))
    elements = [identity]
    for element in elements:  # which grows meanwhile
        for generator in generators:
            product = generator @ element
            if not any(element.equals(product) for element in elements):
                elements.append(product)
                if len(elements) > MAX_ORDER:
                    raise ValueError(f"the chosen symmetries generate more than {MAX_ORDER} elements; choose fewer")
    return elements


def _find(elements: Sequence[_State], one: _State) -> int:
    return next(i for i, element in enumerate(elements) if element.equals(one))


def _turn(n: int) -> np.ndarray:
    return D(n).discrete_generators[0].numpy()


def _permutation(images: Sequence[int]) -> np.ndarray:
    """The matrix that takes basis vector i to the one of number images[i]."""
    return np.eye(len(images))[list(images)].T
