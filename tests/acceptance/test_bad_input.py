"""What a user does wrong: one line that names it and says the remedy, exit status 2, and nothing is made."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rppdyn.cli import main

BAD = {
    "no such verb": (["trian-agent"], ["'trian-agent'", "did you mean 'train-agent'"]),
    "no such flag": (["train-agent", "--resum"], ["--resum", "train-agent --help"]),
    "no environment": (["certify"], ["WHAT", "certify --help"]),
    "unknown environment": (
        ["train-agent", "env=Walker-v5"],
        ["env=Walker-v5", "did you mean 'Walker2d-v5'", "Swimmer-v5"],
    ),
    "unknown environment by its key": (["train-agent", "env.id=Walker-v5"], ["Walker-v5", "unknown"]),
    "unknown environment to certify": (["certify", "Walker-v5"], ["Walker-v5", "did you mean 'Walker2d-v5'"]),
    "no such module": (["train-agent", "env=my_robot:Robot-v0"], ["'my_robot'", "run in the folder"]),
    "no such environment in a module": (["train-agent", "env=gymnasium:Robot-v0"], ["Robot-v0", "rppdyn certify"]),
    "unknown symmetry": (["train-agent", "env.symmetry=yaw"], ["no symmetry 'yaw'", "left-right"]),
    "mirrored transitions of another reward": (
        ["train-agent", "env=Swimmer-v5", "env.symmetry=planar rotation", "agent.augment=true", "model.hidden=4"],
        ["Swimmer-v5", "augment=True", "'planar rotation'", "reward"],
    ),
    "environment without a model to certify": (["certify", "CartPole-v1"], ["CartPole-v1", "no symmetry spec"]),
    "model file that is none": (["certify", "nowhere.xml"], ["'nowhere.xml'", "MJCF or URDF"]),
    "symmetry that a robot lacks": (["certify", "Walker2d-v5", "--symmetry", "yaw"], ["'yaw'", "known: leg swap"]),
    "environment of another kind": (["train-agent", "env=CartPole-v1"], ["CartPole-v1", "no symmetry spec"]),
    "refused option of the environment": (
        ["train-agent", "env.kwargs.nonsense=1"],
        ["nonsense", "InvertedPendulum-v5"],
    ),
    "environment of the papers' time": (["train-agent", "env=Walker2d-v3"], ["Walker2d-v3", "can't be made", "moved"]),
    "the same to certify": (["certify", "Walker2d-v3"], ["Walker2d-v3", "can't be made"]),
    "model file that is not there": (["train-agent", "env.kwargs.xml_file=/no.xml"], ["xml_file=/no.xml", "/no.xml"]),
    "option that divides by zero": (["train-agent", "env.kwargs.frame_skip=0"], ["frame_skip=0", "division"]),
    "option refused at a reset": (["train-agent", "env.kwargs.reset_noise_scale=-1"], ["reset_noise_scale=-1"]),
    "unknown actuator": (["train-agent", "env.actuator_scale.wing=2"], ["'wing'", "slider"]),
    "unknown model": (["train-agent", "model=rp"], ["model=rp", "did you mean 'rpp'", "emlp"]),
    "unknown key": (
        ["train-agent", "agent.learning_rat=1"],
        ["'agent.learning_rat'", "did you mean 'agent.learning_rate'"],
    ),
    "unknown added key": (["train-agent", "+agent.nonsense=1"], ["'agent.nonsense'", "--help"]),
    "key of a group without it": (["train-agent", "learning_rate=1"], ["'learning_rate'", "'agent.learning_rate'"]),
    "removed key": (["train-agent", "~seed"], ["~seed", "leave it out"]),
    "word without value": (["train-agent", "Walker2d-v5"], ["'Walker2d-v5'", "key=value"]),
    "variance of the only pathway": (
        ["train-agent", "model=mlp", "model.equivariant_variance=0"],
        ["model.equivariant_variance=0", "no pathway", "positive"],
    ),
    "an agent that is no more": (["train-agent", "env=InvertedPendulum-v5", "agent=mbpo"], ["mbpo", "ppo, sac"]),
    "a setting of an agent that is no more": (
        ["train-agent", "env=InvertedPendulum-v5", "agent.imagination.members=2"],
        ["agent.imagination", "train-agent"],
    ),
    "hidden layer of no channels": (
        ["fit-dynamics", "model.hidden='0*T(0)'", "task.train=5", "task.validation=5", "task.test=5"],
        ["no coordinates", "leave it out"],
    ),
    "certificate in a folder": (["certify", "Walker2d-v5", "--json", "/tmp"], ["--json /tmp", "is a folder"]),
    "buffer beyond memory": (
        ["train-agent", "env=InvertedPendulum-v5", "agent.buffer_size=100000000000000"],
        ["not enough memory", "give smaller ones"],
    ),
    "layers beyond memory": (["fit-image", "model.width=3000000000"], ["not enough memory", "give smaller ones"]),
    "steps beyond all": (
        ["fit-dynamics", "task.time_step=1e-300"],
        ["task.time_step=1e-300", "task.horizon / 1000000"],
    ),
    "steps of training beyond all": (
        ["fit-dynamics", "rollout.step=1e-12"],
        ["rollout.step=1e-12", "at least 0.0002", "null"],
    ),
    "steps of test rollouts beyond memory": (
        ["fit-dynamics", "rollout.test_step=1e-9"],
        ["rollout.test_step=1e-09", "0.0003, task.horizon / 100000"],
    ),
    "horizon between time steps": (
        ["fit-dynamics", "task.horizon=1.1"],
        ["task.horizon=1.1", "a multiple of task.time_step=0.2"],
    ),
    "group of a plane for a pendulum": (
        ["fit-dynamics", "task.group=O(2)"],
        ["task.group=O(2)", "R^2", "O2eR3"],
    ),
    "folder for a dataset": (
        ["fit-dynamics", "task.file=."],
        ["task.file=.", "Is a directory"],
    ),
    "window that nobody watches": (
        ["train-agent", "env=InvertedPendulum-v5", "env.kwargs.render_mode=human"],
        ["env.kwargs.render_mode=human", "--video"],
    ),
    "half a frame": (
        ["train-agent", "env=InvertedPendulum-v5", "env.kwargs.frame_skip=2.5"],
        ["frame_skip=2.5 must be an integer", "at least 1"],
    ),
    "warm-up longer than training": (
        ["fit-image", "optimiser.warm_up=1000"],
        ["optimiser.epochs=100", "at least 1000, optimiser.warm_up"],
    ),
    "folder of what is embedded": (["fit-image", "task.folder=/nowhere"], ["task.folder='/nowhere'", "leave it out"]),
    "images that are too small for the layers": (
        ["fit-image", "task=breast_cancer"],
        ["model.architecture=small_max", "give model.architecture=three_layers"],
    ),
    "variance that an mlp has no use for": (
        ["train-agent", "env=InvertedPendulum-v5", "model=mlp", "model.free_variance=1e-3"],
        ["free_variance=0.001", "one pathway, under equivariant_variance"],
    ),
    "and one that mlp critics have none for": (
        ["train-agent", "env=InvertedPendulum-v5", "model=rpp_policy_only", "model.critic_free_variance=1e-3"],
        ["critic_free_variance=0.001", "one pathway, under critic_equivariant_variance"],
    ),
    "variances of the critics": (
        ["train-agent", "model.critic_equivariant_variance=0", "model.critic_free_variance=0"],
        ["critic_equivariant_variance=0 and critic_free_variance=0", "no pathway"],
    ),
    "complex group": (
        [
            "equivariance",
            "torch:sin",
            "--trust",
            "--group",
            "U(2)",
            "--rep-in",
            "V",
            "--rep-out",
            "V",
            "--from",
            "normal",
        ],
        ["--group U(2)", "complex", "Python"],
    ),
    "scale of a pathway that is alone": (
        ["train-agent", "model=emlp", "model.free_scale=prior"],
        ["model.free_scale=prior with model=emlp", "one pathway", "model=rpp"],
    ),
    "variances that are learned and widened": (
        ["train-agent", "model.free_variance=learned", "model.widen=100"],
        ["model.widen=100 with model.free_variance=learned", "leave one of the two out"],
    ),
    "certified variance of a plain network": (
        ["train-agent", "model=mlp", "model.free_variance=certified"],
        ["model.free_variance=certified with model=mlp", "one pathway", "model=rpp"],
    ),
    "certified variance of a strict network": (
        ["train-agent", "model=emlp", "model.free_variance=certified"],
        ["model.free_variance=certified with model=emlp", "one pathway", "model=rpp"],
    ),
    "learned variances of plain critics": (
        ["train-agent", "model=rpp_policy_only", "model.free_variance=learned"],
        ["model.free_variance=learned", "critics have one pathway", "model=rpp"],
    ),
    "learned free variance of a chain": (
        ["fit-regression", 'model.groups=["O(3)"]', "model.variances=[1,1]", "model.free_variance=learned"],
        ["model.free_variance=learned with model.groups", "leave out one"],
    ),
    "run folder below a file": (["fit-dynamics", "run_dir=/dev/null/run"], ["/dev/null is a file", "run_dir=FOLDER"]),
    "seeds past the last": (["fit-regression", "seed=2147483647", "seeds=2"], ["seeds=2", "at most 1"]),
    "no pathway": (["train-agent", "model.free_variance=0", "model.equivariant_variance=0"], ["no pathway"]),
    "variances that would not be learned": (
        ["fit-image", "objective=marginal_likelihood", "optimiser.epochs=8"],
        ["marginal_likelihood.burn_in=10", "optimiser.epochs=8"],
    ),
    "a way of storing weights that is no more": (
        ["train-agent", "model.parametrisation=dense"],
        ["'model.parametrisation'", "train-agent"],
    ),
    "bilinear of no tensors": (["train-agent", "model=mlp", "model.bilinear=true"], ["bilinear=True", "equivariant"]),
    "device that is not there": (["fit-regression", "device=cuda:9"], ["device=cuda:9", "this machine offers"]),
    "device that no seed gets past": (["train-agent", "seeds=3", "device=cuda:9"], ["device=cuda:9", "device=cpu"]),
    "several values": (["train-agent", "seed=0,1"], ["seed=0,1", "--multirun"]),
    "several values of their number": (["train-agent", "seeds=0,1,2"], ["seeds=3", "seed=0,1,2", "--multirun"]),
    "bad value in a sweep": (["train-agent", "--multirun", "seed=0,-1"], ["seed=-1"]),
    "sweep into one folder": (["train-agent", "--multirun", "seed=0,1", "run_dir=a"], ["several runs", "run_dir"]),
    "sweep over seeds that meet": (
        ["train-agent", "--multirun", "seed=0,1", "seeds=2"],
        ["several runs", "seed=0,2"],
    ),
    "launcher that is not installed": (
        ["train-agent", "-m", "seed=0,1", "hydra/launcher=nonsense"],
        ["hydra/launcher=nonsense"],
    ),
    "resume of nothing": (["train-agent", "--resume", "absent"], ["absent", "no run"]),
    "resume of two": (["train-agent", "--resume", "a", "b"], ["one run"]),
    "run that is none": (["evaluate-agent", "absent"], ["absent", "no run"]),
    "folder that is no run": (["equivariance", "."], ["config.yaml"]),
    "policy that is not there": (["equivariance", "absent.zip"], ["absent.zip", "no such file"]),
    "measured on no environment": (
        ["equivariance", "m:f", "--trust", "--env", "Walker-v5"],
        ["Walker-v5", "did you mean"],
    ),
    "some representations": (["equivariance", "m:f", "--trust", "--group", "SO(3)"], ["--rep-in", "belong together"]),
    "discovery without a family": (["discover", "m:f"], ["--family is missing", "--rep-in"]),
    "discovery in no run": (["discover", "absent"], ["absent", "no run"]),
    "discovery with representations of its own": (
        ["discover", "absent", "--rep-in", "V"],
        ["--rep-in V", "leave it out"],
    ),
    "report of nothing": (["report"], ["RUN", "report --help"]),
    "report of no run": (["report", "absent"], ["absent", "no run"]),
    "report of another format": (["report", ".", "--out", "report.pdf"], ["--out report.pdf", ".html"]),
    "figure of nothing": (["figure", "--out", "a.png"], ["RUN", "figure --help"]),
    "figure without a place": (["figure", "."], ["--out", "figure --help"]),
    "figure of no run": (["figure", "absent", "--out", "a.png"], ["absent", "no run"]),
    "figure of another format": (["figure", ".", "--out", "a.gif"], ["--out a.gif", ".png"]),
    "sweep of nothing": (["train-agent", "-m", "seed=range(0,0)"], ["seed=range(0,0)", "the sweep is empty"]),
    "key that Hydra has not": (["fit-image", "+hydra.nokey=1"], ["'hydra.nokey'"]),
    "the same in a sweep": (["fit-image", "-m", "seed=0,1", "+hydra.nokey=1"], ["'hydra.nokey'"]),
    "group that Hydra has not, in a sweep": (["fit-image", "-m", "+hydra/nogroup=x"], ["'hydra/nogroup'"]),
    "parameters of a sweeper that has none": (["fit-image", "+hydra.sweeper.params.seed=1"], ["can't be used"]),
    "empty name": (["collect", "env=InvertedPendulum-v5", "--random", "--name", ""], ["--name is empty"]),
    "result in no folder": (["certify", "Walker2d-v5", "--json", "no/x.json"], ["--json no/x.json", "no folder no"]),
    "figure in no folder": (["certify", "Walker2d-v5", "--figure", "no/x.png"], ["--figure no/x.png", "no folder no"]),
    "page in no folder": (["report", "a", "--out", "no/x.html"], ["--out no/x.html", "no folder no"]),
    "picture in no folder": (["figure", "a", "--out", "no/x.png"], ["--out no/x.png", "no folder no"]),
    "film in no folder": (["evaluate-agent", "a", "--video", "no/x.gif"], ["--video no/x.gif", "no folder no"]),
    "two results in one file": (
        ["certify", "Walker2d-v5", "--json", "x.png", "--figure", "./x.png"],
        ["--json x.png and --figure ./x.png are one file"],
    ),
    "hidden layer beyond memory": (["fit-regression", "model.hidden=V**100"], ["V ** 100"]),
    "hidden layer of more weights than memory": (["fit-regression", "model.hidden=V**9"], ["lower tensor power"]),
    "group of very many factors": (
        ["fit-regression", "task.group=" + "*".join(["SO(3)"] * 201)],
        ["a product of 33 groups"],
    ),
    "strict network that lets nothing through": (
        ["fit-regression", "model=emlp", "task.group=O(3)", "model.hidden=8*Pseudoscalar"],
        ["lets nothing through", "O(3)"],
    ),
    "subspace larger than the network": (
        ["bound", "task=inertia", "model=emlp", "subspace.dimension=100000", "task.train=50"],
        ["subspace.dimension=100000", "parameters", "give a number from 0 to"],
    ),
    "loss of classes for a regression": (
        ["bound", "subspace.loss=zero_one"],
        ["subspace.loss=zero_one", "leave it out"],
    ),
    "data-dependent and transferred prior": (
        ["bound", "subspace.prior_share=0.5", "subspace.prior_run=x"],
        ["subspace.prior_run=x", "leave out one of the two"],
    ),
    "bound with learned variances": (["bound", "objective=marginal_likelihood"], ["objective=marginal_likelihood"]),
    "bound of a task that is none": (["bound", "task=inertai"], ["task=inertai", "did you mean 'inertia'"]),
}


@pytest.mark.parametrize("case", BAD)
def test_one_line_and_exit_status_2(monkeypatch, tmp_path, capfd, case):
    words, expected = BAD[case]
    monkeypatch.chdir(tmp_path)
    status = main(words)
    out, err = capfd.readouterr()
    assert (status, out) == (2, ""), err
    assert err.startswith("rppdyn: error: ")
    assert err.count("\n") == 1, err
    for text in expected:
        assert text in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", ["no such verb", "unknown environment", "no pathway"])
def test_the_same_in_a_process_of_its_own(rppdyn, tmp_path, case):
    words, expected = BAD[case]
    status, out, err = rppdyn(*words, cwd=tmp_path)
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert all(text in err for text in expected)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_argument_is_refused_without_loading_torch(environment, tmp_path):
    code = """
import sys
from rppdyn.cli import main
for words in (["train-agent", "agent.tau=2"], ["train-agent", "env=Wlaker2d-v5"], ["nonsense"]):
    assert main(words) == 2
for words in (["--help"], ["train-agent", "--help"], ["--version"]):
    try:
        main(words)
    except SystemExit as end:
        assert not end.code
assert "torch" not in sys.modules, "torch was imported"
"""
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=60
    )


def test_an_unexpected_error_keeps_its_traceback(environment, tmp_path):
    code = """
import sys
from rppdyn import cli
from rppdyn.jobs.config import compose
compose.composed = lambda *arguments: int("a library's own error")
sys.exit(cli.main(["train-agent"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
