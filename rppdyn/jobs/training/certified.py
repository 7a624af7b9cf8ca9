"""`model.free_variance=certified`: the number that a run's configuration gets, once."""

from __future__ import annotations

import logging
from typing import Any

from rppdyn.envs import SymmetrySpec, certified_share
from rppdyn.jobs.config.checks import CERTIFIED, ConfigError
from rppdyn.priors import free_variance
from rppdyn.runs import RunFolder

__all__ = ["certify_variance"]

logger = logging.getLogger(__name__)


def certify_variance(model: Any, folder: RunFolder, env: Any, spec: SymmetrySpec, inputs: int, *, reward: bool) -> None:
    """Set `certified_variance` of a model's configuration: as the run has it, else from the environment's certificate.

    Args:
        model: configuration of the networks; left alone where the variance is not certified.
        folder: of the run, or where it will be.
        inputs: of the layer with the most, see :func:`rppdyn.priors.free_variance`.
        reward: whether networks learn rewards or values.
    Raises:
        ConfigError: the environment's symmetry can't be certified.
    """
    if model.free_variance != CERTIFIED:
        return
    if folder.config_file.is_file():
        model.certified_variance = folder.config().get("model", {}).get("certified_variance")
    if model.certified_variance is not None:
        return
    try:
        found = certified_share(env, spec, reward=reward)
    except ValueError as error:
        raise ConfigError(f"model.free_variance={CERTIFIED}: {error}") from error
    model.certified_variance = free_variance(found.share, model.equivariant_variance, inputs)
    number = f"model.free_variance={CERTIFIED} is {model.certified_variance:.3g}"
    if found.share == 0:
        logger.warning("%s: %s is %s, networks are strict", number, spec.env_id, found.note)
    elif found.verdict == "broken":
        logger.warning("%s, wide: the symmetry of %s is %s; model=mlp does without it", number, spec.env_id, found.note)
    else:
        share = f"the free pathway has {100 * found.share:.2g} % of the prior"
        logger.warning("%s: %s is %s, %s", number, spec.env_id, found.note, share)
