"""`agent=ppo`: stable-baselines3's own loop in a run folder, which goes on exactly between two rollouts."""

from __future__ import annotations

import json

import pytest
import torch
from refusals import refused
from stable_baselines3.common.callbacks import BaseCallback

from rppdyn.agents import RelaxedPPO
from rppdyn.cli import main
from rppdyn.jobs import playing, train_agent
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.command import EvaluateAgentConfig
from rppdyn.runs import RunFolder, StopRequest

WORDS = (
    "env=InvertedPendulum-v5", "agent=ppo", "device=cpu", "model.hidden=8", "agent.ppo.n_steps=16", "agent.num_envs=2",
    "agent.batch_size=16", "agent.ppo.n_epochs=2", "evaluation.every=64", "evaluation.episodes=1", "evaluation.states=16",
    "checkpoint_every=32", "total_steps=128",
)  # fmt: skip


def configured(folder, *words):
    return compose.composed("train_agent", [*WORDS, f"run_dir={folder}", *words])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train_agent.run(configured(tmp_path_factory.mktemp("whole") / "run"))


def weights(run):
    return torch.load(RunFolder.open(run).policy_file, weights_only=True)


def assert_same(run, other):
    for one, two in zip(weights(run).values(), weights(other).values(), strict=True):
        assert torch.equal(one, two)
    first, second = (RunFolder.open(path).metrics.path.read_bytes() for path in (run, other))
    assert first == second


class Stop(StopRequest):
    """Asked for in the middle of the second rollout."""

    looks = 0

    def __bool__(self) -> bool:
        self.looks += 1
        return self.looks > 1


def test_a_stopped_run_goes_on_bit_identically(whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(StopRequest, "__bool__", Stop.__bool__)
        patch.setattr(StopRequest, "looks", 0, raising=False)
        stopped = train_agent.run(configured(tmp_path / "run"))
    assert stopped.interrupted and stopped.steps == 32
    again = train_agent.run(configured(tmp_path / "run"), resume=True)
    assert again.steps == 128 and not again.interrupted
    assert_same(again.run, whole.run)
    assert json.loads((tmp_path / "run" / "spec.json").read_text())["env_id"] == "InvertedPendulum-v5"


def test_several_seeds_are_what_each_is_alone(whole, tmp_path):
    found = train_agent.run_many(configured(tmp_path / "many", "seeds=2", "threads=1"))
    assert [result.seed for result in found.results] == [0, 1] and not found.errors
    assert_same(found.results[0].run, whole.run)
    with pytest.raises(AssertionError):
        assert_same(found.results[1].run, whole.run)


def test_each_seed_has_a_bar_of_its_own(tmp_path, monkeypatch):
    """They shared one, which stood at its end from the second seed on."""
    bars = []

    class Bar(train_agent.Progress):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            bars.append((options["description"], []))

        def update(self, count):
            bars[-1][1].append(count)

    monkeypatch.setattr(train_agent, "Progress", Bar)
    words = "seeds=2", "threads=1", "total_steps=32", "evaluation.every=32"
    train_agent.run_many(configured(tmp_path / "many", *words))
    assert [name for name, _ in bars] == [f"InvertedPendulum-v5 rpp, seed {seed}" for seed in (0, 1)]
    assert all(counts[0] < 32 and counts[-1] == 32 for _, counts in bars)


def test_what_it_records_and_saves_is_the_agent(whole):
    names = whole.metrics.keys()
    assert {
        "train/value_loss",
        "train/approx_kl",
        "prior/actor_penalty",
        "equivariance/critic",
        "pathway/actor_free_share",
    } <= names
    assert "actor" in whole.prior and "critic" in whole.prior
    played = playing.evaluate(EvaluateAgentConfig(run=whole.run, episodes=1))
    assert played.returns == whole.metrics["eval/returns"]
    loaded = RelaxedPPO.load(RunFolder.open(whole.run).model_file, device="cpu")
    for name, value in loaded.policy.state_dict().items():
        assert torch.equal(value, weights(whole.run)[name])
    assert loaded.spec.env_id == "InvertedPendulum-v5"


def test_a_rollout_under_way_is_not_captured():
    agent = RelaxedPPO(
        "RPPPolicy", "InvertedPendulum-v5", n_steps=8, batch_size=8, policy_kwargs=dict(hidden=8), seed=0
    )
    agent.learn(8)
    state = agent.capture()
    agent.policy(torch.zeros(1, 4, dtype=torch.float64))
    with refused("a rollout is under way (1 steps of 8)", "on_rollout_start"):
        agent.capture()
    other = RelaxedPPO("RPPPolicy", "InvertedPendulum-v5", n_steps=16, batch_size=8, policy_kwargs=dict(hidden=8))
    with refused("n_steps=8, this one has 16"):
        other.restore(state)


def small(n_steps=32, **options) -> RelaxedPPO:
    options = dict(n_steps=n_steps, batch_size=16, n_epochs=4, policy_kwargs=dict(hidden=8), seed=0) | options
    return RelaxedPPO("RPPPolicy", "InvertedPendulum-v5", **options)


def test_a_rollout_that_a_callback_ends_is_forgotten():
    agent = small()
    agent.learn(64, callback=lambda local, _: local["self"].num_timesteps < 40)
    assert agent.num_timesteps == 40
    agent.capture()
    agent.learn(32, reset_num_timesteps=False)
    assert len(agent.policy.trained_on) == 32


def test_what_a_callback_asks_the_policy_is_no_part_of_the_rollout():
    class Asks(BaseCallback):
        def _on_step(self) -> bool:
            self.model.policy(torch.full((31, 4), 5.0, dtype=torch.float64))
            return True

    seen = small().learn(32, callback=Asks()).policy.trained_on
    assert len(seen) == 32 and seen.max() < 5


def test_a_second_update_is_on_the_same_observations():
    """Stable-baselines3 flattens its buffer in the first one; the rows were then taken for rollouts, and joined."""
    agent = small().learn(32)
    first = agent.policy.trained_on
    agent.train()
    assert agent.policy.trained_on.shape == first.shape == (32, 4)
    torch.testing.assert_close(*(x.sort(0).values for x in (agent.policy.trained_on, first)))
    assert agent.learn(32, reset_num_timesteps=False).num_timesteps == 64


@pytest.mark.parametrize("options", [dict(clip_range_vf=1e-4), dict(vf_coef=0.0)], ids=str)
def test_a_loss_without_a_gradient_of_the_value_is_no_divergence(options):
    """Where all values have moved by more than `clip_range_vf`, stable-baselines3's loss is flat in them."""
    agent = small(learning_rate=1e-2, **options).learn(64)
    assert agent._n_updates == 8


def test_one_batch_may_be_the_rollouts_of_all_environments(tmp_path):
    words = ("agent.num_envs=2", "agent.batch_size=32", "total_steps=32", "evaluation.every=32")
    assert train_agent.run(configured(tmp_path / "run", *words)).steps == 32


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("agent=ppo", "agent.tau=0.01"), ("agent.tau=0.01", "agent=ppo has no such setting")),
        (("agent=ppo", "agent.augment=true"), ("agent.augment=true", "no such setting")),
        (("agent.ppo.n_steps=64",), ("agent.ppo.n_steps=64", "agent=ppo")),
        (("agent=ppo", "agent.ppo=null"), ("agent.ppo=null", "one by one")),
        (("agent=ppo", "agent.ppo.n_stepz=64"), ("unknown key 'agent.ppo.n_stepz'",)),
        (("agent=ppo", "agent.ppo.n_steps=100"), ("agent.batch_size=64 does not divide the 100",)),
        (("agent=ppo", "workers=true"), ("workers=true", "agent=sac")),
        (("agent=ppo", "model.free_variance=learned"), ("model.free_variance=learned", "agent=sac")),
    ],
)  # fmt: skip
def test_what_it_does_not_have_is_refused_in_one_line(words, parts, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train-agent", "env=InvertedPendulum-v5", *words]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1 and all(part in error for part in parts), error
    assert not list(tmp_path.iterdir())


def test_a_run_without_transitions_is_collected_by_playing(whole, capsys):
    assert main(["collect", "--from", whole.run]) == 2
    assert "add --play exploring" in capsys.readouterr().err
