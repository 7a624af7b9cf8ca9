r"""Action of a MuJoCo model's symmetries on an environment's raw observation.

The entries' features z are known in terms of the features f of quantities, z = S f + b (`_recognition`). A symmetry acts on
these by f -> A f + a (`_quantities`). Therefore

.. math:: z' = S A f + S a + b = \rho\,(z - b) + S a + b \quad\text{with}\quad \rho\, S = S A,

and if c is a common fixed point of the symmetries, the action about c is linear, z' - c = rho (z - c). An angle that is shifted
and has no common fixed point is encoded as cosine and sine; quaternions are always encoded as rotation matrices.

Images of entries that no known quantity explains are fitted: the observation is read in simulated states and in their images.
Under a discrete symmetry such an entry must become plus or minus another one, under a continuous one it must not change.
"""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
from scipy.linalg import block_diag
from scipy.sparse.csgraph import connected_components

from rppdyn.envs._model_symmetry import ModelSymmetry, Quantity, finite_element
from rppdyn.envs._simulator import quiet_mujoco
from rppdyn.envs._spec import Encoding, Space
from rppdyn.envs.observation._recognition import Observation, compute_derived, keep_data, simulate_states

CLOSURE_TOLERANCE = 1e-9  # largest part of an image outside of the observed features
INTEGER_TOLERANCE = 1e-12  # entries of a representation this near to an integer are rounded to it


def space_of(observation: Observation, symmetries: Sequence[ModelSymmetry]) -> Space:
    """Action of symmetries on an observation.

    Raises:
        ValueError: an entry's image is not observed, only a part of a quaternion is, an entry is shifted about no fixed
            point or clipped unequally, or nothing explains it and no fit succeeds.
    """
    angles: frozenset[int] = frozenset()
    while True:
        features = _Features(observation, angles)
        actions = [features.action(symmetry) for symmetry in symmetries]
        origin, shifted = common_fixed_point(symmetries, actions, features.offset)
        if not shifted:
            break
        entries = {features.entry_of(f) for f in shifted}
        new_angles = entries & _hinges(observation) - angles
        if not new_angles:
            i = min(entries)
            raise ValueError(
                f"{observation.name}: {', '.join(s.name for s in symmetries)} have no fixed point in common for "
                f"{observation.describe(i)}; leave it out of the observation, or one of them"
            )
        angles |= new_angles
    for symmetry, (matrix, _) in zip(symmetries, actions, strict=True):
        _check_clipping(observation, features, symmetry, matrix)
    encoding = features.encoding
    raw = [origin[f[0]] if len(f := encoding.features_of(i)) == 1 else 0.0 for i in range(encoding.dim)]
    discrete, continuous = (
        tuple(m for s, (m, _) in zip(symmetries, actions, strict=True) if s.is_continuous is is_continuous)
        for is_continuous in (False, True)
    )
    return Space(observation.entries, discrete, continuous, tuple(raw), encoding.angles, encoding.quaternions)


def notes(observation: Observation, symmetries: Sequence[ModelSymmetry], space: Space) -> tuple[str, ...]:
    """Sentences for the user about constant, unexplained and clipped entries of an observation.

    Args:
        space: the action of the symmetries on it (`space_of`).
    """
    notes: list[str] = []
    if observation.constant:
        notes.append(f"Entries {_format_ranges(observation.constant)} never vary with the state: taken for invariant.")
    if observation.unexplained:
        notes.append(
            f"Entries {_format_ranges(observation.unexplained)} are none of MuJoCo's quantities: images were fitted."
        )
    clipped = [i for i, source in enumerate(observation.sources) if source is not None and source.is_clipped]
    for k, symmetry in enumerate(sorted(symmetries, key=lambda s: s.is_continuous)):  # in the order of the space
        matrix = space.generator(k)
        rows = {i: matrix[space.encoding.features_of(i)[0]] for i in clipped}
        mixed = [i for i, row in rows.items() if row.any() and (symmetry.is_continuous or not _is_signed_unit(row))]
        if mixed:
            notes.append(
                f"{len(mixed)} of the entries {mixed[0]}-{mixed[-1]} are clipped and mixed by {symmetry.name}: where one of "
                "them is at a bound, the symmetry does not hold."
            )
    return tuple(notes)


class _Features:
    """An observation's features as z = S f + b.

    Attributes:
        encoding: map from the observation's entries to z.
        quantities: indices of the quantities whose features make up f; unexplained entries follow them.
        matrix: S.
        offset: b.
    """

    def __init__(self, observation: Observation, angles: frozenset[int]):
        sources, quantities = observation.sources, observation.quantities
        columns = [(k, i) for k, quantity in enumerate(quantities) for i in range(len(quantity.entries))]
        turns = next((k for k, quantity in enumerate(quantities) if quantity.key == "cosine and sine"), 0)
        needed = {columns[column][0] for source in sources if source is not None for column, _ in source.terms}
        used = tuple(sorted(needed | ({turns} if angles else set())))
        start, total = {}, 0
        for k in used:
            start[k], total = total, total + quantities[k].encoding.feature_dim
        unexplained = {i: total + n for n, i in enumerate(observation.unexplained)}  # place in f
        total += len(unexplained)

        def place(column: int) -> int:
            k, i = columns[column]
            return start[k] + quantities[k].encoding.features_of(i)[0]

        quaternions = _find_quaternions(observation, columns)
        encoding = Encoding(len(sources), tuple(angles), tuple(quaternions))
        S, b = np.zeros((encoding.feature_dim, total)), np.zeros(encoding.feature_dim)
        for i, source in enumerate(sources):
            rows = encoding.features_of(i)
            if source is None:
                S[rows[0], unexplained[i]] = 1.0
            elif i in angles:
                ((column, s),) = source.terms
                names = [entry.name for entry in quantities[turns].entries]
                joint = observation.columns[column].joint
                cos, sin = (start[turns] + names.index(f"{joint} {part}") for part in ("cos", "sin"))
                # cos(s q + b) and sin(s q + b), with s = 1 or -1
                S[rows[0], cos], S[rows[0], sin] = np.cos(source.offset), -s * np.sin(source.offset)
                S[rows[1], cos], S[rows[1], sin] = np.sin(source.offset), s * np.cos(source.offset)
            elif len(rows) == 9:
                if i in quaternions:
                    S[rows, place(source.terms[0][0]) + np.arange(9)] = 1.0
            else:
                for column, c in source.terms:
                    S[rows[0], place(column)] += c
                b[rows[0]] = source.offset
        self.observation, self.encoding, self.quantities = observation, encoding, used
        self.matrix, self.offset = S, b

    def entry_of(self, feature: int) -> int:
        return next(i for i in range(self.encoding.dim) if feature in self.encoding.features_of(i))

    def action(self, symmetry: ModelSymmetry) -> tuple[np.ndarray, np.ndarray]:
        """(rho, S a) of a symmetry."""
        observation = self.observation
        parts = [observation.quantities[k].act(symmetry) for k in self.quantities]
        fitted = fit_unexplained(observation, symmetry)
        A = block_diag(*(A for A, _ in parts), fitted) if parts else fitted
        a = np.concatenate([*(a for _, a in parts), np.zeros(len(observation.unexplained))])
        S: np.ndarray = self.matrix
        without_image = np.isnan(A).any(1)
        if (S[:, without_image] != 0).any():
            i = self.entry_of(int(np.flatnonzero((S[:, without_image] != 0).any(1))[0]))
            raise ValueError(
                f"{observation.name}: {observation.describe(i)} is the image under {symmetry.name} of nothing in the "
                "model; leave it out of the observation, or put a partner at its mirrored place"
            )
        SA = S @ np.nan_to_num(A, nan=0.0)
        if np.array_equal(S @ S.T, np.eye(len(S))):
            inverse, span = S.T, np.eye(len(S))
        else:
            inverse = np.linalg.pinv(S)
            span = S @ inverse
        rho = SA @ inverse
        outside = np.abs(SA - rho @ S).max(1, initial=0.0) > CLOSURE_TOLERANCE * np.abs(S).max(initial=0.0)
        if outside.any():
            i = self.entry_of(int(np.flatnonzero(outside)[0]))
            raise ValueError(
                f"{observation.name}: what {symmetry.name} puts into {observation.describe(i)} is not observed in full; "
                f"observe that too, or leave out {symmetry.name}"
            )
        if not symmetry.is_continuous:
            rho = rho + np.eye(len(S)) - span  # identity on combinations of entries that are always zero
        rounded = np.round(rho)
        return np.where(np.abs(rho - rounded) < INTEGER_TOLERANCE, rounded, rho), S @ np.where(without_image, 0.0, a)


def common_fixed_point(symmetries, actions, b: np.ndarray) -> tuple[np.ndarray, set[int]]:
    """(fixed point of least norm, features for which there is no fixed point).

    c is fixed by a discrete symmetry if (1 - rho) c = (1 - rho) b + S a, by a continuous one if rho c = rho b - S a.
    """
    n = len(b)
    point, unfixed = np.zeros(n), set[int]()
    if not actions:
        return point, unfixed
    equations = [(rho, -shift) if s.is_continuous else (np.eye(n) - rho, shift)
                 for s, (rho, shift) in zip(symmetries, actions, strict=True)]  # fmt: skip
    mixing = sum(np.abs(left) for left, _ in equations)
    _, component = connected_components(mixing + mixing.T, directed=False)
    right = [left @ b + shift for left, shift in equations]
    shifted = set(component[np.any([r != 0 for r in right], axis=0)])
    for k in shifted:
        members = np.flatnonzero(component == k)
        left = np.concatenate([equation[np.ix_(members, members)] for equation, _ in equations])
        r = np.concatenate([part[members] for part in right])
        c = np.linalg.lstsq(left, r, rcond=None)[0]
        if np.abs(left @ c - r).max() > CLOSURE_TOLERANCE:
            unfixed |= set(members.tolist())
        point[members] = np.where(np.abs(c) < INTEGER_TOLERANCE, 0.0, c)
    return point, unfixed


def _hinges(observation: Observation) -> set[int]:
    """Entries that are a hinge's angle, negated or shifted or as it is."""
    hinges = set()
    for i, source in enumerate(observation.sources):
        if source is not None and len(source.terms) == 1 and not source.is_clipped:
            column, c = source.terms[0]
            entry = observation.columns[column]
            if entry.name == f"{entry.joint} position" and entry.unit == "rad" and abs(c) == 1:
                hinges.add(i)
    return hinges


def _find_quaternions(observation: Observation, columns: list[tuple[int, int]]) -> list[int]:
    """First entries of the observed quaternions; `columns` are (quantity, entry) of each column."""
    sources = observation.sources
    firsts: list[int] = []
    component = {}
    for column, (k, i) in enumerate(columns):
        for first in observation.quantities[k].quaternions:
            if first <= i < first + 4:
                component[column] = i - first
    for i, source in enumerate(sources):
        if source is None or not any(column in component for column, _ in source.terms):
            continue
        if firsts and i < firsts[-1] + 4:
            continue
        column = source.terms[0][0]
        expected = [((column + n, 1.0),) for n in range(4)]
        terms = [s.terms if s is not None and not s.is_clipped else None for s in sources[i : i + 4]]
        if component.get(column) != 0 or terms != expected:
            raise ValueError(
                f"{observation.name}: {observation.describe(i)} is a part of a quaternion, and the entries from there on "
                "are not its w, x, y, z; observe them in this order, or the rotation matrix"
            )
        firsts.append(i)
    return firsts


def _check_clipping(observation: Observation, features: _Features, symmetry: ModelSymmetry, matrix: np.ndarray) -> None:
    """Refuse clipped entries whose image is plus or minus an entry with other bounds."""
    for i, source in enumerate(observation.sources):
        rows = features.encoding.features_of(i)
        if symmetry.is_continuous or source is None or len(rows) > 1 or not _is_signed_unit(row := matrix[rows[0]]):
            continue
        partner = observation.sources[features.entry_of(int(np.flatnonzero(row)[0]))]
        if partner is None:
            continue
        bounds = (partner.low, partner.high) if row.sum() > 0 else (-partner.high, -partner.low)
        if bounds != (source.low, source.high):
            raise ValueError(
                f"{observation.name}: {observation.describe(i)} is clipped to [{source.low:g}, {source.high:g}], its image "
                f"under {symmetry.name} to [{bounds[0]:g}, {bounds[1]:g}]; clip both alike, or leave out {symmetry.name}"
            )


def _is_signed_unit(row: np.ndarray) -> bool:
    return np.count_nonzero(row) == 1 and abs(row.sum()) == 1


def _format_ranges(numbers: Sequence[int]) -> str:
    """Format numbers, runs of them as first-last."""
    runs: list[list[int]] = []
    for i in sorted(numbers):
        if runs and i == runs[-1][1] + 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


# -- images of unexplained entries, fitted in simulated states -----------------------------------------------------------------


FIT_STATES = 16
FIT_TOLERANCE = 1e-6  # relative to an entry's largest value; contact forces are solved for to about 1e-7
TRIAL_ANGLES = (0.7, 2.0, 4.1)  # parameters of the elements of a continuous symmetry that are tried


def fit_unexplained(observation: Observation, symmetry: ModelSymmetry) -> np.ndarray:
    """Fit the matrix by which a symmetry acts on an observation's unexplained entries; zero for a continuous one.

    Raises:
        ValueError: an entry's image is not plus or minus such an entry, or it did not vary.
    """
    entries = list(observation.unexplained)
    if not entries:
        return np.zeros((0, 0))
    finite = [finite_element(symmetry, t) for t in TRIAL_ANGLES] if symmetry.is_continuous else [symmetry]
    before, after = _observe_images(observation, entries, finite)
    if not np.ptp(before, axis=0).all():
        before, after = _observe_images(observation, entries, finite, landed=True)
    if (constant := np.ptp(before, axis=0) == 0).any():
        raise ValueError(
            f"{observation.name}: {observation.describe(entries[constant.argmax()])} is none of MuJoCo's quantities and did "
            "not vary in simulated states, so its image is unknown; leave it out, or give your own spec"
        )
    matrix = np.zeros((len(entries), len(entries)))
    for n, i in enumerate(entries):
        # Entry n comes first: entries that are always equal are taken to be their own images.
        candidates = [n] if symmetry.is_continuous else [n, *(m for m in range(len(entries)) if m != n)]
        signs = (1.0,) if symmetry.is_continuous else (1.0, -1.0)
        size = np.abs(after[:, n]).max()
        gaps = {(m, s): np.abs(after[:, n] - s * before[:, m]).max() for m in candidates for s in signs}
        match = (
            pair for pair, gap in gaps.items() if gap <= FIT_TOLERANCE * max(size, np.abs(before[:, pair[0]]).max())
        )
        if (first := next(match, None)) is None:
            raise ValueError(
                f"{observation.name}: entry {i} of the observation is none of MuJoCo's quantities, and under "
                f"{symmetry.name} it is not plus or minus another such entry; leave it out, or give your own spec"
            )
        matrix[n, first[0]] = first[1]
    return np.zeros_like(matrix) if symmetry.is_continuous else matrix


def _observe_images(observation: Observation, entries: list[int], symmetries: list[ModelSymmetry], landed=False):
    """(entries in simulated states, entries in their images under the symmetries in turn), (`FIT_STATES`, n) each."""
    model, data = observation.model, observation.data
    before, after = [], []
    with keep_data(model, data), quiet_mujoco():
        image = mujoco.MjData(model)
        for k, _ in enumerate(simulate_states(model, data, FIT_STATES, landed)):
            before.append(observation.read()[entries])
            mujoco.mj_copyData(image, model, data)
            set_image_state(model, observation.quantities, data, image, symmetries[k % len(symmetries)])
            compute_derived(model, image)
            mujoco.mj_copyData(data, model, image)
            after.append(observation.read()[entries])
    return np.array(before), np.array(after)


def set_image_state(model, quantities: tuple[Quantity, ...], source, target, symmetry: ModelSymmetry) -> None:
    """Put `target` into the image of the state of `source` under a discrete symmetry.

    The state is time, positions, velocities, controls, activations, the solver's warm start and the poses of mocap bodies;
    `mj_forward` computes the rest.
    """
    by_key = {quantity.key: quantity for quantity in quantities}
    target.time = source.time
    for name in ("qpos", "qvel", "ctrl", "act", "qacc_warmstart"):
        if name in by_key:
            getattr(target, name)[:] = by_key[name].image(symmetry, getattr(source, name))
    if model.nmocap:
        mocap = np.flatnonzero(model.body_mocapid >= 0)
        places = by_key["xpos"].image(symmetry, source.xpos.ravel()).reshape(-1, 3)
        orientations = by_key["xquat"].image(symmetry, source.xquat.ravel()).reshape(-1, 4)
        target.mocap_pos[model.body_mocapid[mocap]] = places[mocap]
        target.mocap_quat[model.body_mocapid[mocap]] = orientations[mocap]
