"""How far a certificate says that a symmetry is to be believed, before there are any data."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gymnasium as gym

from rppdyn.envs.catalogue import single_environment
from rppdyn.envs.certification.certificate import Certificate
from rppdyn.envs.certification.certify import certify
from rppdyn.envs.certification.store import find_certificate, save_certificate, simulated
from rppdyn.envs.spec import VERDICTS, SymmetrySpec
from rppdyn.envs.wrappers import step_wrappers
from rppdyn.priors.likelihood import LARGEST_DEFECT, SMALLEST_DEFECT, share_of_defect

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

__all__ = ["CertifiedShare", "certified_share", "share_of"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CertifiedShare:
    """The part of a prior that the free pathway is left, by a certificate.

    Attributes:
        defect: d, of one step, at the 95th percentile, of the worst generator; 0 where the symmetry is exact.
        share: d^2, within the bounds of :func:`rppdyn.priors.share_of_defect`.
        verdict: "exact", "approximate" or "broken", of all that counts.
        note: the same in words.
    """

    defect: float
    share: float
    verdict: str
    note: str


def certified_share(env: gym.Env | VecEnv, spec: SymmetrySpec, *, reward: bool = True) -> CertifiedShare:
    """How much of a network over a spec's symmetry is left to its free pathway, from the stored certificate or a new one.

    Args:
        env: an environment, wrapped or not, or stable-baselines3's VecEnv, of which the first is looked at.
        reward: whether what is learned depends on the reward and on where episodes end, as a critic does.
    Raises:
        ValueError: an environment without a MuJoCo model or a `simulator_state`, or whose spec or wrappers can't be certified.
    """
    with ExitStack() as stack:
        one = env if isinstance(env, gym.Env) else stack.enter_context(single_environment(env))
        source = simulated(one)
        if source is None:
            raise ValueError(
                f"{spec.env_id} has neither a MuJoCo model nor a simulator_state to certify its symmetry by: give "
                "free_variance a number, or learned"
            )
        certificate = None if step_wrappers(one) else find_certificate(source, spec)
        if certificate is None:
            logger.warning("certifying the symmetry of %s in the simulator, which takes some seconds", spec.env_id)
            certificate = certify(one, spec)
            save_certificate(certificate)
    return share_of(certificate, reward=reward)


def share_of(certificate: Certificate, *, reward: bool = True) -> CertifiedShare:
    """Take the free pathway's share from a certificate; arguments as of :func:`certified_share`."""
    defects = [report.defect for report in certificate.generators]
    verdicts = [report.dynamics_verdict for report in certificate.generators]
    if reward:
        defects += [report.value_defect for report in certificate.generators]
        verdicts += [v for report in certificate.generators for v in report.value_verdicts]
    verdict = max(verdicts, key=VERDICTS.index)
    defect = 0.0 if verdict == "exact" else max(defects)
    share = share_of_defect(0.0 if verdict == "exact" else max(defect, SMALLEST_DEFECT))
    of = "dynamics and reward" if reward else "dynamics"
    note = f"{verdict} ({of} are off by {defect:.2g} of a step)" if share else f"exact ({of} agree to rounding)"
    if share and defect > LARGEST_DEFECT:
        note += f", counted as {LARGEST_DEFECT:g}"
    return CertifiedShare(defect, share, verdict, note)
