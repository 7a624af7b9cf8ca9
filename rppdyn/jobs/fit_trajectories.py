"""`rppdyn fit-dynamics data=...`: models of a system from one's own trajectories; in Python :func:`fit`."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from rppdyn.dynamics import (
    DrivenModel,
    DynamicsModel,
    HamiltonianModel,
    MechanicalModel,
    NeuralODEModel,
    Trajectories,
    integrate,
    learn_symmetry,
    rollout_error,
)
from rppdyn.envs.tasks import Recording, Recordings, read_recordings
from rppdyn.equivariance import discover
from rppdyn.equivariance.error import geometric_mean
from rppdyn.groups import GL, Group, Trivial
from rppdyn.jobs.config import compose, notation
from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.config.devices import device_of
from rppdyn.jobs.config.trajectories import AUTO, OWN_DATA, FitTrajectoriesConfig
from rppdyn.jobs.fitting.figures import draw_trajectory
from rppdyn.jobs.fitting.members import StackFit, equivariance_metrics
from rppdyn.jobs.fitting.networks import build_stack
from rppdyn.jobs.fitting.result import FitResult, over_members
from rppdyn.jobs.fitting.running import load_members, run_fit
from rppdyn.nn import Chained, InvariantNormaliser, Stack
from rppdyn.reps import Rep, Scalar, V
from rppdyn.runs import RunFolder
from rppdyn.runs.files import write_json

__all__ = ["FittedDynamics", "RecordingsFit", "fit", "load_dynamics", "run"]

logger = logging.getLogger(__name__)

INITIAL_SCALE = 0.1
"""Of the last layer's weights."""
LONGEST = 10.0
"""Times its running mean that a gradient may be long."""
CHUNKS = 500
"""Of validation and of test, at most."""
APART = 1e6
"""Ratio of the sizes of two columns that is worth a warning."""
STATES = 500
"""At which a symmetry is looked for in a network."""
LARGEST = 0.15
"""Relative defect of a symmetry that is found in a network; a whole family may be below more by chance."""
RATES = 200
"""From which it is learned with a Hamiltonian."""
BLUR = 1e-3
"""Of rates, about what differences in place of derivatives are off by: the evidence needs some noise."""
DECISIVE = 5.0
"""Logarithm of the evidence that a symmetry has to gain."""
TURNS = 0.1
"""Share of a generator that may be no rotation and is left out as noise."""


def run(config: FitTrajectoriesConfig, *, resume: bool = False, progress: bool = False) -> FitResult:
    """Fit the configured models to the user's trajectories, in their run folder.

    Args:
        resume: go on from the folder's last checkpoint; start where there is no folder yet.
        progress: show bars on standard error.
    Raises:
        RunFolderError: the folder exists (without `resume`), is in use, or holds another configuration.
        ConfigError, ValueError: the data can't be read or don't fit the configuration; no folder has been made then.
        CheckpointError: the folder's checkpoints are all damaged.
    """

    def build() -> RecordingsFit:
        folder = RunFolder(config.folder())
        if not folder.is_vacant():
            stored = RunFolder.open(folder.path).config()["task"]
            config.task.digest, config.task.generators = stored["digest"], stored["generators"]
        return RecordingsFit(config)

    return run_fit(config, build, resume=resume, progress=progress)


class Scaling(NamedTuple):
    """Units in which a system is fitted: ``z = centre + scale * y`` and ``t = seconds * s``, which commute with the group.

    ``controls`` likewise: their centre and scale.
    """

    centre: Float[Tensor, " n"]
    scale: Float[Tensor, " n"]
    seconds: float
    control_centre: Float[Tensor, " m"]
    control_scale: Float[Tensor, " m"]

    def states(self, z: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        return (z - self.centre) / self.scale

    def back(self, y: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        """States in the user's units."""
        return self.centre + self.scale * y

    def controls(self, u: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m"]:
        return (u - self.control_centre) / self.control_scale


class Drive(NamedTuple):
    """Steps and controls along trajectories, in scaled units."""

    steps: Float[Tensor, "*batch T"]
    controls: Float[Tensor, "*batch T m"]


class Split(NamedTuple):
    """Trajectories for training, validation and test."""

    train: list[Recording]
    validation: list[Recording]
    test: list[Recording]


class RecordingsFit(StackFit):
    """Trajectories of the user's own and the models that are fitted to them, one with each seed.

    Attributes:
        recordings: all data, in the user's units.
        group: of the networks; None where they have none.
        rep, control_rep: of states and of controls.
        scaling: the units of the fit.
        curves, example: of the test rollouts, filled by :meth:`test`.
    """

    config: FitTrajectoriesConfig

    def __init__(self, config: FitTrajectoriesConfig):
        self.config, task = config, config.task
        self.recordings = read_recordings(
            task.data, task.columns, controls=task.controls or (), time=task.time, trajectory=task.trajectory
        )
        _check_data(config, self.recordings)
        self.split = _split(self.recordings, config)
        self.dtype, self.device = getattr(torch, config.dtype), device_of(config.device)
        self.group = _group(config, self.recordings, self.split)
        self.rep, self.control_rep = _representations(config, self.group, self.recordings)
        self.scaling = _scaling(config, self.split.train, self.rep, self.control_rep)
        stack = build_stack(config, self.rep_in, self.rep_out, INITIAL_SCALE)
        self.model = _system(config, stack)
        chunks = self._chunks(self.split.train, task.most)
        task.windows = len(chunks[0])
        inputs, targets = (t.expand(config.seeds, *t.shape) for t in chunks)
        hamiltonian = config.model.system != "ode"
        super().__init__(config, stack, inputs, targets, longest=LONGEST, by_gradients=hamiltonian)
        self.held = {name: self._chunks(getattr(self.split, name), CHUNKS) for name in ("validation", "test")}
        self.curves: dict[str, Any] = {}
        self.example: dict[str, Any] = {}

    @property
    def rep_in(self) -> Rep:
        """Of the network's input: a state, of a mechanical model its positions, and controls."""
        if self.config.model.system == "mechanical":
            return _positions(self.config, self.rep.G, self.recordings)
        return self.rep + self.control_rep if self.recordings.control_names else self.rep

    @property
    def rep_out(self) -> Rep:
        """Of the network's output."""
        match self.config.model.system:
            case "mechanical":
                return MechanicalModel.rep_out(self.rep_in)
            case "ode":
                return self.rep
        return Scalar(self.rep.G)

    def measure_under(self, group: Group) -> None:
        """Another group for equivariance errors than the networks'."""
        self.rep, self.control_rep = _representations(self.config, group, self.recordings)

    def _chunks(self, recordings: Sequence[Recording], most: int) -> tuple[Tensor, Tensor]:
        """Initial states, each with the steps and controls after it, and the states that follow, ``(N, chunk, n)``."""
        chunk, inputs, targets = self.config.task.chunk, [], []
        for recording in recordings:
            y, drive = self.scaling.states(recording.states), _drive(recording, self.scaling)
            for start in range(0, len(y) - chunk, chunk):
                along = [part[start : start + chunk].flatten() for part in drive]
                inputs.append(torch.cat([y[start], *along]))
                targets.append(y[start + 1 : start + chunk + 1])
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(self.config.task.split_seed))[:most]
        chosen = order.sort().values.tolist()
        return tuple(
            torch.stack([values[i] for i in chosen]).to(device=self.device, dtype=self.dtype)
            for values in (inputs, targets)
        )  # type: ignore[return-value]

    # -- what a fit says ----------------------------------------------------------------------------------------------

    def _rollout(self, model: DynamicsModel, weights: Any, inputs: Float[Tensor, "*batch d"]) -> Trajectories:
        n, chunk = self.rep.dim, self.config.task.chunk
        z, steps, controls = inputs.split([n, chunk, inputs.shape[-1] - n - chunk], -1)
        return _solve(model, weights, z, Drive(steps, controls.unflatten(-1, (chunk, -1))))

    def predict(self, inputs: Tensor) -> Tensor:
        return self._rollout(self.model, self.model.assemble(), inputs).states[..., 1:, :]

    def predict_one(self, net: Any, inputs: Tensor) -> Tensor:
        return self._rollout(_system(self.config, Chained(net)), None, inputs).states[..., 1:, :]

    def predict_each(self, stack: Stack, weights: Any, inputs: Float[Tensor, "N n"]) -> Float[Tensor, "N T n"]:
        found = self._rollout(_system(self.config, stack), weights, inputs.unsqueeze(1))
        return found.states[..., 1:, :].squeeze(1)

    def members(self) -> list[DynamicsModel]:
        """The models as they stand, in scaled units, in float64 on the CPU."""
        members = range(self.stack.members)
        return [_system(self.config, self.stack.member(index)).double().cpu() for index in members]

    def fitted(self) -> FittedDynamics:
        """The models in the user's units."""
        return FittedDynamics(
            self.members(), self.scaling, self.rep, self.recordings.names, self.recordings.control_names
        )

    def metrics(self) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        weights = self.model.assemble()
        for split, (inputs, targets) in self.held.items():
            found = self._rollout(self.model, weights, inputs.expand(self.stack.members, *inputs.shape))
            truth = torch.cat([inputs[:, None, : self.rep.dim], targets], 1).expand_as(found.states)
            errors = zip(rollout_error(found.states, truth), ~found.diverged, strict=True)
            metrics[f"{split}/error"] = [_mean(of[kept]) for of, kept in errors]
            metrics[f"{split}/diverged"] = found.diverged.double().mean(1).tolist()
        if self.group is not None:
            metrics["equivariance/error"] = [self._equivariance(member)["error"] for member in self.members()]
        return metrics

    def _equivariance(self, member: DynamicsModel) -> dict[str, float]:
        """The vector field's error under the group."""
        z, rep_in = self.inputs_of(), self.rep
        if self.recordings.control_names:
            rep_in = self.rep + self.control_rep
        weights = member.assemble()
        return equivariance_metrics(lambda z: member.vector_field(z, weights), rep_in, self.rep, z)

    def inputs_of(self) -> Float[Tensor, "N d"]:
        """States of the test set, and controls, in scaled units: what a vector field is a function of."""
        n, chunk = self.rep.dim, self.config.task.chunk
        inputs = self.held["test"][0][: self.config.evaluation.states].double().cpu()
        return torch.cat([inputs[:, :n], inputs[:, n + chunk : n + chunk + len(self.recordings.control_names)]], 1)

    def test(self) -> dict[str, Any]:
        """What the members are worth, lists with one value per seed.

        ``test/error`` and ``rollout/error`` are geometric means of relative errors, in scaled units; ``rmse/NAME`` root mean
        squares of errors over the test chunks, in the user's units; ``energy/variation``, of models that have an energy, how
        far theirs varies along true trajectories, relative to how far it varies over all of them: of a conserved one 0.
        """
        metrics, measured = self.metrics(), []
        options = self.config.rollout
        truths = self.split.test[: options.trajectories]
        y, drive, known = _padded(truths, self.scaling, options.steps)
        seconds = float(np.mean([float(r.times.diff().mean()) for r in truths]))
        self.curves = {"times": [seconds * k for k in range(y.shape[1])], "error": []}
        inputs, targets = (values.double().cpu() for values in self.held["test"])
        for index, member in enumerate(self.members()):
            values: dict[str, Any] = {
                f"{split}/{name}": metrics[f"{split}/{name}"][index]
                for split in ("validation", "test")
                for name in ("error", "diverged")
            }
            with torch.no_grad():
                found = _solve(member, None, y[:, 0].clone(), drive, options.substeps)
                short = self._rollout(member, None, inputs)
            kept = ~found.diverged
            errors = torch.where(known[:, 1:], rollout_error(found.states, y), torch.nan)[kept]
            values["rollout/diverged"] = float(found.diverged.double().mean())
            values["rollout/error"] = _mean(errors[~errors.isnan()])
            self.curves["error"].append(_over_time(errors))
            off = (self.scaling.scale * (short.states[:, 1:] - targets))[~short.diverged]
            values |= {
                f"rmse/{name}": float(off[..., i].square().mean().sqrt())
                for i, name in enumerate(self.recordings.names)
            }
            energy = _energy(member)
            if energy is not None:
                values["energy/variation"] = _variation(energy(y), known)
            if self.group is not None:
                values |= {f"equivariance/{name}": value for name, value in self._equivariance(member).items()}
            measured.append(values)
            if index == 0:
                of_known = known[0]
                self.example = {
                    "times": (truths[0].times - truths[0].times[0])[: len(of_known)].tolist(),
                    "truth": truths[0].states[: len(of_known)].tolist(),
                    "found": self.scaling.back(found.states[0])[of_known].tolist(),
                }
        return over_members(measured)

    def save(self, folder: RunFolder) -> None:
        write_json(folder.path / "rollouts.json", self.curves | {"example": self.example})

    def draw(self, folder: RunFolder) -> None:
        super().draw(folder)
        draw_trajectory(self.curves, self.example, self.recordings.names, folder.figures / "rollouts.png")


class FittedDynamics:
    """Fitted models of a system, in the units of the data.

    Attributes:
        models: the members, one for each seed, in scaled units.
        rep: of the states.
        names, control_names: of the coordinates.
    """

    def __init__(
        self,
        models: Sequence[DynamicsModel],
        scaling: Scaling,
        rep: Rep,
        names: Sequence[str],
        control_names: Sequence[str] = (),
    ):
        self.models, self.scaling, self.rep = list(models), scaling, rep
        self.names, self.control_names = tuple(names), tuple(control_names)

    @torch.no_grad()
    def predict(
        self,
        state: NDArray | Tensor,
        times: NDArray | Tensor | Sequence[float],
        controls: NDArray | Tensor | None = None,
        *,
        members: str = "mean",
        substeps: int = 1,
    ) -> Any:
        """States at given times, from the state at the first of them.

        Args:
            state: ``(*batch, n)``.
            times: increasing, s.
            controls: ``(*batch, T - 1, m)``, held from each time to the next; of a model that has controls.
            members: "mean" over seeds, or "all" of them along a new first axis.
            substeps: of rk4, from one time to the next.
        Returns:
            ``(*batch, T, n)``, of the kind that `state` is, an array or a tensor; nan from where a model diverges.
        Raises:
            ValueError: a state of another size, times that do not increase, controls that are missing or of another shape.
        """
        z = torch.as_tensor(state, dtype=torch.float64)
        if z.shape[-1:] != (len(self.names),):
            raise ValueError(f"a state of shape {tuple(z.shape)}: its last axis must be {', '.join(self.names)}")
        t = torch.as_tensor(times, dtype=torch.float64)
        if t.ndim != 1 or len(t) < 2 or not bool((t.diff() > 0).all()):
            raise ValueError("times must increase, two of them at least")
        if members not in ("mean", "all"):
            raise ValueError(f"members={members!r}: give 'mean' or 'all'")
        steps = (t.diff() / self.scaling.seconds).expand(*z.shape[:-1], len(t) - 1)
        drive = Drive(steps, self._controls(controls, (*z.shape[:-1], len(t) - 1)))
        found = []
        for model in self.models:
            solved = _solve(model, None, self.scaling.states(z), drive, substeps)
            index = torch.arange(len(t))
            lost = solved.diverged[..., None] & (index >= solved.diverged_at[..., None])
            found.append(torch.where(lost[..., None], torch.nan, self.scaling.back(solved.states)))
        together = torch.stack(found)
        result = together.mean(0) if members == "mean" else together
        return result if isinstance(state, Tensor) else result.numpy()

    @torch.no_grad()
    def vector_field(
        self, state: Float[Tensor, "*batch n"], control: Tensor | None = None
    ) -> Float[Tensor, "*batch n"]:
        """The mean of the members' ``dz/dt``, in the user's units."""
        y = self.scaling.states(torch.as_tensor(state, dtype=torch.float64))
        if self.control_names:
            y = torch.cat([y, self._controls(control, y.shape[:-1])], -1)
        fields = torch.stack([model.vector_field(y) for model in self.models])
        return fields.mean(0) * self.scaling.scale / self.scaling.seconds

    def _controls(self, controls: Any, shape: Sequence[int]) -> Tensor:
        wanted = (*shape, len(self.control_names))
        if controls is None and not self.control_names:
            return torch.zeros(wanted, dtype=torch.float64)
        if controls is None:
            raise ValueError(f"controls= is missing: {', '.join(self.control_names)}, of shape {wanted}")
        u = torch.as_tensor(controls, dtype=torch.float64)
        if not self.control_names or tuple(u.shape[-2:]) != wanted[-2:]:
            raise ValueError(f"controls of shape {tuple(u.shape)}: must be {wanted}")
        return self.scaling.controls(u.expand(wanted))

    def __repr__(self) -> str:
        return f"FittedDynamics({', '.join(self.names)}; {len(self.models)} members under {self.rep.G})"


def fit(data: str | os.PathLike[str], **options: Any) -> FittedDynamics:
    """Fit models to trajectories and give them back; no run folder is made.

        model = fit("swing.csv", state=["x", "v"], group="O(1)", rep="2*V", seeds=5)
        model.predict([0.1, 0.0], [0.0, 0.1, 0.2])

    Args:
        data: a file, a folder or a Minari dataset, see :func:`rppdyn.envs.tasks.read_recordings`.
        options: keys of ``rppdyn fit-dynamics data=...`` without their section, as ``state=``, ``group=``, ``seeds=``, and with
            ``__`` for a dot, ``optimiser__epochs=100``.
    Raises:
        ConfigError, ValueError: as on the command line.
    """
    subject = RecordingsFit(compose.composed("fit_trajectories", own_words(data=os.fspath(data), **options)))
    for step in range(subject.steps):
        subject.step(step)
    subject.give_up()
    return subject.fitted()


def own_words(**options: Any) -> list[str]:
    """Options as overrides of the command line."""
    words = []
    for name, value in options.items():
        key = name.replace("__", ".")
        key = f"task.{key}" if key in OWN_DATA else key
        words.append(f"{key}={_written(value)}")
    return words


def _written(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_written, value))}]"
    return "null" if value is None else f"'{value}'" if isinstance(value, str) else f"{value}"


def load_dynamics(run: str | os.PathLike[str]) -> FittedDynamics:
    """A finished run's models; its data must still be where they were.

    Raises:
        RunFolderError: the folder is no such run, the run is unfinished, or its files are damaged.
    """
    folder = RunFolder.open(run)
    return load_recordings(compose.from_run("fit_trajectories", folder), folder)[0].fitted()


def load_recordings(config: FitTrajectoriesConfig, folder: RunFolder) -> tuple[RecordingsFit, list[DynamicsModel]]:
    """A finished run's data and its members, one per seed, in float64.

    Raises:
        RunFolderError: the run is unfinished, or its file is damaged.
        ConfigError: the data have changed since.
    """
    subject = RecordingsFit(replace(config, device="cpu"))
    load_members(subject.module, folder)
    return subject, subject.members()


# -- from recordings to what is fitted --------------------------------------------------------------------------------


def _check_data(config: FitTrajectoriesConfig, recordings: Recordings) -> None:
    """Refuse data that are others than a run began with, or too short; warn of columns of very different sizes."""
    task = config.task
    if task.digest not in (None, recordings.digest):
        raise ConfigError(f"data={task.data}: the numbers are others than the run began with; begin another, run_dir=")
    task.digest = recordings.digest
    for recording in recordings.trajectories:
        if len(recording.states) <= task.chunk:
            raise ConfigError(
                f"task.chunk={task.chunk}: {recording.name} has {len(recording.states) - 1} steps; give a smaller chunk, or "
                "leave that trajectory out"
            )
    sizes = torch.cat([recording.states for recording in recordings.trajectories]).square().mean(0).sqrt()
    least, most = int(sizes.argmin()), int(sizes.argmax())
    if sizes[most] >= APART * sizes[least]:
        logger.warning(
            "%s is %.1g times the size of %s: are the units right? Each is fitted in units of its own spread, up to what the "
            "symmetry mixes",
            recordings.names[most], float(sizes[most] / sizes[least]), recordings.names[least],
        )  # fmt: skip


def _split(recordings: Recordings, config: FitTrajectoriesConfig) -> Split:
    """By trajectory, in an order that is drawn; fewer than three are each cut in time."""
    shares, chunk = config.task.split, config.task.chunk
    every = list(recordings.trajectories)
    if len(every) >= 3:
        generator = torch.Generator().manual_seed(config.task.split_seed)
        drawn = [every[i] for i in torch.randperm(len(every), generator=generator).tolist()]
        held = [max(1, round(share * len(every))) for share in shares[1:]]
        if sum(held) >= len(every):
            held = [1, 1]
        rest = len(every) - sum(held)
        return Split(drawn[:rest], drawn[rest : rest + held[0]], drawn[rest + held[0] :])
    parts: tuple[list[Recording], ...] = ([], [], [])
    for recording in every:
        ends = [0, *(round(float(share) * len(recording.states)) for share in np.cumsum(shares))]
        for part, start, stop in zip(parts, ends[:-1], ends[1:], strict=True):
            if stop - start <= chunk:
                raise ConfigError(
                    f"data={config.task.data}: a part of {stop - start} states of {recording.name} is shorter than "
                    f"task.chunk={chunk}; give three trajectories or more, or a smaller chunk"
                )
            part.append(
                Recording(
                    recording.name, recording.times[start:stop], recording.states[start:stop],
                    recording.controls[start : stop - 1],
                )
            )  # fmt: skip
    return Split(*parts)


def _group(config: FitTrajectoriesConfig, recordings: Recordings, split: Split) -> Group | None:
    """The configured group; where it is to be discovered, what a plain network's field has."""
    task = config.task
    if task.group is None:
        return None
    if task.group != AUTO:
        return notation.group(task.group, "group")
    if task.generators is None:
        task.generators = _discovered(config, recordings, split)
    if not task.generators:
        config.model.kind = "mlp"
        return None
    return Group(f"found in {task.data}", lie_algebra=torch.tensor(task.generators, dtype=torch.float64))


def _discovered(config: FitTrajectoriesConfig, recordings: Recordings, split: Split) -> list[Any]:
    """Generators of the symmetry of the training data, none where there is no symmetry.

    Of positions and momenta one is learned with a Hamiltonian, by evidence, from rates of change (velocities are taken for
    momenta); in other states all are found in the field of a plain network that is fitted first.
    """
    if recordings.control_names:
        raise ConfigError("group=auto with controls: a symmetry is looked for in systems without; name the group")
    family = GL(_dimension(config, _count(config, recordings)))
    rep = _state_rep(config, family, _count(config, recordings))
    found = (_by_evidence if config.task.positions else _in_plain_network)(config, split.train, rep)
    turns = [(A - A.T) / 2 for A in found]
    if any(float((A - turn).norm()) > TURNS * float(A.norm()) for A, turn in zip(found, turns, strict=True)):
        turns = found
    if turns:
        shown = "; ".join(str([[round(x, 3) for x in row] for row in A.tolist()]) for A in turns)
        logger.warning(
            "group=auto found %s in %s: %s", f"{len(turns)} generator" + "s" * (len(turns) > 1), family, shown
        )
    else:
        logger.warning("group=auto found no symmetry in %s: plain networks are fitted", family)
    return [A.tolist() for A in turns]


def _by_evidence(config: FitTrajectoriesConfig, train: Sequence[Recording], rep: Rep) -> list[Tensor]:
    rates = [np.gradient(r.states.numpy(), r.times.numpy(), axis=0)[1:-1] for r in train if len(r.states) > 2]
    z, rate = torch.cat([r.states[1:-1] for r in train]), torch.from_numpy(np.concatenate(rates))
    generator = torch.Generator().manual_seed(config.seed)
    rate = rate + BLUR * rate.std(0) * torch.randn(rate.shape, generator=generator, dtype=rate.dtype)
    chosen = _evenly(len(z), RATES)
    with_symmetry, without = (
        learn_symmetry(z[chosen], rate[chosen], family, generator=torch.Generator().manual_seed(config.seed))
        for family in (rep, None)
    )
    gain = with_symmetry.log_evidence - without.log_evidence
    logger.info("group=auto: a symmetric energy has %.1f more log evidence", gain)
    return [with_symmetry.generator] if gain > DECISIVE and with_symmetry.generator is not None else []


def _in_plain_network(config: FitTrajectoriesConfig, train: Sequence[Recording], rep: Rep) -> list[Tensor]:
    task = replace(config.task, group=None, rep=None, generators=None)
    model = replace(config.model, kind="mlp", free_variance=1.0)
    plain = RecordingsFit(replace(config, task=task, model=model, seeds=1, objective="map"))
    for step in range(plain.steps):
        plain.step(step)
    (member,), scaling = plain.members(), plain.scaling
    z = torch.cat([recording.states for recording in train])
    field = lambda z: scaling.scale * member.vector_field(scaling.states(z))  # noqa: E731
    found = discover(field, rep, rep, z[_evenly(len(z), STATES)], largest=LARGEST)
    logger.info("group=auto: %s", found)
    return list(found.generators)


def _evenly(count: int, most: int) -> Tensor:
    return torch.linspace(0, count - 1, min(most, count)).round().long()


def _count(config: FitTrajectoriesConfig, recordings: Recordings) -> int:
    """Numbers of a state that are positions; all where it is not said which are.

    Raises:
        ConfigError: velocities or momenta are not as many.
    """
    names, positions = recordings.names, config.task.positions
    if positions is None:
        return len(names)
    count = sum(name in positions or name.rpartition("[")[0] in positions for name in names)
    if 2 * count != len(names):
        raise ConfigError(f"{count} positions and {len(names) - count} velocities or momenta: give as many of each")
    return count


def _dimension(config: FitTrajectoriesConfig, n: int) -> int:
    """Of the vectors of which ``rep=k*V`` are made where the group is not known."""
    rep = config.task.rep
    if rep is None:
        raise ConfigError("group=auto without rep=: say how many vectors the positions (or the state) are, rep=2*V")
    count = notation.representation("rep", rep, GL(1)).dim
    if n % count:
        raise ConfigError(f"rep={rep}: {n} numbers are no {count} vectors")
    return n // count


def _representations(config: FitTrajectoriesConfig, group: Group | None, recordings: Recordings) -> tuple[Rep, Rep]:
    """Of states and of controls."""
    n, m = len(recordings.names), len(recordings.control_names)
    if group is None:
        trivial = Trivial(1)
        return n * V(trivial), m * V(trivial) if m else V(trivial)
    positions = _count(config, recordings)
    rep = _state_rep(config, group, positions)
    return rep, _vectors(config.task.control_rep, group, m, "control_rep", "controls") if m else V(group)


def _positions(config: FitTrajectoriesConfig, group: Group, recordings: Recordings) -> Rep:
    """Of the positions."""
    n = _count(config, recordings)
    if config.task.group is None or (not config.task.generators and config.task.group == AUTO):
        return n * V(group)
    return _vectors(config.task.rep, group, n, "rep", "positions")


def _state_rep(config: FitTrajectoriesConfig, group: Group, positions: int) -> Rep:
    task = config.task
    rep = _vectors(task.rep, group, positions, "rep", "positions" if task.positions else "the state")
    if task.velocities:
        return rep + rep
    if task.momenta:
        return rep + (rep if group.is_orthogonal else rep.T)
    return rep


def _vectors(text: str | None, group: Group, n: int, key: str, what: str) -> Rep:
    """The representation that a text says, or as many vectors as ``n`` numbers are."""
    vector = V(group)
    if text is None:
        if n % vector.dim:
            raise ConfigError(
                f"group={group}: it acts on vectors of {vector.dim} numbers, and there are {n} in {what}; say how it acts, "
                f"{key}=T(0)+{max(1, (n - 1) // vector.dim)}*V for example"
            )
        return (n // vector.dim) * vector
    rep = notation.representation(key, text, group)
    if rep.dim != n:
        raise ConfigError(
            f"{key}={text}: under {group} it has {rep.dim} numbers, and there are {n} in {what}; make them the same"
        )
    return rep


def _scaling(config: FitTrajectoriesConfig, recordings: Sequence[Recording], rep: Rep, control_rep: Rep) -> Scaling:
    """Units in which states have a spread of one and change by about as much in unit time; pairs of conjugates keep theirs."""
    z = torch.cat([recording.states for recording in recordings])
    normaliser = InvariantNormaliser(rep)
    normaliser.update(z)
    centre, scale = normaliser.mean.double().clone(), normaliser.std.double().clone()
    rates = torch.cat([r.states.diff(dim=0) / r.times.diff()[:, None] for r in recordings])
    seconds = float((rates / scale).square().mean().rsqrt())
    if not 0 < seconds < math.inf:
        raise ConfigError(f"data={config.task.data}: nothing moves in it")
    d = rep.dim // 2
    if config.task.velocities:  # dq/dt = v in scaled units too
        seconds = float((scale[:d] / scale[d:]).log().mean().exp())
        centre[d:], scale[d:] = 0.0, scale[:d] / seconds
    elif config.task.momenta:  # scale_q scale_p is one number, so that Hamilton's equations stay what they are
        scale[d:] = (scale[:d] * scale[d:]).log().mean().exp() / scale[:d]
    m = recordings[0].controls.shape[1]
    if not m:
        return Scaling(centre, scale, seconds, torch.zeros(0).double(), torch.ones(0).double())
    controls = InvariantNormaliser(control_rep)
    controls.update(torch.cat([recording.controls for recording in recordings]))
    return Scaling(centre, scale, seconds, controls.mean.double().clone(), controls.std.double().clone())


def _drive(recording: Recording, scaling: Scaling) -> Drive:
    return Drive(recording.times.diff() / scaling.seconds, scaling.controls(recording.controls))


def _padded(
    recordings: Sequence[Recording], scaling: Scaling, most: int
) -> tuple[Float[Tensor, "N T n"], Drive, Bool[Tensor, "N T"]]:
    """Scaled trajectories of one length: after its end each stands still, in steps of length 0; and where it is known."""
    length = min(max(len(recording.states) for recording in recordings), most + 1)
    states, steps, controls, known = [], [], [], []
    for recording in recordings:
        y, drive = scaling.states(recording.states)[:length], _drive(recording, scaling)
        missing = length - len(y)
        states.append(torch.cat([y, y[-1:].expand(missing, -1)]))
        steps.append(torch.cat([drive.steps[: length - 1], drive.steps.new_zeros(missing)])[: length - 1])
        own = drive.controls[: length - 1]
        controls.append(torch.cat([own, own.new_zeros(length - 1 - len(own), own.shape[1])]))
        known.append(torch.arange(length) < len(y))
    return torch.stack(states), Drive(torch.stack(steps), torch.stack(controls)), torch.stack(known)


def _system(config: FitTrajectoriesConfig, net: nn.Module) -> DynamicsModel:
    match config.model.system:
        case "hamiltonian":
            return HamiltonianModel(net)
        case "separable":
            return HamiltonianModel(_Separated(net), separable=True)
        case "mechanical":
            return MechanicalModel(net)
    return NeuralODEModel(net)


class _Separated(nn.Module):
    """``H(q, p) = N(q, 0) + N(0, p)`` of one network: separable, and as invariant as the network."""

    def __init__(self, net: Any):
        super().__init__()
        self.net = net

    def assemble(self) -> Any:
        return self.net.assemble()

    def forward(self, z: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch 1"]:
        return self._of(self.net, z)

    def apply(self, z: Any, weights: Any = None) -> Any:
        return super().apply(z) if weights is None else self._of(partial(self.net.apply, weights=weights), z)

    @staticmethod
    def _of(net: Any, z: Tensor) -> Tensor:
        q, p = z.chunk(2, -1)
        return net(torch.cat([q, torch.zeros_like(p)], -1)) + net(torch.cat([torch.zeros_like(q), p], -1))


def _solve(model: DynamicsModel, weights: Any, z: Tensor, drive: Drive, substeps: int = 1) -> Trajectories:
    """States after each step, by rk4."""
    times = torch.arange(drive.steps.shape[-1] + 1, dtype=z.dtype, device=z.device)
    driven = DrivenModel(model, drive.steps, drive.controls)
    return integrate(driven, z, times, method="rk4", step=1 / substeps, weights=weights)


def _energy(model: DynamicsModel) -> Any:
    if isinstance(model, MechanicalModel):
        return model.energy
    return model.hamiltonian if isinstance(model, HamiltonianModel) else None


def _variation(energies: Float[Tensor, "N T"], known: Bool[Tensor, "N T"]) -> float:
    """The root mean square of energies about their trajectory's mean, relative to that about the mean of all."""
    E = torch.where(known, energies.detach(), 0.0)
    within = torch.where(known, E - (E.sum(1) / known.sum(1))[:, None], 0.0)
    overall = torch.where(known, E - E.sum() / known.sum(), 0.0)
    return float((within.square().sum() / overall.square().sum()).sqrt())


def _over_time(errors: Float[Tensor, "N T"]) -> list[float] | None:
    """Geometric means over trajectories, as far as all last."""
    if not len(errors):
        return None
    known = ~errors.isnan()
    logs = torch.where(known, errors.clamp_min(1e-300).log(), 0.0)
    means = (logs.sum(0) / known.sum(0).clamp_min(1)).exp()
    return means.tolist()


def _mean(errors: Tensor) -> float:
    """The geometric mean; nan of none."""
    return float(geometric_mean(errors.flatten())) if errors.numel() else math.nan
