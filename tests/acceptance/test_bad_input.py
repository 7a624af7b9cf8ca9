"""What a user does wrong: one line that names it and says the remedy, exit status 2, and nothing is made."""

from __future__ import annotations

import shlex
import subprocess
import sys

import mujoco
import pytest

from rppdyn.cli import main
from rppdyn.errors import is_from_drawing

BAD = r"""
trian-agent -> 'trian-agent' | did you mean 'train-agent'
certify -> WHAT | certify --help
train-agent env=Walker-v5 -> env=Walker-v5 | did you mean 'Walker2d-v5' | Swimmer-v5
certify Walker-v5 -> Walker-v5 | did you mean 'Walker2d-v5'
train-agent env=my_robot:Robot-v0 -> 'my_robot' | run in the folder
train-agent env=gymnasium:Robot-v0 -> Robot-v0 | rppdyn certify
train-agent env.symmetry=yaw -> no symmetry 'yaw' | left-right
train-agent env=Swimmer-v5 'env.symmetry=planar rotation' agent.augment=true model.hidden=4
    -> Swimmer-v5 | augment=True | 'planar rotation' | reward
certify CartPole-v1 -> CartPole-v1 | no symmetry spec
certify nowhere.xml -> 'nowhere.xml' | MJCF or URDF
certify Walker2d-v5 --symmetry yaw -> 'yaw' | known: leg swap
train-agent env=CartPole-v1 -> CartPole-v1 | no symmetry spec
train-agent env.kwargs.nonsense=1 -> nonsense | InvertedPendulum-v5
train-agent env=Walker2d-v3 -> Walker2d-v3 | can't be made | moved
train-agent env.kwargs.xml_file=/no.xml -> xml_file=/no.xml | /no.xml
train-agent env.kwargs.frame_skip=0 -> frame_skip=0 | division
train-agent env.kwargs.reset_noise_scale=-1 -> reset_noise_scale=-1
train-agent env.actuator_scale.wing=2 -> 'wing' | slider
train-agent model=rp -> model=rp | did you mean 'rpp' | emlp
train-agent agent.learning_rat=1 -> 'agent.learning_rat' | did you mean 'agent.learning_rate'
train-agent learning_rate=1 -> 'learning_rate' | 'agent.learning_rate'
train-agent model=mlp model.equivariant_variance=0 -> model.equivariant_variance=0 | no pathway | positive
train-agent env=InvertedPendulum-v5 agent.imagination.members=2 -> agent.imagination | train-agent
fit-dynamics "model.hidden='0*T(0)'" task.train=5 task.validation=5 task.test=5 -> no coordinates | leave it out
certify Walker2d-v5 --json /tmp -> --json /tmp | is a folder
train-agent env=InvertedPendulum-v5 agent.buffer_size=100000000000000 -> not enough memory | give smaller ones
fit-image model.width=3000000000 -> not enough memory | give smaller ones
fit-dynamics task.time_step=1e-300 -> task.time_step=1e-300 | task.horizon / 1000000
fit-dynamics rollout.step=1e-12 -> rollout.step=1e-12 | at least 0.0002 | null
fit-dynamics rollout.test_step=1e-9 -> rollout.test_step=1e-09 | 0.0003, task.horizon / 100000
fit-dynamics task.horizon=1.1 -> task.horizon=1.1 | a multiple of task.time_step=0.2
fit-dynamics task.group=O(2) -> task.group=O(2) | R^2 | O2eR3
fit-dynamics task.file=. -> task.file=. | Is a directory
train-agent env=InvertedPendulum-v5 env.kwargs.render_mode=human -> env.kwargs.render_mode=human | --video
train-agent env=InvertedPendulum-v5 env.kwargs.frame_skip=2.5 -> frame_skip=2.5 must be an integer | at least 1
fit-image optimiser.warm_up=1000 -> optimiser.epochs=100 | at least 1000, optimiser.warm_up
fit-image task.folder=/nowhere -> task.folder='/nowhere' | leave it out
fit-image task=breast_cancer -> model.architecture=small_max | give model.architecture=three_layers
train-agent env=InvertedPendulum-v5 model=mlp model.free_variance=1e-3
    -> free_variance=0.001 | one pathway, under equivariant_variance
train-agent env=InvertedPendulum-v5 model=rpp_policy_only model.critic_free_variance=1e-3
    -> critic_free_variance=0.001 | one pathway, under critic_equivariant_variance
train-agent model.critic_equivariant_variance=0 model.critic_free_variance=0
    -> critic_equivariant_variance=0 and critic_free_variance=0 | no pathway
equivariance torch:sin --trust --group U(2) --rep-in V --rep-out V --from normal -> --group U(2) | complex | Python
train-agent model=emlp model.free_scale=prior -> model.free_scale=prior with model=emlp | one pathway | model=rpp
train-agent model.free_variance=learned model.widen=100
    -> model.widen=100 with model.free_variance=learned | leave one of the two out
train-agent model.widen=100 -> model.widen=100 with model.free_variance=1e-07 | rise from 1e-07 | model.free_variance=1e-3
train-agent seed=9999 seeds=2 -> seed=10000 | evaluation episodes have the seeds 10000 to 10009 | another seed
train-agent model=mlp model.free_variance=certified
    -> model.free_variance=certified with model=mlp | one pathway | model=rpp
train-agent model=emlp model.breaking=V model.breaking_variance=0 -> model.breaking_variance=0: must be greater than 0
train-agent model=mlp model.breaking=V -> model.breaking=V with model=mlp | symmetry to break
train-agent model=rpp model.breaking=W -> model.breaking=W: unknown
train-agent model=rpp model.breaking=0*V -> model.breaking=0 has no coordinates
train-agent model=rpp model.free_variance=learned model.critic_free_variance=0 -> nothing to learn from
train-agent model=rpp_policy_only model.free_variance=learned
    -> model.free_variance=learned | critics have one pathway | model=rpp
fit-regression 'model.groups=["O(3)"]' model.variances=[1,1] model.free_variance=learned
    -> model.free_variance=learned with model.groups | leave out one
fit-dynamics run_dir=/dev/null/run -> /dev/null is a file | run_dir=FOLDER
fit-regression seed=2147483647 seeds=2 -> seeds=2 | at most 1
train-agent model.free_variance=0 model.equivariant_variance=0 -> no pathway
fit-image objective=marginal_likelihood optimiser.epochs=8 -> marginal_likelihood.burn_in=10 | optimiser.epochs=8
train-agent model=mlp model.bilinear=true -> bilinear=True | equivariant
fit-regression device=cuda:9 -> device=cuda:9 | this machine offers
train-agent seeds=3 device=cuda:9 -> device=cuda:9 | device=cpu
train-agent seed=0,1 -> seed=0,1 | --multirun
train-agent seeds=0,1,2 -> seeds=3 | seed=0,1,2 | --multirun
train-agent --multirun seed=0,-1 -> seed=-1
train-agent --multirun seed=0,1 run_dir=a -> several runs | run_dir
train-agent --multirun seed=0,1 seeds=2 -> several runs | seed=0,2
train-agent --resume absent -> absent | no run
train-agent --resume a b -> one run
evaluate-agent absent -> absent | no run
equivariance . -> config.yaml
equivariance absent.zip -> absent.zip | no such file
equivariance m:f --trust --env Walker-v5 -> Walker-v5 | did you mean
equivariance m:f --trust --group SO(3) -> --rep-in | belong together
discover m:f -> --family is missing | --rep-in
discover absent -> absent | no run
discover absent --rep-in V -> --rep-in V | leave it out
report -> RUN | report --help
report absent -> absent | no run
report . --out report.pdf -> --out report.pdf | .html
figure . -> --out | figure --help
figure absent --out a.png -> absent | no run
figure . --out a.gif -> --out a.gif | .png
fit-image +hydra.sweeper.params.seed=1 -> can't be used
collect env=InvertedPendulum-v5 --random --name '' -> --name is empty
certify Walker2d-v5 --json no/x.json -> --json no/x.json | no folder no
certify Walker2d-v5 --figure no/x.png -> --figure no/x.png | no folder no
report a --out no/x.html -> --out no/x.html | no folder no
figure a --out no/x.png -> --out no/x.png | no folder no
evaluate-agent a --video no/x.gif -> --video no/x.gif | no folder no
certify Walker2d-v5 --json x.png --figure ./x.png -> --json x.png and --figure ./x.png are one file
fit-regression model.hidden=V**100 -> V ** 100
fit-regression model.hidden=V**9 -> lower tensor power
fit-regression task.group=MANY -> a product of 33 groups
fit-regression model=emlp task.group=O(3) model.hidden=8*Pseudoscalar -> lets nothing through | O(3)
bound task=inertia model=emlp subspace.dimension=100000 task.train=50
    -> subspace.dimension=100000 | parameters | give a number from 0 to
bound subspace.loss=zero_one -> subspace.loss=zero_one | leave it out
bound subspace.prior_share=0.5 subspace.prior_run=x -> subspace.prior_run=x | leave out one of the two
bound objective=marginal_likelihood -> objective=marginal_likelihood
bound task=inertai -> task=inertai | did you mean 'inertia'
"""
"""Command lines, each with parts of what is said."""

MANY = "*".join(["SO(3)"] * 201)
CASES = dict(line.split(" -> ") for line in BAD.strip().replace("\n    ->", " ->").replace("MANY", MANY).splitlines())


@pytest.mark.parametrize("words", CASES, ids=lambda words: words[:60])
def test_one_line_and_exit_status_2(monkeypatch, tmp_path, capfd, words):
    monkeypatch.chdir(tmp_path)
    status = main(shlex.split(words))
    out, err = capfd.readouterr()
    assert (status, out) == (2, ""), err
    assert err.startswith("rppdyn: error: ")
    assert err.count("\n") == 1, err
    for text in CASES[words].split(" | "):
        assert text in err
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_argument_is_refused_without_loading_torch(environment, tmp_path):
    code = """
import sys
from rppdyn.cli import main
for words in (["train-agent", "agent.tau=2"], ["train-agent", "env=Walker-v5"], ["nonsense"]):
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


def test_a_drawing_library_that_mujoco_cant_load(environment, tmp_path):
    words = [sys.executable, "-m", "rppdyn.cli", "certify", "Walker2d-v5"]
    environment = {**environment, "MUJOCO_GL": "nonsense"}
    ended = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("rppdyn: error: MUJOCO_GL=nonsense") and "unset it" in ended.stderr


def test_what_a_user_asks_of_mujocos_renderer_is_not_blamed_on_its_library():
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    with pytest.raises(ValueError, match="width") as refused:
        mujoco.Renderer(model, width=10**6)
    assert not is_from_drawing(refused.value)


def test_an_unexpected_error_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("rppdyn.jobs.config.compose.composed", None)
    with pytest.raises(TypeError, match="not callable"):
        main(["train-agent"])
