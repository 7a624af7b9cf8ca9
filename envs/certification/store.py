"""Certificates and derived specs on disk, addressed by all that they depend on (model, environment, versions); so never stale.

An environment is known by its options, its frame skip, and the source of the files that its classes are in.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np

from rppdyn._version import __version__
from rppdyn.envs.certification.certificate import FORMAT, Certificate
from rppdyn.envs.encoding import rounded
from rppdyn.envs.spec import SymmetrySpec
from rppdyn.envs.wrappers import acting_wrappers, step_wrappers
from rppdyn.runs.files import cache_folder, write_json

logger = logging.getLogger(__name__)

# What a model looks like and what its parts are called has no part in how it moves, nor have the boxes around its
# geoms, which follow from the geoms and only say early that two are far apart.
_UNPHYSICAL = ("bvh_", "cam_", "geom_aabb", "light_", "mat_", "tex_", "skin_", "name", "text_", "vis", "_")
_UNPHYSICAL_END = (
    "_rgba",
    "_matid",
    "_group",
    "_pathadr",
    "_texcoord",
    "_texcoordadr",
    "_texcoordnum",
    "castshadow",
    "_user",
)


def model_digest(model: mujoco.MjModel) -> str:
    """SHA-256 of every physical parameter of a compiled model and its options, hexadecimal; looks and names don't count.

    It is of rounded numbers (`rppdyn.envs.encoding`): the same model compiled on another machine has the same digest.
    """
    digest = hashlib.sha256()
    for name, value in [*_parameters(model), *_parameters(model.opt)]:
        if name == "disableactuator" and value:  # groups that count for this option alone
            array = np.array([*model.actuator_group, value])
        else:
            array = np.ascontiguousarray(value)
        if array.dtype == np.float64:
            array = rounded(array)
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def environment_digest(env: gym.Env) -> str | None:
    """SHA-256 of what an environment is beside its model; None where that can't be told.

    It is known of one that was made by its id, or of a class of Gymnasium's, with plain options, without wrappers that change
    steps or observations (but for one that flattens dictionaries).
    """
    base: Any = env.unwrapped
    if any(type(layer) is not gym.wrappers.FlattenObservation for layer in acting_wrappers(env)):
        return None
    if base.spec is not None:
        arguments = {key: value for key, value in base.spec.kwargs.items() if key not in DRAWING}
    elif type(base).__module__.startswith("gymnasium.") and hasattr(base, "_ezpickle_kwargs"):
        arguments = {"": base._ezpickle_args, **base._ezpickle_kwargs}
    else:
        return None
    classes = [kind for kind in type(base).__mro__ if kind.__module__ not in ("builtins", "typing", "abc")]
    try:
        files = {inspect.getfile(kind) for kind in classes}
        content = sorted(hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files)
        names = [f"{kind.__module__}:{kind.__qualname__}" for kind in classes]
        parts = [names, content, arguments, getattr(base, "frame_skip", None)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=_plain).encode()).hexdigest()
    except (OSError, TypeError, ValueError):
        return None


DRAWING = (
    "render_mode",
    "width",
    "height",
    "camera_id",
    "camera_name",
    "default_camera_config",
    "max_geom",
    "visual_options",
)
"""Options that say how an environment is drawn."""


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return [str(value.dtype), np.asarray(value).tolist()]
    if isinstance(value, Path):
        return str(value)
    raise TypeError(value)


def spec_digest(spec: SymmetrySpec) -> str:
    """SHA-256 of how the group acts, without what is said of its symmetries: that is what a certificate finds out."""
    return replace(spec, symmetries=()).digest


def find_certificate(source: mujoco.MjModel | gym.Env, spec: SymmetrySpec, solver: str = "stock") -> Certificate | None:
    """The stored certificate of a spec for a bare model or an environment, with the whole range of controls, or None."""
    model, environment = digests(source)
    path = _path(model, environment, spec_digest(spec), solver, mujoco.__version__, 1.0)
    return _read(path) if environment is not None and path.exists() else None


def digests(source: mujoco.MjModel | gym.Env) -> tuple[str, str | None]:
    """Digests of the model, "" where there is none, and of the environment around it, "" where there is none."""
    if isinstance(source, mujoco.MjModel):
        return model_digest(source), ""
    model = getattr(source.unwrapped, "model", None)
    return model_digest(model) if isinstance(model, mujoco.MjModel) else "", environment_digest(source)


def save_certificate(certificate: Certificate) -> Path | None:
    """Store a certificate, and those of the other symmetries with it, in the user's cache, in place of earlier ones.

    Returns:
        its file; or None, with a warning, where it can't be written, and for an environment whose wrappers act on steps: what
        they do is no part of the model and the spec that certificates are found by.
    """
    for other in certificate.others:
        save_certificate(other)
    if certificate.wrappers:
        wrappers = ", ".join(certificate.wrappers)
        logger.warning(
            "the certificate of %s is not stored, for it is of its wrappers too: %s", certificate.env_id, wrappers
        )
        return None
    if certificate.environment is None:
        logger.warning(
            "the certificate of %s is not stored, for its options are not known: make it by an id, with plain options",
            certificate.env_id,
        )
        return None
    certificate = replace(certificate, others=(), refused=())
    c = certificate
    path = _path(c.model_digest, c.environment, c.spec_digest, c.solver, c.mujoco, c.control_scale)
    return path if _is_written(path, certificate.to_dict(), f"the certificate of {certificate.env_id}") else None


def certificate_for(env: gym.Env | mujoco.MjModel, spec: SymmetrySpec) -> tuple[Certificate | None, str]:
    """The stored certificate of a spec for an environment's model, and what keeps one from relying on it.

    Args:
        env: an environment, wrapped or not, or an `mujoco.MjModel`.
    Returns:
        the certificate and "", where every generator is exact or approximate; the certificate and a line that names what
        is broken; or None and a line that says that the spec was not certified, or for another model.
    """
    if not isinstance(env, mujoco.MjModel) and (wrappers := step_wrappers(env)):
        names = ", ".join(type(wrapper).__name__ for wrapper in wrappers)
        return (
            None,
            f"{spec.env_id} has wrappers that no stored certificate covers ({names}): rppdyn.envs.certify judges it",
        )
    if (source := simulated(env)) is None:
        return None, f"{spec.env_id} has no MuJoCo model and no simulator_state, so its spec can't be certified"
    certificate = find_certificate(source, spec)
    if certificate is None:
        if any(_folder().glob(f"{spec_digest(spec)[:32]}-*.json")):
            return None, (
                f"the spec of {spec.env_id} was certified for another model, or other options, than this environment's: "
                "rppdyn.envs.save_certificate(rppdyn.envs.certify(env, spec)) certifies it for this one"
            )
        return None, f"the spec of {spec.env_id} is not certified; run `rppdyn certify` or rppdyn.envs.certify on it"
    broken = [report.name for report in certificate.generators if report.dynamics_verdict == "broken"]
    return certificate, f"{spec.env_id}: the simulator refutes {', '.join(broken)}" if broken else ""


def simulated(env: gym.Env | mujoco.MjModel) -> mujoco.MjModel | gym.Env | None:
    """What can be certified: a model, an environment that has one or says its state, or None."""
    if isinstance(env, mujoco.MjModel) or isinstance(getattr(env.unwrapped, "model", None), mujoco.MjModel):
        return env
    return env if hasattr(env.unwrapped, "simulator_state") else None


def _parameters(owner) -> Iterator[tuple[str, object]]:
    for name in sorted(dir(owner)):
        if name.startswith(_UNPHYSICAL) or name.endswith(_UNPHYSICAL_END):
            continue
        value = getattr(owner, name)
        if isinstance(value, (int, float, np.ndarray)):
            yield name, value


def _folder() -> Path:
    return cache_folder("certificates")


def _path(model: str, environment: str | None, spec: str, solver: str, version: str, scale: float) -> Path:
    parts = [model, environment, spec, solver, version, scale, gym.__version__, __version__, FORMAT]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return _folder() / f"{spec[:32]}-{key[:32]}-{solver}.json"


def _read(path: Path) -> Certificate | None:
    try:
        return Certificate.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("the stored certificate %s is damaged (%s); certify again", path, error)
        return None


# -- derived specs ------------------------------------------------------------------------------------------------------


def find_or_derive(
    source: mujoco.MjModel | gym.Env, choice: tuple[object, ...], build: Callable[[], SymmetrySpec]
) -> SymmetrySpec:
    """The spec that was derived for the same model and environment, else a new one, which is stored.

    Args:
        choice: what else says which spec it is, plain data.
        build: derives it.
    """
    model: Any = source
    environment: str | None = ""
    wrappers: list[str] = []
    if not isinstance(source, mujoco.MjModel):
        base: Any = source.unwrapped
        model, environment = base.model, environment_digest(source)
        wrappers = [type(layer).__name__ for layer in acting_wrappers(source)]
        if environment is None or "_get_obs" in vars(base):  # a method of this one environment's own
            return build()
    content = np.zeros(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, content)
    parts = [
        choice,
        environment,
        wrappers,
        mujoco.__version__,
        gym.__version__,
        np.__version__,
        __version__,
        _sources(),
    ]
    key = hashlib.sha256(json.dumps(parts).encode() + content.tobytes()).hexdigest()
    path = cache_folder("specs") / f"{key}.json"
    if path.exists():
        try:
            return SymmetrySpec.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            logger.warning("the stored spec %s is damaged (%s) and derived again", path, error)
    spec = build()
    _is_written(path, spec.to_dict(), f"the spec of {spec.env_id}")
    return spec


def _is_written(path: Path, content: dict[str, Any], what: str) -> bool:
    """Write a file of the cache, or warn that it can't be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content)
    except OSError as error:
        logger.warning("%s is not stored (%s)", what, error)
        return False
    return True


@cache
def _sources() -> str:
    """SHA-256 of the files that derive specs."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
