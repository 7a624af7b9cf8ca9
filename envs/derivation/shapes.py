"""Comparing the shapes of two geoms or sites that ought to be images of each other."""

from __future__ import annotations

import numpy as np
from scipy.spatial import cKDTree

from rppdyn.envs.derivation.skeleton import GEOM, Skeleton, local_transform

__all__ = ["image_size", "orientation_gap", "position_gap", "shape_gap"]

VERTICES = 500  # of a mesh without a convex hull that are compared; more are passed over evenly


def shape_gap(skeleton: Skeleton, i: int, j: int, position: np.ndarray, axes: np.ndarray) -> float:
    """A length: how far geom j is from the image of i, which has this position and these axes in j's body."""
    m = skeleton.model
    sizes = np.abs(image_size(skeleton, i, j, axes, m.geom_size[i]) - m.geom_size[j]).max()
    if m.geom_type[i] in (GEOM.PLANE, GEOM.HFIELD, GEOM.MESH):
        sizes = 0.0
    return position_gap(skeleton, i, j, position) + sizes + orientation_gap(skeleton, i, j, axes)


def position_gap(skeleton: Skeleton, i: int, j: int, position: np.ndarray) -> float:
    """Distance of centres; of a plane, along its normal only, since it is infinite where things collide."""
    _, there, axes = local_transform(skeleton, "geom", j)
    gap = position - there
    return float(abs(axes[:, 2] @ gap)) if skeleton.model.geom_type[i] == GEOM.PLANE else float(np.linalg.norm(gap))


def orientation_gap(skeleton: Skeleton, i: int, j: int, axes: np.ndarray) -> float:
    """A length: how far surfaces are apart because geom j is turned against the image of i."""
    m = skeleton.model
    shape, size = int(m.geom_type[i]), m.geom_size[j]
    W = local_transform(skeleton, "geom", j)[2].T @ axes  # i's axes, in j's frame
    if shape == GEOM.SPHERE:
        return 0.0
    if shape == GEOM.PLANE:
        return float(np.linalg.norm(W[:, 2] - [0, 0, 1])) * skeleton.size
    if shape in (GEOM.CAPSULE, GEOM.CYLINDER):
        sine = np.linalg.norm(W[:2, 2])
        return float(sine * np.linalg.norm(size[:2]))
    if shape == GEOM.ELLIPSOID:
        own = np.diag(m.geom_size[i] ** 2)
        carried = image_size(skeleton, i, j, axes, m.geom_size[i])
        return float(np.abs(W @ own @ W.T - np.diag(carried**2)).max() / size.max())
    if shape == GEOM.BOX:
        whole = np.round(np.abs(W))
        off = float(np.abs(np.abs(W) - whole).max())
        return float(np.linalg.norm(size)) * (off if _is_permutation(whole) else 1.0)
    if shape == GEOM.MESH:
        return _mesh_gap(m, int(m.geom_dataid[i]), int(m.geom_dataid[j]), W)
    if shape == GEOM.HFIELD:
        return _field_gap(m, int(m.geom_dataid[i]), int(m.geom_dataid[j]), W)
    other = m.geom_dataid[i] != m.geom_dataid[j]  # a field of distances, which is not looked into
    return float(max(np.abs(W - np.eye(3)).max(), other) * np.linalg.norm(size))


def image_size(skeleton: Skeleton, i: int, j: int, axes: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The size of a geom's image along the axes of geom j: a box that is turned over an edge changes length with width."""
    if skeleton.model.geom_type[i] not in (GEOM.BOX, GEOM.ELLIPSOID):
        return size
    whole = np.round(np.abs(local_transform(skeleton, "geom", j)[2].T @ axes))
    return whole @ size if _is_permutation(whole) else size


def _is_permutation(matrix: np.ndarray) -> bool:
    return bool((matrix.sum(0) == 1).all() and (matrix.sum(1) == 1).all())


def _mesh_gap(m, i: int, j: int, W: np.ndarray) -> float:
    """Largest distance from a vertex of one mesh's convex hull, which is what collides, to the nearest of the other's."""
    if i == j and np.abs(W - np.eye(3)).max() < 1e-9:
        return 0.0
    a, b = _hull(m, i) @ W.T, _hull(m, j)
    return float(max(cKDTree(y).query(x)[0].max() for x, y in ((a, b), (b, a))))


def _hull(m, mesh: int) -> np.ndarray:
    """Vertices of a mesh's convex hull, (n, 3); without one, `VERTICES` of the mesh."""
    vertices = m.mesh_vert[m.mesh_vertadr[mesh] : m.mesh_vertadr[mesh] + m.mesh_vertnum[mesh]].astype(float)
    graph = int(m.mesh_graphadr[mesh])
    if graph < 0:
        return vertices[:: 1 + len(vertices) // VERTICES]
    n = int(m.mesh_graph[graph])  # the graph: sizes (2), addresses of edges (n), indices of vertices (n), ...
    return vertices[m.mesh_graph[graph + 2 + n : graph + 2 + 2 * n]]


def _field_gap(m, own: int, field: int, W: np.ndarray) -> float:
    """Largest difference of a height field and its image, which must lie along the axes."""

    def heights(k):
        rows, columns, adr = int(m.hfield_nrow[k]), int(m.hfield_ncol[k]), int(m.hfield_adr[k])
        return m.hfield_data[adr : adr + rows * columns].reshape(rows, columns) * m.hfield_size[k, 2]

    grid, there = heights(own), heights(field)
    if np.ptp(grid) == 0 and np.array_equal(grid, there) and W[2, 2] > 0.999999:
        return 0.0
    whole = np.round(W)
    if np.abs(W - whole).max() > 1e-6 or whole[2, 2] != 1:
        return float(np.abs(m.hfield_size[field, :2]).max())
    # Rows run along y and columns along x.
    image = grid if whole[0, 0] else grid.T
    image = image[:, ::-1] if whole[0].sum() < 0 else image
    image = image[::-1] if whole[1].sum() < 0 else image
    extent = m.hfield_size[own, [0, 1] if whole[0, 0] else [1, 0]]
    if image.shape != there.shape or np.abs(extent - m.hfield_size[field, :2]).max() > 0:
        return float(np.abs(m.hfield_size[field, :2]).max())
    # Each cell is two triangles, cut along one diagonal, which a reflection turns into the other one.
    bent = there[1:, 1:] + there[:-1, :-1] - there[1:, :-1] - there[:-1, 1:]
    cut = np.abs(bent).max() / 2 if whole[0, :2].sum() != whole[1, :2].sum() else 0.0
    return float(np.abs(image - there).max() + cut + abs(m.hfield_size[own, 3] - m.hfield_size[field, 3]))
