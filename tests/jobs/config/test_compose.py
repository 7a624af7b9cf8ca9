"""From words to configurations, and to the folders of runs."""

from __future__ import annotations

import inspect
from dataclasses import asdict, replace
from pathlib import Path
from typing import get_args

import pytest
from omegaconf import OmegaConf

from rppdyn.agents import MODELS as AGENT_MODELS
from rppdyn.agents import SACSettings, WidenVariances
from rppdyn.agents import _compiling as compiling
from rppdyn.agents import policy as defaults
from rppdyn.envs._catalogue import KNOWN_ENVIRONMENTS
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.agent import WIDEN_FROM, AgentConfig, CrossQConfig, PPOConfig, TrainAgentConfig
from rppdyn.jobs.config.base import ConfigError, Precision, without_keys
from rppdyn.runs import RunFolder
from rppdyn.settings import keys_of


def composed(*overrides):
    return compose.composed("train_agent", overrides)


@pytest.mark.parametrize("env", sorted({*compose.choices("env"), *KNOWN_ENVIRONMENTS}))
def test_every_environment_can_be_chosen_and_takes_options_without_a_plus(env):
    published = 0.004 if env.startswith(("Walker2d", "Swimmer")) else 0.005
    for how in ("{}.a=0.2", "{}={{a:0.2}}", "+{}.a=0.2"):
        config = composed(f"env={env}", how.format("env.kwargs"), how.format("env.actuator_scale"))
        assert (config.env.id, config.env.kwargs, config.env.actuator_scale) == (env, {"a": 0.2}, {"a": 0.2})
        assert config.agent.tau == (0.02 if env == "InvertedPendulum-v5" else published)
        assert config.agent.learning_rate == (1e-3 if env.startswith("Inverted") else 3e-4)  # a string to PyYAML


def test_what_a_task_recommends_stands_behind_the_agents_own_settings_and_the_users():
    assert composed("env=InvertedPendulum-v5").agent.betas == [0.9, 0.999] and composed().total_steps == 15_000
    assert composed("env=Walker2d-v5").agent.betas == composed("env=Pusher-v4").agent.betas == [0.5, 0.999]
    assert composed("env=Walker2d-v5", "agent=ppo").agent.betas == [0.9, 0.999]
    assert composed("env=Walker2d-v5", "agent.tau=0.3").agent.tau == composed("agent.tau=0.3").agent.tau == 0.3
    assert composed("total_steps=7", "agent=ppo").total_steps == 7


def test_values_set_in_what_was_chosen_before_are_what_hydra_composes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (["env=Walker2d-v5", "model=mlp", "env.kwargs={a:{b:1}}", "env.kwargs.a.c=[1,2]", "agent.betas=[0.5,0.9]"],
                  ["env=Ant-v5", "agent=ppo", "seed=${total_steps}", "total_steps=7", "+env.kwargs.a='x y'", "run_dir=null"],
                  ["experiment=weak_walker", "model.hidden=[8,8]", "env.actuator_scale={}", "device=cpu"]):  # fmt: skip
        (node,) = compose.sweep("train_agent", words, lambda node: node)
        assert composed(*words) == compose.read_config("train_agent", node)


@pytest.mark.parametrize("env", ["rppdyn/WindyPendulum-v0", "rppdyn.envs:rppdyn/WindyPendulum-v0"])
def test_an_environment_in_a_namespace(env):
    config = composed(f"env={env}", "env.kwargs.wind=0.02", "env.symmetry=D6")
    assert (config.env.id, config.env.kwargs, config.env.symmetry) == (env, {"wind": 0.02}, "D6")
    assert config.folder().parent.parent.name.endswith("WindyPendulum-v0")
    with pytest.raises(ConfigError, match="unknown environment"):
        composed("env=rppdyn/CalmPendulum-v0")


@pytest.mark.parametrize("model", compose.choices("model"))
def test_models_are_what_the_agent_offers_with_its_defaults(model):
    config = composed(f"model={model}")
    assert config.model.kind == model
    assert config.model.equivariant_variance == defaults.EQUIVARIANT_VARIANCE
    assert config.model.free_variance == defaults.FREE_VARIANCE


def test_the_names_in_files_schema_and_agent_agree():
    kinds = get_args(keys_of(TrainAgentConfig)["model.kind"].annotation)
    assert set(compose.choices("model")) == set(kinds) == set(AGENT_MODELS)
    config = composed("env=Walker2d-v5")
    assert config.agent.noise_variance == SACSettings.noise_variance
    assert tuple(config.agent.betas) == SACSettings.betas
    assert get_args(Precision) == compiling.PRECISIONS
    assert inspect.signature(WidenVariances).parameters["start"].default == WIDEN_FROM


@pytest.mark.parametrize("experiment", compose.choices("experiment"))
@pytest.mark.parametrize("plus", ["", "+"])
def test_every_experiment_composes_and_can_be_overridden(experiment, plus):
    config = composed(f"{plus}experiment={experiment}", "seed=7", "total_steps=123")
    assert (config.seed, config.total_steps) == (7, 123)


def test_every_file_is_read_by_some_choice():
    folder = Path(compose.__file__).parents[2] / "configs"
    known = set()
    for name, module in compose.CONFIGS.items():
        place = folder.joinpath(*module.split(".")[2:])
        known.add(place / f"{name}.yaml")
        for group in compose.groups(name):
            known |= {place / group / f"{choice}.yaml" for choice in compose.choices(group, name)}
    assert known == set(folder.rglob("*.yaml"))


@pytest.mark.parametrize("name", ["fit_regression", "fit_dynamics"])
def test_every_task_and_model_of_a_fit_composes(name):
    tasks, models = (compose.choices(group, name) for group in ("task", "model"))
    pairs = {*((task, models[-1]) for task in tasks), *((tasks[-1], model) for model in models)}
    folders = set()
    for task, model in pairs:
        own = ["task.data=own.npz", "task.group=SO(3)"] if task == "own" else []
        config = compose.composed(name, [f"task={task}", f"model={model}", "seeds=3", *own])
        assert (config.task.name, config.model_name, config.all_seeds) == (task, model, [0, 1, 2])
        folders.add(config.folder())
    assert len(folders) == len(pairs)


def test_a_group_needs_no_second_quotes():
    for word in ("task.group=SO(3)", 'task.group="SO(3)"', "task.group='SO(3)'"):
        assert compose.composed("fit_regression", [word]).task.group == "SO(3)"
    swept = compose.compose_sweep("fit_regression", ["task.group=SO(3),SL(3)*Z(2)", "seed=0,1"])
    assert [(c.task.group, c.seed) for c in swept] == [(g, s) for g in ("SO(3)", "SL(3)*Z(2)") for s in (0, 1)]
    assert compose.composed("fit_regression", ["task.group=null"]).task.group is None


def test_the_folder_follows_from_the_configuration():
    folder = composed("env=Walker2d-v5", "model=mlp", "seed=3").folder()
    assert folder.parent == Path("runs/train-agent/Walker2d-v5/mlp")
    assert folder.name.startswith("seed3-")
    assert folder == composed("model=mlp", "seed=3", "env=Walker2d-v5").folder()
    assert composed("run_dir=a/b").folder() == Path("a/b")
    assert composed("runs_root=elsewhere").folder().parts[0] == "elsewhere"


def test_different_configurations_never_share_a_folder():
    words = ["agent.learning_rate=2e-3", "agent.betas=[0.8,0.999]", "env.actuator_scale.slider=0.5", "model.hidden=64",
             "model.bilinear=false", "evaluation.every=7", "threads=2", "device=cpu", "seed=1", "model=emlp"]  # fmt: skip
    folders = [composed().folder(), *(composed(word).folder() for word in words)]
    assert len(set(folders)) == len(folders)
    assert {composed(word).folder() for word in ("total_steps=7", "checkpoint_every=7")} == {folders[0]}
    usual, heavy = (compose.composed("fit_dynamics", ["task=windy_pendulum", f"task.masses=[1,{m}]"]) for m in (1, 2))
    assert heavy.folder() != usual.folder()


def test_identity_leaves_out_what_may_change_and_nothing_else():
    config = composed()
    assert set(TrainAgentConfig.resumable) <= set(keys_of(type(config)))
    expected = without_keys(asdict(config), [*TrainAgentConfig.resumable, "model.certified_variance"]) | {"threads": 1}
    assert expected == config.identity() == replace(config, total_steps=5).identity()


def test_a_stored_configuration_comes_back_with_changes():
    config = composed("env=Walker2d-v5", "env.actuator_scale.leg_joint=0.5", "seed=2")
    stored = OmegaConf.to_container(OmegaConf.create(asdict(config)))
    assert compose.from_stored("train_agent", stored, []) == config
    assert compose.from_stored("train_agent", stored, ["total_steps=5"]) == replace(config, total_steps=5)
    for word, match in [
        ("total_steps=-5", "total_steps=-5"),
        ("total_steps=x", "total_steps"),
        ("totl_steps=5", "did you mean 'total_steps'"),
        ("total_steps=5,6", "sweep"),
        ("~seed", "~seed: a configuration keeps its keys"),
        ("nonsense", "key=value"),
    ]:
        with pytest.raises(ConfigError, match=match) as error:
            compose.from_stored("train_agent", stored, [word])
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="nonsense"):
        compose.from_stored("train_agent", {**stored, "nonsense": 1}, [])
    with pytest.raises(ConfigError, match=r"unknown key 'env.tau' \(did you mean 'agent.tau'\?\)"):
        composed("env.tau=0.1")


def test_a_sweep_is_expanded_as_hydra_does():
    configs = compose.compose_sweep("train_agent", ["seed=0,1", "env=Swimmer-v5,Ant-v5", "total_steps=5"])
    found = [(c.seed, c.env.id, c.total_steps) for c in configs]
    assert found == [(seed, env, 5) for seed in (0, 1) for env in ("Swimmer-v5", "Ant-v5")]
    assert [c.seed for c in compose.compose_sweep("train_agent", ["seed=range(3)"])] == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"interval\(0,1\): a sweep needs"):
        compose.compose_sweep("train_agent", ["agent.tau=interval(0,1)"])


@pytest.mark.parametrize("name", compose.SCHEMAS)
def test_the_help_text_names_every_key_with_a_line(name):
    text = compose.describe(name)
    for key, item in keys_of(compose.SCHEMAS[name]).items():
        assert f"  {key}=" in text and item.description and len(item.description) <= 200, key


@pytest.mark.parametrize("name", compose.SCHEMAS)
def test_a_run_is_of_the_configuration_that_knows_its_keys(name, tmp_path):
    needed = {"train_agent": ["env=Ant-v5"], "fit_transition": ["dataset=some/data-v0"],
              "fit_trajectories": ["task.data=own.csv", "task.state=[x]"]}  # fmt: skip
    stored = asdict(compose.composed(name, needed.get(name, [])))
    folder = RunFolder.create(tmp_path / "new", stored)
    assert compose.name_of_run(folder) == name and isinstance(compose.from_run(name, folder), compose.SCHEMAS[name])
    for other in compose.SCHEMAS.keys() - {name}:
        with pytest.raises(ConfigError, match=f"is a run of {compose.SCHEMAS[name].verb}: give one of"):
            compose.from_run(other, folder)
    # A run of an older version lacks keys, and one that was edited has others.
    for key in ("checkpoint_every", "threads"):
        del stored[key]
    stored["model"] = {key: value for key, value in stored["model"].items() if key in ("kind", "pathways")}
    assert compose.name_of_run(RunFolder.create(tmp_path / "old", stored | {"nonsense": 1})) == name


def test_null_threads_move_no_folder_of_one_seed_or_several():
    for seeds in ("seeds=1", "seeds=3"):
        usual, one, two = (
            compose.composed("fit_dynamics", [seeds, *words]) for words in ([], ["threads=1"], ["threads=2"])
        )
        assert usual.folder() == one.folder() != two.folder()


@pytest.mark.parametrize("word", ["compile=auto", "threads=auto", "rollout.step=auto"])
def test_that_a_key_may_be_null_is_said_where_it_is_refused(word):
    with pytest.raises(ConfigError, match=f"^{word}: must be .* null$"):
        compose.composed("fit_dynamics", [word])
    with pytest.raises(ConfigError, match=r"^seed=auto: must be an integer$"):
        compose.composed("fit_dynamics", ["seed=auto"])


def test_settings_of_two_agents_are_refused_in_one_line_that_names_both():
    assert AgentConfig(ppo=PPOConfig()).name == "ppo" and AgentConfig(crossq=CrossQConfig()).name == "crossq"
    with pytest.raises(ConfigError, match=r"^agent\.ppo and agent\.crossq [^\n]*$"):
        AgentConfig(ppo=PPOConfig(), crossq=CrossQConfig())
    stored = asdict(composed("env=Ant-v5", "agent=ppo"))
    stored["agent"]["crossq"] = asdict(CrossQConfig())
    with pytest.raises(ConfigError, match=r"^agent\.ppo and agent\.crossq [^\n]*$"):
        compose.from_stored("train_agent", stored, [])


def test_an_option_that_has_a_key_of_its_own_is_refused_with_that_key():
    with pytest.raises(
        ConfigError, match=r"^env\.kwargs\.actuator_scale: .*; give env\.actuator_scale\.NAME=VALUE instead$"
    ):
        composed("env=Walker2d-v5", "env.kwargs.actuator_scale.leg_joint=0.5")


@pytest.mark.parametrize("text", ["/tmp/o'neil.csv", "a\\'b", "ends in \\", "two \\\\", "it's", 'said "so"', "plain"])
def test_texts_in_python_are_taken_as_they_are(text):
    """An apostrophe ended the quotes, and the option was "no override"."""
    words = compose.overrides("fit_regression", data=text, inputs=[text])
    config = compose.composed("fit_regression", words)
    assert config.task.data == text and config.task.inputs == [text]


def test_a_plus_is_no_way_round_the_refusal_of_an_agents_keys():
    """`+agent.ppo.n_steps=64` made a PPO out of SAC's settings."""
    with pytest.raises(ConfigError, match="of agent=ppo alone"):
        composed("env=Ant-v5", "+agent.ppo.n_steps=64")
    for plus in ("+", "++"):
        with pytest.raises(ConfigError, match="agent=ppo has no such setting"):
            composed("env=Ant-v5", "agent=ppo", f"{plus}agent.tau=0.5")
    assert composed("env=Ant-v5", "agent=ppo", "+agent.ppo.n_steps=64").agent.ppo.n_steps == 64
