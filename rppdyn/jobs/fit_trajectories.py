"""`rppdyn fit-dynamics data=...`: fit vector fields to the user's own trajectories; in Python :func:`fit`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rppdyn.dynamics import (
    Drive,
    DynamicsModel,
    FittedDynamics,
    HamiltonianModel,
    MechanicalModel,
    NeuralODEModel,
    Trajectories,
)
from rppdyn.dynamics._fitted import solve
from rppdyn.equivariance._error import Function
from rppdyn.groups import GL, Group
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError, device_of
from rppdyn.jobs.config.compose import overrides
from rppdyn.jobs.config.fit import FitTrajectoriesConfig
from rppdyn.jobs.fit import build_stack, plain_model, run_fit
from rppdyn.jobs.fit_dynamics import INITIAL_SCALE, DynamicsFit
from rppdyn.jobs.own_data import (
    check_data,
    data_file,
    discover_generators,
    drive_of,
    group_of,
    learn_generator,
    pad_trajectories,
    positions_count,
    representations,
    round_generators,
    scaling_of,
    split_of,
    state_rep,
    take_all_steps,
    vector_size,
    vectors,
)
from rppdyn.jobs.results import FitResult
from rppdyn.reps import Rep, Scalar, V
from rppdyn.tasks import Recording, read_recordings
from rppdyn.tasks._continuity import Log

MECHANICAL_INITIAL_SCALE = 0.01
"""Initial scale of a mechanical model's last layer. With larger weights a nearly singular mass matrix can give one gradient of
1e10 times the usual length, of which Adam's second moments forget a thousandth per step."""
MAX_HELD_OUT_CHUNKS = 500
"""Largest number of chunks for validation, and for the test."""


def run(config: FitTrajectoriesConfig, *, resume: bool = False, progress: bool = False) -> FitResult:
    """Fit the configured models to the user's trajectories, in their run folder.

    Arguments and errors are those of :func:`~rppdyn.jobs.fit.run_fit`.
    """
    return run_fit(config, lambda: RecordingsFit(config).compiled_where_it_gains(), resume=resume, progress=progress)


class RecordingsFit(DynamicsFit):
    """The user's own trajectories and the vector fields fitted to them, one for each seed.

    Attributes:
        recordings: all data, in the user's units.
        splits, scalings: splits and units of each member, the same for all if ``task.split_seed`` is a number.
        group: symmetry group of the networks; None without a symmetry.
        rep, control_rep: representations of states and of controls.
    """

    config: FitTrajectoriesConfig

    def __init__(self, config: FitTrajectoriesConfig):
        self.config, task = config, config.task
        self.recordings = read_recordings(
            task.data, task.columns, controls=task.controls or (), time=task.time, trajectory=task.trajectory
        )
        is_resumed = task.digest is not None
        check_data(config, self.recordings)
        pairs = positions_count(config, self.recordings) if task.velocities else 0
        log = Log(self.recordings, pairs=pairs, unwrap=(task.unwrap or []) if is_resumed else task.unwrap)
        self.recordings, task.unwrap = log.check(judge=not is_resumed), log.unwrapped
        seeds = config.all_seeds if task.split_seed is None else [task.split_seed]
        repeats = config.seeds // len(seeds)
        splits = [split_of(self.recordings, config, seed) for seed in seeds]
        self.dtype, self.device = getattr(torch, config.dtype), device_of(config.device)
        self.group = group_of(task, partial(self._discover_generators, splits[0].train))
        self.rep, self.control_rep = representations(config, self.group, self.recordings)
        scalings = [scaling_of(config, split.train, self.rep, self.control_rep) for split in splits]
        self.splits, self.scalings = splits * repeats, scalings * repeats
        scale = MECHANICAL_INITIAL_SCALE if config.model.system == "mechanical" else INITIAL_SCALE
        stack = build_stack(config, self.rep_in, self.rep_out, scale, plain=self.group is None)
        inputs, states = self._chunks("train", task.most)
        task.windows = inputs.shape[1]
        super().__init__(config, stack, inputs, states[:, :, 1:], by_gradients=config.model.system != "ode")
        self._held_out = {name: self._chunks(name, MAX_HELD_OUT_CHUNKS) for name in ("validation", "test")}

    def _discover_generators(self, train: Sequence[Recording]) -> list[Any]:
        """Generators of the symmetry of trajectories; empty without a symmetry.

        For positions with momenta or velocities one generator is learned with a Hamiltonian, by evidence, from rates of change.
        For other states all generators are discovered in the field of a plain network that is fitted first.
        """
        config = self.config
        if self.recordings.control_names:
            raise ConfigError("group=auto with controls: a symmetry is looked for in systems without; name the group")
        count = positions_count(config, self.recordings)
        family = GL(vector_size(config.task.rep, count))
        rep = state_rep(config, family, count)
        if config.task.positions:
            rates = [np.gradient(r.states.numpy(), r.times.numpy(), axis=0)[1:-1] for r in train if len(r.states) > 2]
            z = torch.cat([r.states[1:-1] for r in train])
            return round_generators(
                learn_generator(z, torch.from_numpy(np.concatenate(rates)), rep, config.seed), family
            )
        split_seed = config.seed if config.task.split_seed is None else config.task.split_seed
        task = replace(config.task, group=None, rep=None, generators=None, split_seed=split_seed)
        model = plain_model(config.model)
        plain = RecordingsFit(replace(config, task=task, model=model, seeds=1, objective="map"))
        field = take_all_steps(plain).predictor().vector_field
        return round_generators(discover_generators(field, rep, rep, torch.cat([r.states for r in train])), family)

    @property
    def rep_in(self) -> Rep:
        """Representation of the network's input: positions for a mechanical model, otherwise a state and controls."""
        if self.config.model.system != "mechanical":
            return self.field_rep
        n = positions_count(self.config, self.recordings)
        if self.group is None:
            return n * V(self.rep.G)
        return vectors(self.config.task.rep, self.rep.G, n, "rep", "positions")

    @property
    def field_rep(self) -> Rep:
        """Representation of the arguments of a vector field: a state and controls."""
        return self.rep + self.control_rep if self.recordings.control_names else self.rep

    @property
    def rep_out(self) -> Rep:
        """Representation of the network's output."""
        match self.config.model.system:
            case "mechanical":
                return MechanicalModel.rep_out(self.rep_in)
            case "ode":
                return self.rep
        return Scalar(self.rep.G)

    def functions(self, group: Group | None = None) -> list[Function]:
        """The vector fields of the members in scaled units; the scaling commutes with the group."""
        if group is not None:
            self.rep, self.control_rep = representations(self.config, group, self.recordings)
        names = dict.fromkeys(self.recordings.names, 1)
        inputs, rep_in = names | dict.fromkeys(self.recordings.control_names, 1), self.field_rep
        return [
            self.vector_field(model, names, rep_in, inputs, seed=seed, samples=self.inputs_of(index))
            for index, (seed, model) in enumerate(zip(self.config.all_seeds, self.members(), strict=True))
        ]

    def _chunks(self, split: str, max_chunks: int) -> tuple[Tensor, Tensor]:
        """Draw chunks of a split, equally many for each member.

        Returns:
            initial states with the steps and controls that follow, ``(members, N, d)``, and states, ``(members, N, chunk + 1,
            n)``.
        """
        chunks = [
            self._chunks_of_member(index, split)
            for index in range(1 if self.splits[0] is self.splits[-1] else self.config.seeds)
        ]
        count, chosen = min(max_chunks, *(len(inputs) for inputs, _ in chunks)), []
        for (inputs, states), seed in zip(chunks, self.config.all_seeds, strict=False):
            seed = seed if self.config.task.split_seed is None else self.config.task.split_seed
            order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))[:count].sort().values
            chosen.append((inputs[order], states[order]))
        return tuple(
            torch.stack(values)
            .to(device=self.device, dtype=self.dtype)
            .expand(self.config.seeds, *(-1,) * (values[0].ndim))
            for values in zip(*chosen, strict=True)
        )  # type: ignore[return-value]

    def _chunks_of_member(self, index: int, split: str) -> tuple[Tensor, Tensor]:
        chunk, scaling, inputs, states = self.config.task.chunk, self.scalings[index], [], []
        for recording in getattr(self.splits[index], split):
            y, drive = scaling.states(recording.states), drive_of(recording, scaling)
            for start in range(0, len(y) - chunk, chunk):
                along = [part[start : start + chunk].flatten() for part in drive]
                inputs.append(torch.cat([y[start], *along]))
                states.append(y[start : start + chunk + 1])
        return torch.stack(inputs), torch.stack(states)

    # -- methods of a fit of vector fields ----------------------------------------------------------------------------

    def system(self, net: nn.Module) -> DynamicsModel:
        match self.config.model.system:
            case "hamiltonian":
                return HamiltonianModel(net)
            case "separable":
                return HamiltonianModel(_Separated(net), separable=True)
            case "mechanical":
                return MechanicalModel(net)
        return NeuralODEModel(net)

    def solve(self, model: DynamicsModel, weights: Any, inputs: Float[Tensor, "*batch d"]) -> Trajectories:
        n, chunk = self.rep.dim, self.config.task.chunk
        z, steps, controls = inputs.split([n, chunk, inputs.shape[-1] - n - chunk], -1)
        return solve(model, weights, z, Drive(steps, controls.unflatten(-1, (chunk, -1))))

    def held_out_chunks(self, split: str) -> tuple[Tensor, Tensor]:
        return self._held_out[split]

    def fields_of(self, index: int) -> tuple[Rep, Tensor] | None:
        return None if self.group is None else (self.field_rep, self.inputs_of(index))

    def inputs_of(self, index: int = 0) -> Float[Tensor, "N d"]:
        """A member's test states and controls in scaled units, the arguments of its vector field."""
        n, first = self.rep.dim, self.rep.dim + self.config.task.chunk
        inputs = self._held_out["test"][0][index].double().cpu()
        return torch.cat([inputs[:, :n], inputs[:, first : first + len(self.recordings.control_names)]], 1)

    @cached_property
    def _test_trajectories(self) -> list[tuple[Tensor, Drive, Bool[Tensor, "m T"]]]:
        """Each member's scaled test trajectories, cut to a common length, with their controls and a mask of known entries."""
        options = self.config.rollout
        tests = [split.test[: options.trajectories] for split in self.splits]
        steps = min(options.steps, *(max(len(r.states) for r in test) - 1 for test in tests))
        return [pad_trajectories(test, scaling, steps) for test, scaling in zip(tests, self.scalings, strict=True)]

    def rollouts(self, members: Sequence[DynamicsModel]) -> Iterable[Trajectories]:
        for member, (y, drive, _) in zip(members, self._test_trajectories, strict=True):
            with torch.no_grad():
                trajectories = solve(member, None, y[:, 0].clone(), drive, self.config.rollout.substeps)
            yield trajectories

    def truth(self, index: int) -> Tensor:
        y, _, known = self._test_trajectories[index]
        return torch.where(known[..., None], y, torch.nan)

    @property
    def times(self) -> list[float]:
        tests = self.splits[0].test[: self.config.rollout.trajectories]
        seconds = float(np.mean([float(r.times.diff().mean()) for r in tests]))
        return [seconds * k for k in range(self._test_trajectories[0][0].shape[1])]

    def further_metrics(self, index: int, member: DynamicsModel, rollouts: Trajectories) -> dict[str, Any]:
        """Measure ``rmse/NAME``, and ``energy/variation`` where the model has an energy.

        ``rmse/NAME`` is the root mean square error over the test chunks, in the user's units. ``energy/variation`` is the
        variation of the model's energy along true trajectories, relative to that over all of them; 0 for a conserved energy.
        """
        inputs, states = (values[index].double().cpu() for values in self._held_out["test"])
        short = self.solve(member, None, inputs)
        errors = (self.scalings[index].scale * (short.states - states)[:, 1:])[~short.diverged]
        names = enumerate(self.recordings.names)
        values = {f"rmse/{name}": float(errors[..., i].square().mean().sqrt()) for i, name in names}
        energy = _energy(member)
        if energy is not None:
            y, _, known = self._test_trajectories[index]
            values["energy/variation"] = _variation(energy(y), known)
        return values

    def example_of(self, rollouts: Trajectories) -> dict[str, Any]:
        """A test trajectory in the user's units."""
        first, known = self.splits[0].test[0], self._test_trajectories[0][2][0]
        length = int(known.sum())
        return {
            "names": self.recordings.names,
            "times": (first.times - first.times[0])[:length].tolist(),
            "truth": first.states[:length].tolist(),
            "found": self.scalings[0].back(rollouts.states[0])[:length].tolist(),
        }

    def predictor(self) -> FittedDynamics:
        """The models in the user's units."""
        step = max(float(r.times.diff().max()) for r in self.recordings.trajectories)
        return FittedDynamics(
            self.members(), self.scalings, self.rep, self.recordings.names, self.recordings.control_names, step
        )


def fit(data: str | os.PathLike[str] | Mapping[str, Any], **options: Any) -> FittedDynamics:
    """Fit models to trajectories and return them, without a run folder.

        model = fit("swing.csv", state=["x", "v"], group="O(1)", rep="2*V", seeds=5)
        model.predict([0.1, 0.0], [0.0, 0.1, 0.2])

    Args:
        data: a file, a folder, a Minari dataset, or arrays by name; see :func:`rppdyn.tasks.read_recordings`.
        options: keys of ``rppdyn fit-dynamics data=...`` without the section ``task.``, such as ``state=``, ``group=``,
            ``seeds=``, and with ``__`` for a dot, ``optimiser__epochs=100``.
    """
    with data_file(data) as file:
        subject = RecordingsFit(compose.composed("fit_trajectories", overrides("fit_dynamics", data=file, **options)))
    return take_all_steps(subject).predictor()


class _Separated(nn.Module):
    """``H(q, p) = N(q, 0) + N(0, p)`` with one network ``N``: separable, and as invariant as the network."""

    def __init__(self, net: Any):
        super().__init__()
        self.net = net

    def assemble(self) -> Any:
        return self.net.assemble()

    def forward(self, z: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch 1"]:
        return self._evaluate(self.net, z)

    def apply(self, z: Any, weights: Any = None) -> Any:
        return super().apply(z) if weights is None else self._evaluate(partial(self.net.apply, weights=weights), z)

    @staticmethod
    def _evaluate(net: Any, z: Tensor) -> Tensor:
        q, p = z.chunk(2, -1)
        return net(torch.cat([q, torch.zeros_like(p)], -1)) + net(torch.cat([torch.zeros_like(q), p], -1))


def _energy(model: DynamicsModel) -> Any:
    if isinstance(model, MechanicalModel):
        return model.energy
    return model.hamiltonian if isinstance(model, HamiltonianModel) else None


def _variation(energies: Float[Tensor, "N T"], known: Bool[Tensor, "N T"]) -> float:
    """Root mean square of energies about the mean of their trajectory, relative to that about the overall mean."""
    E = torch.where(known, energies.detach(), 0.0)
    within = torch.where(known, E - (E.sum(1) / known.sum(1))[:, None], 0.0)
    overall = torch.where(known, E - E.sum() / known.sum(), 0.0)
    return float((within.square().sum() / overall.square().sum()).sqrt())
