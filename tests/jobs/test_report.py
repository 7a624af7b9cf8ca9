"""The report: its numbers, that it needs nothing but itself, and what a browser makes of it."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from pages import Page, browse, needs_browser, probed, rows_of

from rppdyn.envs import symmetry_spec
from rppdyn.jobs import report
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.config.command import ReportConfig
from rppdyn.jobs.report import html, read_groups
from rppdyn.runs import RunFolder, iqm
from rppdyn.runs.files import write_json
from rppdyn.runs.table import different_keys


def make_run(path, *words, seed=0, returns=(10.0, 20.0, 40.0), finished=True, spec=True, env="InvertedPendulum-v5"):
    """The folder of a run, as train-agent leaves it, with made-up metrics."""
    config = compose.composed("train_agent", [f"env={env}", f"seed={seed}", "total_steps=200", *words])
    folder = RunFolder.create(path, asdict(config))
    for i, value in enumerate(returns):
        metrics = {"eval/return_mean": value}
        for who in ("policy", "critic"):
            error = None if value < 0 else (0.0 if config.model.kind == "emlp" else 0.01 * (seed + 1) * (i + 1))
            metrics |= {f"equivariance/{who}": error, f"equivariance/{who}/left-right": error}
        for who in ("actor", "critic"):
            free = 0.0 if config.model.kind == "emlp" else 0.1
            metrics |= {f"pathway/{who}_equivariant_norm": 2.0, f"pathway/{who}_free_norm": free}
            metrics[f"pathway/{who}_free_share"] = free**2 / (4 + free**2)
        folder.metrics.append(100 * i, metrics)
    folder.timing.append(200, {"time/steps_per_second": 50.0})
    if spec:
        write_json(folder.path / "spec.json", symmetry_spec(env).to_dict())
    if finished:
        provenance = {"commit": "0123456789abcdef", "packages": {"torch": "2.0"}}
        folder.write_result({"steps": 100 * (len(returns) - 1), "provenance": provenance})
    return str(folder.path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    made = [make_run(root / f"rpp{i}", "model=rpp", seed=i, returns=(10.0, 20.0, 40.0 + 10 * i)) for i in range(4)]
    made.append(make_run(root / "emlp", "model=emlp", finished=False))
    (root / "rpp1" / "equivariance.json").write_text(json.dumps(MEASURED))
    return made


SMALL = {"error": 0.02, "interval": [0.01, 0.03], "published": 0.02}
MEASURED = {
    "format": 1,
    "what": "rpp1",
    "source": "final policy",
    "symmetry": "Z(2) of InvertedPendulum-v5",
    "states": 500,
    "states_from": "10 exploring episodes of its own",
    "functions": {
        "policy": {
            "overall": SMALL,
            "per_generator": {"left-right": SMALL},
            "vacuous": False,
            "by_output": {},
            "by_input": {"hinge position": 0.8, "slider velocity": 0.1},
            "layers": {"actor": {"layers": ["blocks.0.linear", "head"], "norm": {"left-right": [0.1, 0.2]},
                                 "share": {"left-right": [0.4, 0.6]}}},
        }
    },
}  # fmt: skip


def written(runs, tmp_path, **options):
    return report.run(ReportConfig(runs=list(runs), out=str(tmp_path / "report.html"), **options)).read_text("utf-8")


@pytest.fixture(scope="module")
def text(runs, tmp_path_factory):
    """The page of these runs."""
    return written(runs, tmp_path_factory.mktemp("page"))


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_runs(text):
    (rpp, emlp) = rows_of(text, "Results of agents so far")
    assert rpp[:3] == ["rpp", "4", "200"] and emlp[:3] == ["emlp", "1", "200 of 200, unfinished"]
    assert rpp[3].startswith(f"{float(iqm([40.0, 50.0, 60.0, 70.0])):.1f} [") and emlp[3] == "40.0"
    assert rpp[4].startswith(f"{float(iqm([0.03, 0.06, 0.09, 0.12])):.3g} [") and emlp[4] == "0"
    returns = rows_of(text, "At the end on InvertedPendulum-v5")
    assert returns[0][-1] == "40.0, 50.0, 60.0, 70.0"


def test_configurations_are_compared_by_what_differs(tmp_path):
    made = [make_run(tmp_path / "a", "model=rpp"), make_run(tmp_path / "b", "model=rpp", "agent.gamma=0.9", seed=1)]
    text = written(made, tmp_path)
    assert rows_of(text, "Where the configurations differ") == [["rpp gamma=0.99", "0.99"], ["rpp gamma=0.9", "0.9"]]
    assert "agent.gamma" in text[: text.index("Common configuration")]
    common = dict(rows_of(text, "Common configuration"))
    assert common["model.kind"] == "rpp" and "agent.gamma" not in common and "seed" not in common
    made = [make_run(tmp_path / env, "agent=crossq", env=env) for env in ("InvertedPendulum-v5", "Swimmer-v5")]
    configs = [group.runs[0].config for group in read_groups(made)]  # these tasks recommend different values of tau
    assert "env.id" in different_keys(configs) and "agent.tau" not in different_keys(configs)


@pytest.mark.parametrize("steps, note", [(100, True), (200, False)])
def test_what_was_measured_before_a_run_went_on_is_marked(tmp_path, steps, note):
    run = make_run(tmp_path / "run")
    write_json(Path(run) / "equivariance.json", MEASURED | {"source": f"final policy, after {steps} steps"})
    text = written([run], tmp_path)
    assert f"final policy, after {steps} steps" in text
    assert ("has gone on since, to 200 steps: measure it again" in text) == note


def test_each_pathway_has_a_panel_and_is_drawn_as_its_group_is_elsewhere(tmp_path, monkeypatch):
    made = [make_run(tmp_path / f"{i}", "model=rpp", f"agent.gamma={0.9 + i / 100}") for i in range(7)]
    drawn, draw = {}, report.draw_panels

    def draw_panels(*arguments, **options):
        figure = draw(*arguments, **options)
        return drawn.setdefault(figure.axes[0].get_ylabel(), figure)

    monkeypatch.setattr(report, "draw_panels", draw_panels)
    written([*made, make_run(tmp_path / "emlp", "model=emlp")], tmp_path)
    returns, norms = drawn["mean return"].axes[0], drawn["norm of the weights"].axes
    assert [axes.get_title() for axes in norms] == [f"{who}, {pathway}" for who in ("actor", "critic")
                                                    for pathway in ("equivariant", "free")]  # fmt: skip
    looks = [(line.get_color(), line.get_linestyle()) for line in returns.lines]
    assert len(set(looks)) == 8 and looks[6][1] == "--"
    assert [(line.get_color(), line.get_linestyle()) for line in norms[0].lines] == looks
    assert [(line.get_color(), line.get_linestyle()) for line in norms[1].lines] == looks[:7]  # the emlp has none
    assert norms[1].get_xlabel() == "environment steps\nzero: emlp gamma=0.99"


def test_priors_are_those_that_the_networks_were_built_with(tmp_path):
    words = ("model.equivariant_variance=1e5", "model.free_variance=1e-3", "model.critic_free_variance=0.5")
    made = [make_run(tmp_path / kind, f"model={kind}", *words) for kind in ("rpp", "emlp", "mlp", "rpp_policy_only")]
    rows = {
        tuple(row[:3]): row[3]
        for row in rows_of(written(made, tmp_path), "Variances of the priors on InvertedPendulum-v5")
    }
    none = "no such pathway"
    assert (rows["rpp", "actor", "free"], rows["rpp", "critic", "free"]) == ("0.001", "0.5")
    assert (rows["emlp", "actor", "equivariant"], rows["emlp", "actor", "free"]) == ("105", none)
    assert (rows["mlp", "critic", "equivariant"], rows["mlp", "critic", "free"]) == (none, "105")
    policy_only = {
        "actor": rows["rpp_policy_only", "actor", "free"],
        "critic": rows["rpp_policy_only", "critic", "equivariant"],
    }
    assert policy_only == {"actor": "0.001", "critic": none}
    learns = [make_run(tmp_path / "learns", "model=rpp", "model.free_variance=learned")]
    starts = {
        row[1]: row[3]
        for row in rows_of(written(learns, tmp_path), "Variances of the priors on InvertedPendulum-v5")
        if row[2] == "free"
    }
    assert starts == dict.fromkeys(("actor", "critic"), "from 10−4")


def test_runs_that_are_unfinished_or_lack_files_say_so(tmp_path):
    made = [make_run(tmp_path / "a", returns=(-1.0, -2.0), finished=False, spec=False)]
    text = written(made, tmp_path)
    assert "unfinished, at step 100 of 200" in text
    assert rows_of(text, "Results of agents so far")[0][2] == "100 of 200, unfinished"
    assert "None of the runs holds a symmetry spec" in text and "rppdyn equivariance RUN" in text
    assert "No equivariance error was measured" in text  # vacuous


def test_certificates_and_what_specs_state(text, tmp_path):
    assert rows_of(text, "What the spec states of its generators")[0][:2] == ["left-right", "exact"]
    from rppdyn.envs import certify

    certificate = certify("InvertedPendulum-v5", n_states=30).to_dict()
    certified = make_run(tmp_path / "certified")
    write_json(Path(certified) / "certificate.json", certificate)
    rows = [row for row in re.findall(r"<tr>.*?</tr>", written([certified], tmp_path)) if "left-right" in row]
    assert any("exact" in row and "state" in row for row in rows) and any("reset" in row for row in rows)


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_is_self_contained_and_the_same_every_time(runs, text, tmp_path, caplog):
    empty = make_run(tmp_path / "empty", returns=())
    assert text == written([empty, *runs], tmp_path)
    assert "empty has no metrics yet, and is left out" in caplog.text
    assert "<script" not in text and "@import" not in text and not re.search(r"\ssrc=", text)
    assert {link[0] for link in re.findall(r'href="([^"]*)"', text)} == {"#"}
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    assert set(re.findall(r'https?://[^"\s]*', text)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_the_page_is_well_formed_and_accessible(text):
    page = Page(text)
    ids = [attributes["id"] for _, attributes in page.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for name, attributes in page.found if name == "a"]
    assert len(links) == 5 and all(link.removeprefix("#") in ids for link in links)
    assert len(page.all("h1")) == 1 and page.all("html")[0][0]["lang"] == "en"
    levels = [int(name[1]) for name, _ in page.found if re.fullmatch(r"h[1-6]", name)]
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert len(page.all("table")) == len(page.all("caption")) > 5
    pictures = [attributes for attributes, _ in page.all("svg") if "aria-hidden" not in attributes]
    assert len(pictures) == len(page.all("figure")) == 5
    assert all(p["role"] == "img" and len(p["aria-label"]) > 30 for p in pictures)
    assert any("hinge position" in p["aria-label"] for p in pictures)
    assert page.all("summary")[0][1] == "The settings that all share"


def test_files_of_other_versions_are_left_out_by_name(tmp_path):
    run = make_run(tmp_path / "old")
    for name in ("certificate.json", "equivariance.json"):
        write_json(Path(run) / name, {"format": 0})
    text = written([run], tmp_path)
    assert "certificate.json, equivariance.json of another version, left out" in text
    assert "What the spec states" in text and "rppdyn equivariance RUN" in text


def test_text_from_files_is_escaped(tmp_path):
    run = make_run(tmp_path / "<img src=x onerror=alert(1)>", "env.actuator_scale={slider: 0.5}")
    spec = json.loads((Path(run) / "spec.json").read_text())
    spec["symmetries"][0]["note"] = "<script>alert(1)</script>"
    write_json(Path(run) / "spec.json", spec)
    text = written([run], tmp_path)
    assert "<script" not in text and "<img" not in text and "&lt;script&gt;" in text
    table = html.table('"<b>"', ["&"], [["<i>"]])
    assert 'aria-label="&#34;&lt;b&gt;&#34;"' in table and ">&amp;</th>" in table and ">&lt;i&gt;</th>" in table


@pytest.mark.rendered
def test_several_environments_are_apart(tmp_path, monkeypatch):
    made = [make_run(tmp_path / "a"), make_run(tmp_path / "b", env="Walker2d-v5")]
    text = written(made, tmp_path)
    assert Page(text).all("title")[0][1] == "rppdyn: InvertedPendulum-v5, Walker2d-v5"
    monkeypatch.setattr(report, "picture", lambda *arguments: "")  # the next page's are not looked at
    more = [make_run(tmp_path / env, env=env) for env in ("Ant-v5", "Hopper-v5")]
    assert Page(written([*made, *more], tmp_path)).all("h1")[0][1] == "rppdyn: 4 tasks"
    headings = [content for _, content in Page(text).all("h2")]
    assert headings == ["At a glance", "What was trained", "InvertedPendulum-v5", "Walker2d-v5", "Runs"]
    assert len(rows_of(text, "At the end on Walker2d-v5")) == 1
    glance = Page(text).all("figure")[0][1]
    assert "InvertedPendulum-v5" in glance and "Walker2d-v5" in glance  # a panel each


# -- bad input --------------------------------------------------------------------------------------------------------


def test_bad_input_is_one_line(tmp_path, runs):
    empty = make_run(tmp_path / "empty", returns=())
    damaged = make_run(tmp_path / "damaged")
    (Path(damaged) / "certificate.json").write_text("{")
    listed = make_run(tmp_path / "listed")
    (Path(listed) / "equivariance.json").write_text("[]")
    for given, expected in (
        ([str(tmp_path / "absent")], "no run at"),
        ([str(tmp_path)], "no config.yaml"),
        ([runs[0], runs[0] + "/."], "given twice"),
        ([runs[0], shutil.copytree(runs[0], tmp_path / "copy")], "both have seed 0 of one configuration"),
        ([empty], "no metrics yet"),
        ([damaged], "certificate.json is damaged"),
        ([listed], "holds no JSON object"),
    ):
        with pytest.raises(ValueError, match=expected) as error:
            report.run(ReportConfig(runs=given, out=str(tmp_path / "out.html")))
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=r"--out report.pdf: must end in .html"):
        ReportConfig(runs=runs, out="report.pdf")
    assert not (tmp_path / "out.html").exists()


# -- in a browser -----------------------------------------------------------------------------------------------------


FAULTS = '<link rel="stylesheet" href="other.css"><p style="color: #999">pale</p><div style="width: 3000px">wide</div>'


@needs_browser
@pytest.mark.rendered
@pytest.mark.parametrize(("window", "scheme"), [("1280,900", "light"), ("390,844", "dark")])
def test_in_a_browser(runs, tmp_path, window, scheme):
    """Opened from disk it loads nothing, fits its window, can be read in both schemes, and shows its pictures."""
    path = report.run(ReportConfig(runs=list(runs), out=str(tmp_path / "report.html")))
    text = path.read_text("utf-8")
    found = probed(text, tmp_path, window, scheme)
    assert found["mode"] == "CSS1Compat" and found["refused"] == 0
    assert found["overflow"] <= 0
    assert found["contrast"] >= 4.5
    assert (max(map(int, re.findall(r"\d+", found["paper"])[:3])) < 60) == (scheme == "dark")
    assert found["pictures"] == 5 and found["width"] > 400 and found["height"] > 60
    assert found["captions"] == text.count("<caption>")
    if scheme == "dark":
        return
    shot = tmp_path / "shot.png"
    browse(path, tmp_path / "profile", "--window-size=1280,2400", f"--screenshot={shot}")
    picture = matplotlib.image.imread(shot)[..., :3]
    assert picture.shape[:2] == (2400, 1280)
    for colour in (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00):  # both groups' lines are there
        assert (np.abs(picture - np.array(colour) / 255).max(-1) < 0.03).sum() > 300
    # the same checks would notice pale text, a part that is too wide, a file that it would load
    (tmp_path / "other.css").write_text("p { margin: 0 }")
    found = probed(text.replace("</main>", f"{FAULTS}</main>"), tmp_path)
    assert found["refused"] == 1 and found["overflow"] > 1000 and found["contrast"] < 4.5
