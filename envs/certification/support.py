r"""Whether mirrored states lie where rollouts go: a wrong map whose images are never visited can't be refuted by data.

Each feature y of positions, velocities and activations is replaced by its *place* among the values that an independent set
of rollouts visited: the share of them below it, from 0 to 1, and beyond them the distance to the nearest in standard
deviations,

.. math:: u(y) = F(y) + \max(0, y - y_{max}) / \sigma - \max(0, y_{min} - y) / \sigma .

Ranks keep the few violent states of a rollout from stretching the scale. How far, in u, visited states lie from the nearest
independent one says what is near: an image is *visited* when it lies as near as 95 % of them do. A symmetry of
everything (dynamics, resets, policy) maps visited states to visited states, so that 95 % of the images are; a map that
flips the sign of a knee which never straightens has images several standard deviations away, and none are. The
measure is of single states and generous in many dimensions: support says whether data *could* refute a map, the
defects whether they do.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial import cKDTree

from rppdyn.envs.certification.certificate import Support

__all__ = ["places", "support"]

NEAR = 0.95  # quantile of the visited states' own distances that counts as near; a higher one is set by an odd episode
SLACK = 1e-9  # relative difference below which two values are the same


def support(
    visited: np.ndarray, images: np.ndarray, independent: np.ndarray, names: tuple[str, ...]
) -> tuple[Support, np.ndarray, np.ndarray]:
    """Compare images with visited states.

    Args:
        visited: features (n, f) of visited states.
        images: features (n, f) of their images.
        independent: features (m, f) of states that other rollouts visited.
        names: of the features.
    Returns:
        the summary, and the distances (n,) of visited states and of images to the independent ones.
    """
    tree = cKDTree(places(independent, independent))
    there = places(images, independent)
    near, far = tree.query(places(visited, independent))[0], tree.query(there)[0]
    outside = ((there < -1) | (there > 2)).mean(0)
    worst = int(outside.argmax())
    share = float(np.mean(far <= np.quantile(near, NEAR) + SLACK))
    return Support(share, names[worst], float(outside[worst])), near, far


def places(y: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Places (n, f) of values among others (m, f), column by column: in [0, 1] inside, beyond that in standard deviations.

    >>> places(np.array([[1.5], [4.0]]), np.array([[1.0], [2.0], [3.0]])).round(2).tolist()
    [[0.33], [2.22]]
    """
    low, high, spread = among.min(0), among.max(0), among.std(0)
    slack = SLACK * (1 + np.abs(among).max(0))
    constant = spread <= slack
    scale = np.where(constant, slack, spread)  # leaving the only value ever seen is leaving the visited states
    rank = np.empty_like(y)
    for j, column in enumerate(among.T):
        rank[:, j] = 0.5 if constant[j] else np.searchsorted(np.sort(column), y[:, j]) / len(column)
    return rank + np.maximum(0, y - high - slack) / scale - np.maximum(0, low - slack - y) / scale
