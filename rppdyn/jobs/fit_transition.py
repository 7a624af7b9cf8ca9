"""`rppdyn fit-transition`: fit models of an environment's transitions to a dataset, several seeds in one process."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rppdyn.agents.buffers import GroupMatrices, refuse_changed_rewards
from rppdyn.dynamics import Step, TransitionModel
from rppdyn.dynamics._fitted import as_type_of, combine_members
from rppdyn.dynamics._transition import INITIAL_SCALE
from rppdyn.envs import SymmetrySpec, read_episodes, symmetry_spec
from rppdyn.envs._catalogue import terms_spec
from rppdyn.envs._episodes import Segments, check_log, draw_chunks, transition_data
from rppdyn.equivariance._error import Function, geometric_mean, index_blocks, measured_networks, relative_difference
from rppdyn.groups import Group
from rppdyn.jobs import building
from rppdyn.jobs.building import certify_variance
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError, device_of
from rppdyn.jobs.config.fit import FitTransitionConfig
from rppdyn.jobs.fit import LAPLACE, FitLoss, StackFit, build_stack, equivariance_metrics, load_members, run_fit, widest
from rppdyn.jobs.own_data import Arrays
from rppdyn.jobs.results import FitResult, values_by_name
from rppdyn.jobs.targets import blocks
from rppdyn.nn import Chained, Ensemble
from rppdyn.runs import RunFolder, RunFolderError
from rppdyn.runs.files import write_json
from rppdyn.runs.workers import stream

HORIZONS = (10, 30, 100)
PUBLISHED_INITIAL_ERROR = 1e-7
"""Error of the initial state in the published protocol."""
MAX_GROWTH = 1e6
"""A trajectory diverges if an entry exceeds the largest of the data by this factor."""
MAX_COMPARED_ELEMENTS = 8
"""Largest number of group elements under which rollouts are compared."""


def run(config: FitTransitionConfig, *, resume: bool = False, progress: bool = False, trust: bool = False) -> FitResult:
    """Fit the configured models into their run folder.

    Other arguments and errors are those of :func:`~rppdyn.jobs.fit.run_fit`.

    Args:
        trust: whether a module that the dataset names may be imported to make its environment.
    """
    return run_fit(config, partial(Transition, config, trust=trust), resume=resume, progress=progress)


class Transition(StackFit):
    """The configured dataset and the models fitted to it; chunks, initial weights and batches depend on the seed.

    Attributes:
        curves: for the test trajectories ``error`` over steps of each seed, and ``components``, the median absolute error of
            each feature at the horizons in units of its standard deviation; set by :meth:`test`.
    """

    config: FitTransitionConfig

    def __init__(self, config: FitTransitionConfig, *, trust: bool = False):
        self.config = config
        task = config.task
        dataset = read_episodes(config.dataset or "", trust=trust)
        with closing(dataset.env()) as env:
            if config.spec is not None:
                self.spec = terms_spec(env, config.spec, symmetry=config.symmetry)
            else:
                self.spec = symmetry_spec(env, symmetry=config.symmetry, variant=config.variant)
            if RunFolder(config.folder()).is_vacant():
                check_log(dataset.name, dataset.episodes, env, self.spec.obs_names)
            width = widest(config.model.hidden, self.spec.group)
            certify_variance(
                config.model, RunFolder(config.folder()), env, self.spec, width, reward=config.model.reward
            )
        if config.model.reward:
            _check_rewards(config, self.spec)
        self.data = transition_data(
            dataset, self.spec, held_out=task.held_out, trajectories=task.trajectories, length=task.length
        )
        chunks_of_members = [
            draw_chunks(dataset, self.spec, self.data.train, task.chunks, task.chunk, seed) for seed in config.all_seeds
        ]
        states = torch.stack([chunks.states for chunks in chunks_of_members])
        actions = torch.stack([chunks.actions for chunks in chunks_of_members])
        self.dtype, self.device = getattr(torch, config.dtype), device_of(config.device)
        stack = build_networks(config, self.spec)
        self.model = build_model(config, self.spec, stack).to(device=self.device, dtype=self.dtype)
        reward = torch.stack([chunks.rewards for chunks in chunks_of_members]) if config.model.reward else None
        self.model.observe(states[..., :-1, :], actions, states[..., 1:, :], reward)
        self.images = GroupMatrices(self.spec, torch.empty(0, dtype=self.dtype, device=self.device))
        inputs, targets = torch.cat([states[..., :-1, :], actions], -1), states[..., 1:, :]
        if reward is not None:
            targets = torch.cat([targets, reward.unsqueeze(-1)], -1)
        n = self.spec.feature_dim
        units = torch.cat([self.model.states.std, self.model.changes.std[n:]])  # of the errors of rollouts
        self.units = (torch.ones_like(units) if config.model.gaussian else units).to(self.device, self.dtype)
        inputs, targets = (t.to(device=self.device, dtype=self.dtype) for t in (inputs, targets))
        super().__init__(config, stack, inputs, targets / self.units, likelihood=self._likelihood())
        self.curves: dict[str, Any] = {}

    @property
    def module(self) -> TransitionModel:
        """The model, with its stack and its statistics."""
        return self.model

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"statistics": _statistics(self.model)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "statistics" in state:
            self._check_data(state["statistics"])
        super().load_state_dict(state)

    def _check_data(self, statistics: dict[str, Tensor]) -> None:
        """Refuse other data than those the run was fitted to."""
        if not _are_equal(statistics, _statistics(self.model)):
            raise RunFolderError(
                f"{self.config.folder()}: dataset {self.config.dataset} is not what this run was fitted to: put that back, or "
                "fit again with another run_dir="
            )

    def _likelihood(self) -> FitLoss:
        n, reward = self.spec.feature_dim, self.config.model.reward
        if self.config.model.gaussian:

            def nll(step: Step, targets: Tensor) -> Tensor:
                return -self.model.log_likelihood(step, targets[..., :n], targets[..., n] if reward else None)

            return FitLoss("nll", nll, torch.ones_like)
        return LAPLACE

    def _predict(self, model: TransitionModel, weights: Any, inputs: Float[Tensor, "*batch T in"]) -> Any:
        n = self.spec.feature_dim
        if self.config.model.gaussian:  # a single step from each state of the chunk
            return model.step(inputs[..., :n], inputs[..., n:], weights)
        states, rewards = model.rollout(inputs[..., 0, :n], inputs[..., n:], weights)
        return (states if rewards is None else torch.cat([states, rewards.unsqueeze(-1)], -1)) / self.units

    def predict(self, inputs: Tensor) -> Any:
        return self._predict(self.model, self.model.assemble(), inputs)

    def predict_one(self, net: Any, inputs: Tensor) -> Tensor:
        return self._predict(self._member(Chained(net)), None, inputs)

    def predict_each(self, stack: Ensemble, weights: Any, inputs: Tensor) -> Tensor:
        return self._predict(self._member(stack), weights, inputs.unsqueeze(1)).squeeze(1)

    def _member(self, net: Any) -> TransitionModel:
        """The model of a network, with the common statistics."""
        member = build_model(self.config, self.spec, net)
        for name in ("states", "actions", "changes"):
            getattr(member, name).load_state_dict(getattr(self.model, name).state_dict())
        return member.to(self.device, self.dtype)

    def prepare(self, inputs: Tensor, targets: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Transform chunks by random elements of the group, one for each chunk."""
        if not self.config.task.augment:
            return inputs, targets
        n = self.spec.feature_dim
        index = torch.stack(
            [self.images.draw(inputs.shape[1], stream(seed, step), identity=True) for seed in self.config.all_seeds]
        )
        states, actions = (maps[index.to(maps.device)].mT for maps in (self.images.obs_maps, self.images.action_maps))
        moved = torch.cat([targets[..., :n] @ states, targets[..., n:]], -1)  # rewards are invariant
        return torch.cat([inputs[..., :n] @ states, inputs[..., n:] @ actions], -1), moved

    def members(self) -> list[TransitionModel]:
        """The models in their present state, in float64 on the CPU."""
        members = [self._member(self.stack.member(index)) for index in range(self.stack.members)]
        return [member.double().cpu().requires_grad_(False) for member in members]

    @classmethod
    def load(cls, config: FitTransitionConfig, folder: RunFolder, *, trust: bool = False) -> Transition:
        transition = cls(replace(config, device="cpu"), trust=trust)
        present = _statistics(transition.model)
        load_members(transition.module, folder)
        transition._check_data(present)
        return transition

    def predictor(self) -> FittedTransitions:
        return FittedTransitions(self.model.cpu(), self.spec)

    def functions(self, group: Group | None = None) -> list[Function]:
        """The learned change of the state of each member, as a function of state and action."""
        if group is not None:
            raise ConfigError(
                f"--group {group}: a transition model is measured under its environment's symmetry; leave it out, or fit with "
                "another symmetry="
            )
        spec, test, n = self.spec, self.data.test, self.spec.feature_dim
        samples = torch.cat([test.states[:, :-1], test.actions], -1).flatten(0, 1)
        reps = TransitionModel.rep_in(spec.obs_rep, spec.action_rep), spec.obs_rep
        changes = {f"change of {name}": indices for name, indices in blocks(spec.obs).items()}
        names = index_blocks(dict.fromkeys((*spec.feature_names, *spec.action_names), 1)), changes

        def function(seed: int, model: TransitionModel) -> Function:
            weights = model.assemble()
            call = lambda z: model.change(z[..., :n], z[..., n:], weights)  # noqa: E731
            inputs = lambda z: torch.cat([model.states(z[..., :n]), model.actions(z[..., n:])], -1)  # noqa: E731
            networks = measured_networks("network", model.net, inputs, reps[0])
            return Function("change of the state", call, *reps, *names, networks=networks, seed=seed, samples=samples)

        return [*map(function, self.config.all_seeds, self.members())]

    def metrics(self) -> dict[str, Any]:
        members = self.members()
        metrics: dict[str, Any] = {
            f"{split}/error": [float(geometric_mean(self._errors(m, part).flatten())) for m in members]
            for split, part in (("validation", self.data.validation), ("test", self.data.test))
        }
        metrics["equivariance/error"] = [self._equivariance(m)["error"] for m in members]
        return metrics

    def _errors(self, member: TransitionModel, truth: Segments) -> Float[Tensor, "n T"]:
        """Relative errors of the features along rollouts, at each step but the first; 1 for nan."""
        return relative_difference(_roll_out(member, truth), truth.states[:, 1:]).nan_to_num(1.0)

    def _equivariance(self, member: TransitionModel) -> dict[str, float]:
        """Equivariance errors of the learned change of the state, at states of the test trajectories."""
        x, u = self.data.test.states[:, :-1].flatten(0, 1), self.data.test.actions.flatten(0, 1)
        stride = max(1, len(x) // self.config.evaluation.states)
        inputs, n = torch.cat([x, u], -1)[::stride], x.shape[-1]
        weights = member.assemble()
        reps = TransitionModel.rep_in(self.spec.obs_rep, self.spec.action_rep), self.spec.obs_rep
        return equivariance_metrics(lambda z: member.change(z[..., :n], z[..., n:], weights), *reps, inputs)

    def _equivariance_of_rollouts(self, member: TransitionModel) -> float:
        """The geometric mean of Eq. 3.3 for states along rollouts, over steps, trajectories and group elements."""
        truth = self.data.test
        rollout = _roll_out(member, truth)
        errors, elements = [], list(zip(self.images.obs_maps, self.images.action_maps, strict=True))
        for rho_x, rho_u in elements[1 : 1 + MAX_COMPARED_ELEMENTS]:
            rho_x, rho_u = rho_x.double().cpu(), rho_u.double().cpu()
            turned = replace(truth, states=truth.states @ rho_x.mT, actions=truth.actions @ rho_u.mT)
            moved = _roll_out(member, turned)
            errors.append(relative_difference(moved, rollout @ rho_x.mT).nan_to_num(1.0))
        return float(geometric_mean(torch.stack(errors).flatten())) if errors else float("nan")

    def test(self) -> dict[str, Any]:
        """Measure the members' rollouts of the test trajectories, in lists with one value per seed.

        ``test/error_h`` is the geometric mean of the relative error of the features over the first ``h`` steps and all
        trajectories. ``rollout/diverged`` is the share of trajectories that leave all bounds, whose error counts as 1.
        ``equivariance/error`` measures the learned change, ``equivariance/rollout`` the states along rollouts.
        """
        measured: list[dict[str, Any]] = []
        truth, length = self.data.test, self.config.task.length
        horizons = [h for h in HORIZONS if h <= length] or [length]
        std = self.model.states.std.double().cpu()
        components = []
        self.curves = {"times": list(range(length + 1)), "error": []}
        for member in self.members():
            errors, rollout = self._errors(member, truth), _roll_out(member, truth)
            self.curves["error"].append(geometric_mean(errors).tolist())
            if self.config.evaluation.protocol == "published":
                errors = torch.cat([errors.new_full((len(errors), 1), PUBLISHED_INITIAL_ERROR), errors], 1)
            values: dict[str, Any] = {
                f"test/error_{h}": float(geometric_mean(errors[:, :h].flatten())) for h in horizons
            }
            values["validation/error"] = float(geometric_mean(self._errors(member, self.data.validation).flatten()))
            bounded = rollout.abs().amax((-1, -2)) < MAX_GROWTH * truth.states.abs().amax()  # nan is not
            values["rollout/diverged"] = float((~bounded).double().mean())
            values |= {f"equivariance/{name}": value for name, value in self._equivariance(member).items()}
            values["equivariance/rollout"] = self._equivariance_of_rollouts(member)
            deviations = ((rollout - truth.states[:, 1:]).abs() / std).nan_to_num(nan=torch.inf)
            components.append([deviations[:, h - 1].quantile(0.5, 0).tolist() for h in horizons])
            measured.append(values)
        self.curves["components"] = {
            "names": list(self.spec.feature_names),
            "horizons": horizons,
            "errors": np.median(components, axis=0).tolist(),
        }
        return values_by_name(measured)

    def save(self, folder: RunFolder) -> None:
        building.save_spec(folder, self.spec)
        write_json(folder.path / "rollouts.json", self.curves)


class FittedTransitions:
    """A fitted transition model between raw observations and actions.

    Attributes:
        model: model of features, an ensemble with one member per seed.
        spec: spec of the environment, which encodes observations as features.
    """

    def __init__(self, model: TransitionModel, spec: SymmetrySpec):
        assert isinstance(model.net, Ensemble)
        self.model, self.spec, self.members = model.double(), spec, model.net.members
        self.sizes = spec.obs.dim, spec.action.dim

    def predict(self, observation: Arrays, action: Arrays, *, members: str = "mean") -> Any:
        """Predict the next observation, ``(*batch, n)``: the mean over members, or "all" along a new first axis."""
        action = torch.as_tensor(action, dtype=torch.float64)
        after = self.rollout(torch.as_tensor(observation, dtype=torch.float64), action.unsqueeze(-2), members=members)
        return as_type_of(observation, after.squeeze(-2))

    @torch.no_grad()
    def rollout(self, observation: Arrays, actions: Arrays, *, members: str = "mean") -> Any:
        """Predict the observations after each action, ``(*batch, T, n)``; each member continues from its own states.

        Args:
            actions: ``(*batch, T, m)``.
        Raises:
            ValueError: the sizes are not those of the environment.
        """
        x, u = (torch.as_tensor(values, dtype=torch.float64) for values in (observation, actions))
        if (x.shape[-1], u.shape[-1]) != self.sizes:
            raise ValueError(
                f"observations of shape {tuple(x.shape)} and actions of {tuple(u.shape)}: {self.spec.env_id} has "
                f"{self.sizes[0]} and {self.sizes[1]} entries"
            )
        features, count = self.spec.encode(x), self.members
        rows = features.reshape(1, -1, features.shape[-1]).expand(count, -1, -1)
        steps = u.reshape(1, -1, *u.shape[-2:]).expand(count, -1, -1, -1)
        states = self.model.rollout(rows, steps).states.reshape(count, *u.shape[:-1], -1)
        observations = torch.as_tensor(self.spec.decode(combine_members(states, members)))
        return as_type_of(observation, observations)

    def __repr__(self) -> str:
        return f"FittedTransitions({self.spec.env_id}; {self.members} members under {self.spec.group})"


@torch.no_grad()
def _roll_out(member: TransitionModel, truth: Segments) -> Float[Tensor, "n T f"]:
    return member.rollout(truth.states[:, 0], truth.actions)[0]


def _check_rewards(config: FitTransitionConfig, spec: SymmetrySpec) -> None:
    """Refuse to learn rewards by a strict network or with augmentation if the symmetry changes rewards."""
    if config.task.augment:
        refuse_changed_rewards(spec, "task.augment=true with model.reward=true")
    changed = [symmetry.name for symmetry in spec.symmetries if symmetry.reward_symmetric is False]
    if config.model.kind == "emlp" and changed:
        raise ConfigError(
            f"{spec.env_id}: model.reward=true with model=emlp: its rewards are the same under {changed[0]!r}, and true ones "
            "change; use model=rpp or mlp, choose a symmetry that keeps the reward, or leave out model.reward"
        )


def _statistics(model: TransitionModel) -> dict[str, Tensor]:
    """The statistics of the data in a model's normalisers."""
    parts = {name: getattr(model, name).state_dict() for name in ("states", "actions", "changes")}
    return {f"{part}.{name}": value.clone() for part, state in parts.items() for name, value in state.items()}


def _are_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Return whether statistics are equal up to rounding, relative to the largest mean or deviation of a normaliser."""
    if first.keys() != second.keys():
        return False
    sizes: dict[str, float] = {}
    for name, value in first.items():
        if name.endswith((".mean", ".std")):
            part = name.partition(".")[0]
            sizes[part] = max(sizes.get(part, 0.0), float(value.abs().max()))
    return all(
        value.shape == second[name].shape
        and torch.allclose(
            value.double().cpu(), second[name].double().cpu(), 1e-6, 1e-9 * sizes[name.partition(".")[0]]
        )
        for name, value in first.items()
    )


def build_networks(config: FitTransitionConfig, spec: SymmetrySpec) -> Ensemble:
    """Build the networks of the configured model, one for each seed."""
    rep_in = TransitionModel.rep_in(spec.obs_rep, spec.action_rep)
    rep_out = TransitionModel.rep_out(spec.obs_rep, config.model.gaussian, config.model.reward)
    return build_stack(config, rep_in, rep_out, INITIAL_SCALE, spec.generator_names)


def build_model(config: FitTransitionConfig, spec: SymmetrySpec, net: Any) -> TransitionModel:
    """Build the configured model of a network or a stack, without statistics."""
    return TransitionModel(
        net,
        spec.obs_rep,
        spec.action_rep,
        gaussian=config.model.gaussian,
        reward=config.model.reward,
        rotations=spec.obs.encoding.rotations,
        circles=spec.obs.encoding.circles,
    )


def load_transition_model(run: str | os.PathLike[str]) -> tuple[TransitionModel, SymmetrySpec]:
    """Load a finished run's model, an ensemble with one member per seed, and the spec that encodes its states.

    Neither the dataset nor the environment is needed.

    Raises:
        RunFolderError: the folder is no such run, the run is unfinished, or its files are damaged.
    """
    folder = RunFolder.open(run)
    config = compose.from_run("fit_transition", folder)
    spec = building.load_spec(folder)
    if spec is None and folder.result() is not None:
        raise RunFolderError(
            f"{folder.path}: spec.json is missing: delete {folder.result_file}, and use --resume {folder.path} to write both "
            "again"
        )
    if spec is None:
        raise RunFolderError(f"{folder.path} is unfinished: let it go on with --resume {folder.path}")
    model = build_model(config, spec, build_networks(config, spec))
    load_members(model, folder)
    return model, spec
