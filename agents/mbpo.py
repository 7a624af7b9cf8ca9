"""RPPMBPO: soft actor-critic on short rollouts of a learned transition model (model-based policy optimisation)."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from stable_baselines3.common.type_aliases import GymEnv
from torch import Tensor

from rppdyn.agents.buffers import Batches, transitions_at
from rppdyn.agents.checks import check_finite
from rppdyn.agents.equivariance import AgentEquivarianceError, dynamics_equivariance_error
from rppdyn.agents.networks import draw_noise, in_precision, new_generator, sample_action
from rppdyn.agents.policy import pathway_statistics
from rppdyn.agents.sac import RPPSAC
from rppdyn.dynamics import TransitionModel
from rppdyn.dynamics.transition import INITIAL_SCALE
from rppdyn.envs import Termination, termination
from rppdyn.nn import EMLP, MLP, RPPEMLP, Stack
from rppdyn.priors import negative_log_prior

NETWORKS = {"rpp": RPPEMLP, "emlp": EMLP, "mlp": MLP}

DYNAMICS = dict(hidden=200, num_layers=3, equivariant_variance=1e6, free_variance=3.0, learning_rate=1e-3)
"""Arguments of the model's networks, and the learning rate of their optimiser."""


COUNTS = ("members", "model_every", "model_steps", "rollouts", "model_batch_size", "rollout_length", "kept_fits")
"""Arguments of `RPPMBPO` that are at least 1."""


class Transitions(NamedTuple):
    """Transitions with features in place of observations; ``dones`` are 1 where an episode ends."""

    states: Tensor
    actions: Tensor
    rewards: Tensor
    after: Tensor
    dones: Tensor


class ModelBatches(Batches):
    """Batches of which a share is from the replay buffer, and the rest made up by the agent's model."""

    agent: RPPMBPO

    def _sample(self, batch_size: int) -> dict[str, Tensor]:
        real_ratio = self.agent.real_ratio
        real = max(1, round(real_ratio * batch_size)) if real_ratio > 0 else 0
        from_model = self._sample_model(batch_size - real)
        if not real:
            return from_model
        return {name: torch.cat([values, from_model[name]]) for name, values in super()._sample(real).items()}

    def _sample_model(self, count: int) -> dict[str, Tensor]:
        parts = self.agent._model_transitions
        sizes = torch.tensor([len(part.rewards) for part in parts])
        rows = torch.randint(int(sizes.sum()), (count,), generator=self.agent._dynamics_generator)
        starts = sizes.cumsum(0) - sizes
        which = torch.searchsorted(sizes.cumsum(0), rows, right=True)
        chosen = [
            Transitions(*(values[(rows[which == k] - starts[k]).to(values.device)] for values in part))
            for k, part in enumerate(parts)
        ]
        data = Transitions(*(torch.cat(values) for values in zip(*chosen, strict=True)))
        normalise = self.agent.policy.features_extractor.normaliser
        dtype = data.states.dtype
        return {
            "features": normalise(data.states).to(dtype),
            "next_features": normalise(data.after).to(dtype),
            "actions": data.actions,
            "rewards": data.rewards,
            "dones": data.dones,
        }


class RPPMBPO(RPPSAC):
    r"""RPP-SAC whose batches come mostly from branched rollouts of an ensemble (Janner, Fu, Zhang & Levine 2019).

        model = RPPMBPO("RPPPolicy", "Swimmer-v5", seed=0).learn(20_000)

    Every ``model_every`` steps of the environment the ensemble is fitted to the replay buffer for ``model_steps`` steps of
    Adam, one batch for each member: the negative log-likelihood of next state and reward plus the pathways' priors.
    Then ``rollouts`` states of the buffer are each followed for ``rollout_length`` steps by the policy in one of the members,
    drawn with its standard deviation. A share ``real_ratio`` of each batch is real. The model has the policy's symmetry;
    where that is exact its members commute with it, so imagined transitions are as likely as their images.

    Departures from the paper: members train for a fixed number of steps, not until a held-out loss stops falling, and all of
    them are used, not the best five of seven; rollouts have one length throughout.

    Args:
        dynamics: which pathways the model has: "rpp", "emlp" or "mlp".
        dynamics_kwargs: arguments of its networks that differ from `DYNAMICS` (hidden, num_layers, equivariant_variance,
            free_variance), and Adam's learning_rate.
        members: the size of the ensemble.
        model_every: steps of the environment between fits.
        model_steps, model_batch_size: the number of Adam's steps in a fit, and their batch size.
        rollouts, rollout_length: number and length of the rollouts after each fit.
        kept_fits: number of fits whose rollouts are kept.
        real_ratio: share of each batch that is from the environment.
        terminates: whether an episode ends at raw observations; None for the rule of the environment
            (:func:`rppdyn.envs.termination`).
        *args, **kwargs: further arguments, see `RPPSAC`.
    Raises:
        ValueError: as RPPSAC's; a number that makes no sense; n-step returns, or rewards that VecNormalize scales, which the
            model does not know; an environment whose rule of termination is unknown, without `terminates`.
    """

    batches_class = ModelBatches
    _network_arguments = (*RPPSAC._network_arguments, "dynamics", "dynamics_kwargs", "members")

    def __init__(
        self,
        *args: Any,
        dynamics: str = "rpp",
        dynamics_kwargs: Mapping[str, Any] | None = None,
        members: int = 5,
        model_every: int = 250,
        model_steps: int = 500,
        model_batch_size: int = 256,
        rollouts: int = 10_000,
        rollout_length: int = 1,
        kept_fits: int = 4,
        real_ratio: float = 0.05,
        terminates: Termination | None = None,
        _init_setup_model: bool = True,
        **kwargs: Any,
    ) -> None:
        if dynamics not in NETWORKS:
            raise ValueError(f"dynamics={dynamics!r} is not one of {', '.join(NETWORKS)}")
        if unknown := sorted(set(dynamics_kwargs or {}) - set(DYNAMICS)):
            raise ValueError(f"dynamics_kwargs has {unknown[0]!r}; it takes {', '.join(DYNAMICS)}")
        self.dynamics_kwargs = {"kind": dynamics} | DYNAMICS | dict(dynamics_kwargs or {})
        self.members, self.model_every, self.model_steps = members, model_every, model_steps
        self.model_batch_size, self.rollouts, self.rollout_length = model_batch_size, rollouts, rollout_length
        self.kept_fits, self.real_ratio = kept_fits, real_ratio
        self.terminates = terminates
        super().__init__(*args, _init_setup_model=_init_setup_model, **kwargs)

    def _setup_model(self) -> None:
        for name in COUNTS:
            if (count := getattr(self, name)) < 1:
                raise ValueError(f"{name}={count} must be at least 1")
        if not 0 <= self.real_ratio <= 1:
            raise ValueError(f"real_ratio={self.real_ratio} must be between 0 and 1")
        if self.n_steps != 1:
            raise ValueError(f"n_steps={self.n_steps}: a model's transitions are single steps; leave it out")
        super()._setup_model()
        spec, options = self.spec, dict(self.dynamics_kwargs)
        cls, learning_rate = NETWORKS[options.pop("kind")], options.pop("learning_rate")
        if cls is not RPPEMLP:  # one pathway has one variance
            options.pop("free_variance" if cls is EMLP else "equivariant_variance")
        x, u = spec.obs_rep, spec.action_rep
        reps = TransitionModel.rep_in(x, u), TransitionModel.rep_out(x, gaussian=True, reward=True)
        generator = new_generator()
        nets = [
            cls(*reps, spec.group, output_scale=INITIAL_SCALE, generator=generator, **options)
            for _ in range(self.members)
        ]
        self._ensemble = Stack(nets)
        self.dynamics = TransitionModel(
            self._ensemble,
            x,
            u,
            gaussian=True,
            reward=True,
            rotations=spec.obs.encoding.rotations,
            circles=spec.obs.encoding.circles,
        ).to(self.device)
        self.dynamics_optimiser = torch.optim.Adam(self._ensemble.parameters(), lr=learning_rate)
        self._dynamics_generator = new_generator()
        self._model_transitions: deque[Transitions] = deque(maxlen=self.kept_fits)
        self._stored = self._seen = self._fitted_at = 0  # steps: in the buffer, in the statistics, at the last fit
        if self.env is not None:
            self._check_env()

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """Change the environment, see `RPPSAC.set_env`.

        Raises:
            ValueError: rewards that VecNormalize scales; a rule of termination that is unknown.
        """
        super().set_env(env, force_reset)
        self._check_env()

    def _check_env(self) -> None:
        if self._vec_normalize_env is not None and self._vec_normalize_env.norm_reward:
            raise ValueError("VecNormalize scales rewards, which a model of them would not know; use norm_reward=False")
        self._ends()

    def _ends(self) -> Termination:
        if self.terminates is not None:
            return self.terminates
        envs = None if self.env is None else getattr(self.env.unwrapped, "envs", None)
        if not envs:
            raise ValueError(
                "environments in other processes don't say when they end; give terminates=, or use DummyVecEnv"
            )
        return termination(envs[0])

    # -- the model ----------------------------------------------------------------------------------------------------

    def _store_transition(self, *args: Any, **kwargs: Any) -> None:
        super()._store_transition(*args, **kwargs)
        self._stored += 1

    def _transitions(self, rows: Tensor) -> Transitions:
        """Transitions of the replay buffer by number, over steps and environments."""
        data = transitions_at(self.replay_buffer, rows)
        states, after = (self.spec.encode(data[name]) for name in ("observations", "next_observations"))
        dones = data["dones"] * (1 - data["timeouts"])
        like = self.policy.features_extractor.like
        return Transitions(*(t.to(like) for t in (states, data["actions"], data["rewards"], after, dones)))

    def fit_dynamics(self) -> dict[str, float]:
        """Fit the ensemble to the replay buffer, from where it stands; the mean loss over the last tenth of the steps."""
        size = self.replay_buffer.size()
        new = min(self._stored - self._seen, size)
        rows = (self.replay_buffer.pos - new + torch.arange(new)) % self.replay_buffer.buffer_size
        fresh = self._transitions((rows[:, None] * self.n_envs + torch.arange(self.n_envs)).flatten())
        self.dynamics.observe(fresh.states, fresh.actions, fresh.after, fresh.rewards)
        self._seen = self._fitted_at = self._stored
        count, losses = size * self.n_envs, []
        for _ in range(self.model_steps):
            rows = torch.randint(count, (self.members, self.model_batch_size), generator=self._dynamics_generator)
            data = self._transitions(rows)
            step = self.dynamics.step(data.states, data.actions)
            entries = -self.dynamics.log_likelihood(step, data.after, data.rewards)
            nll = entries.sum(-1).mean(-1)
            prior = self._ensemble.per_member(negative_log_prior) / count
            self.dynamics_optimiser.zero_grad(set_to_none=True)
            (nll + prior).sum().backward()
            self.dynamics_optimiser.step()
            losses.append(nll.detach().mean() / entries.shape[-1])
        metrics = {"model/nll": float(torch.stack(losses[-max(1, len(losses) // 10) :]).mean())}
        check_finite(self, metrics)
        return metrics

    @torch.no_grad()
    def imagine(self) -> Transitions:
        """Branched rollouts from states of the replay buffer, those steps whose episode had not ended before."""
        each = -(-self.rollouts // self.members)
        rows = torch.randint(
            self.replay_buffer.size() * self.n_envs, (self.members, each), generator=self._dynamics_generator
        )
        states, weights, ends = self._transitions(rows).states, self.dynamics.assemble(), self._ends()
        alive, parts = torch.ones(states.shape[:-1], dtype=torch.bool, device=self.device), []
        for _ in range(self.rollout_length):
            actions = self._explore(states)
            step = self.dynamics.step(states, actions, weights)
            assert step.log_std is not None and step.reward is not None  # as the model was built
            noise = draw_noise(step.log_std.shape, self._dynamics_generator, states) * step.log_std.exp()
            after = self.dynamics.project(step.mean + noise[..., :-1])
            ended = ends(self.spec.decode(after))
            rewards = step.reward + noise[..., -1]
            usable = alive & after.isfinite().all(-1) & rewards.isfinite()
            parts.append(Transitions(*(t[usable] for t in (states, actions, rewards, after, ended.to(states.dtype)))))
            states, alive = after, usable & ~ended
        return Transitions(*(torch.cat(values) for values in zip(*parts, strict=True)))

    def _explore(self, states: Tensor) -> Tensor:
        output = self.actor.net(self.policy.features_extractor.normaliser(states).to(states.dtype))
        noise = draw_noise((*states.shape[:-1], self.actor.action_space.shape[0]), self._dynamics_generator, states)
        return sample_action(output, noise, self.actor.blocks)

    @property
    def parts(self) -> dict[str, torch.nn.Module]:
        """Networks that are trained, by name, the model of the dynamics among them."""
        return super().parts | {"dynamics": self.dynamics}

    def change_function(self, dtype: torch.dtype | None) -> Callable[[Tensor, Tensor], Tensor]:
        """Raw observations and actions to what the model as it stands adds to the features, its members' mean, on the CPU.

        Args:
            dtype: the precision in which the networks are evaluated; None leaves their own.
        """
        spec, high = self.spec, torch.as_tensor(self.action_space.high, dtype=torch.float64)
        dynamics = self.dynamics if dtype is None else in_precision(self.dynamics, dtype)
        like, weights = next(dynamics.parameters()), dynamics.assemble()

        def change(obs: Tensor, actions: Tensor) -> Tensor:
            x, u = (t.to(like).expand(self.members, -1, -1) for t in (spec.encode(obs.double()), actions / high))
            return dynamics.change(x, u, weights).mean(0).double().cpu()

        return change

    def pathway_statistics(self) -> dict[str, float]:
        """Statistics of `RPPSAC.pathway_statistics`, and those of the model over its members."""
        members: list[Any] = [self._ensemble.member(i) for i in range(self.members)]
        return super().pathway_statistics() | pathway_statistics({"dynamics": members})

    def equivariance_errors(self, observations: NDArray, actions: NDArray) -> dict[str, AgentEquivarianceError]:
        """Errors of `RPPSAC.equivariance_errors`, and that of the model, "dynamics"."""
        error = dynamics_equivariance_error(self, observations, actions)
        return super().equivariance_errors(observations, actions) | {"dynamics": error}

    # -- gradient updates ---------------------------------------------------------------------------------------------

    def prepare_updates(self) -> None:
        """Fit the model and roll it out where that is due."""
        if not self._model_transitions or self._stored - self._fitted_at >= self.model_every:
            for name, value in self.fit_dynamics().items():
                self.logger.record(name, value)
            imagined = self.imagine()
            if not len(imagined.rewards):
                raise ValueError(
                    "the model of the dynamics has diverged: nothing that it imagines is finite; lower the learning_rate of "
                    "dynamics_kwargs"
                )
            self._model_transitions.append(imagined)

    # -- saving -------------------------------------------------------------------------------------------------------

    def capture(self) -> dict[str, Any]:
        """Capture the agent, see `RPPSAC.capture`, with the model, its optimiser and the transitions that it has made up."""
        data = {
            "model": dict(copy.deepcopy(self.dynamics.state_dict())),
            "optimiser": copy.deepcopy(self.dynamics_optimiser.state_dict()),
            "imagined": [part._asdict() for part in self._model_transitions],  # which nothing changes
            "counts": [self._stored, self._seen, self._fitted_at],
            "random": self._dynamics_generator.get_state(),
        }
        check_finite(self, data, "dynamics")
        return super().capture() | {"dynamics": data}

    def restore(self, data: dict[str, Any]) -> None:
        """Restore the agent from what :meth:`capture` returned, see `RPPSAC.restore`."""
        if "dynamics" not in data:
            raise ValueError("the state was captured from an agent without a model; build RPPSAC")
        super().restore(data)
        model = data["dynamics"]
        self.dynamics.load_state_dict(model["model"])
        self.dynamics_optimiser.load_state_dict(model["optimiser"])
        self._model_transitions = deque((Transitions(**part) for part in model["imagined"]), maxlen=self.kept_fits)
        self._stored, self._seen, self._fitted_at = model["counts"]
        self._dynamics_generator.set_state(model["random"])

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        modules, variables = super()._get_torch_save_params()
        return [*modules, "dynamics", "dynamics_optimiser"], variables

    def _excluded_save_params(self) -> list[str]:
        names = [
            "dynamics",
            "_ensemble",
            "dynamics_optimiser",
            "_dynamics_generator",
            "_model_transitions",
            "terminates",
        ]
        return super()._excluded_save_params() + names
