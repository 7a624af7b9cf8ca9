"""The evidence is what the raw data say, and its pages are short."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
EVIDENCE = runpy.run_path(str(DOCS / "evidence" / "evidence.py"))
CLAIMS = json.loads((DOCS / "evidence" / "claims.json").read_text(encoding="utf-8"))
SHORT = [
    *(DOCS / "results").glob("*.md"),
    *(DOCS / "evidence").glob("*.md"),
    *(DOCS / "notebook").glob("*.md"),
    DOCS / "evidence.md",
]
LISTS = ("protocol.md", "claims.md")  # which grow with the questions and the claims


def test_claims_are_those_of_the_raw_data():
    recomputed = EVIDENCE["recompute"](CLAIMS)
    assert [claim["verdict"] for claim in recomputed] == [claim["verdict"] for claim in CLAIMS]
    for new, old in zip(recomputed, CLAIMS, strict=True):
        if "measured" in old:
            assert new["measured"]["best"] == old["measured"]["best"]
            assert new["measured"]["ratio"] == pytest.approx(old["measured"]["ratio"], rel=1e-5)  # of six digits


def test_tables_are_those_of_the_claims():
    for page, shown in zip(EVIDENCE["PAGES"], ([c for c in CLAIMS if c.get("shown")], CLAIMS), strict=True):
        assert EVIDENCE["table"](shown) in page.read_text(encoding="utf-8")


def test_the_table_of_agents_is_that_of_their_returns(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "evidence"))
    agents = runpy.run_path(str(DOCS / "evidence" / "approximate.py"))
    rows = json.loads((DOCS / "evidence" / "approximate.json").read_text(encoding="utf-8"))
    for row in rows:  # evaluations after the first, rounded to a tenth
        assert [sum(curve[1:]) / len(curve[1:]) for curve in row["returns"]] == pytest.approx(row["values"], abs=0.1)
    assert agents["table"](agents["tested"](rows)) in (DOCS / "evidence" / "approximate.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name",
    ["crossq", "large_groups", "learned_noise", "penalty_unit", "prior", "returns", "robot_models", "robot_rates"],
)
def test_other_tables_are_those_of_their_raw_data(name, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "evidence"))
    script = runpy.run_path(str(DOCS / "evidence" / f"{name}.py"))
    if name in ("large_groups", "learned_noise", "penalty_unit"):
        tables = {script["PAGE"]: script["table"](json.loads(script["DATA"].read_text(encoding="utf-8")))}
    elif name == "crossq":
        tables = {script["PAGE"]: script["base_table"](script["read_rows"](script["DATA"]))}
    elif name == "prior":
        tables = {script["PAGE"]: script["table"](script["read"]())}
    elif name.startswith("robot_"):
        rows, arms = script["read_rows"](script["DATA"]), script.get("TRIED", script["ARMS"])
        tables = {script["PAGE"]: script["table"](rows, arms, script["DATA"], script["CELLS"])}
    else:
        pages = script["pages"](script["read_rows"](script["DATA"]))
        tables = {script["PAGES"][page]: script["table"](tasks) for page, tasks in pages.items() if tasks}
    assert tables
    for page, table in tables.items():
        assert table in page.read_text(encoding="utf-8")


def claim(ours, others, **changes):
    rows = [
        {"cell": "here", "arm": arm, "seeds": list(range(len(v))), "values": v}
        for arm, v in {"ours": ours, **others}.items()
    ]
    return rows, {"id": "it", "cell": "here", "arm": "ours", "against": list(others), "relation": "ahead",
                  "kind": "error", "data": "raw.json"} | changes  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "others", "changes", "verdict"),
    [
        ([0.5] * 9 + [0.6], {"control": [1.0] * 10}, {}, "decided"),
        ([0.5] * 9 + [0.6], {"mlp": [1.0] * 10}, {}, "suggestive"),  # without the control nothing is decided
        ([0.5, 0.6, 0.5], {"control": [1.0] * 3}, {}, "open"),  # too few for a test
        ([0.5, 0.6, 0.5, 0.6, 0.5], {"control": [1.0] * 5}, {}, "suggestive"),
        ([0.5] * 6 + [1.6] * 4, {"control": [1.0] * 10}, {}, "open"),
        ([1.5] * 9 + [1.6], {"control": [1.0] * 10}, {}, "contradicted"),
        ([1.5] * 4 + [1.6], {"mlp": [1.0] * 5}, {}, "contradicted"),  # from five on, by whichever arm
        ([0.99, 0.98, 0.99], {"control": [1.0] * 3}, {}, "open"),  # less than 2 % suggests nothing
        ([0.9] * 9 + [0.8], {"control": [1.0] * 10, "emlp": [0.5] * 10}, {}, "contradicted"),  # the best other counts
        ([0.7] * 9 + [0.71], {"control": [1.0] * 10}, {"margin": 0.75}, "decided"),  # ahead by a third
        ([0.8] * 9 + [0.81], {"control": [1.0] * 10}, {"margin": 0.75}, "contradicted"),
        ([1.01] * 9 + [1.0], {"emlp": [1.0] * 10}, {"relation": "level"}, "decided"),
        ([1.0] * 9 + [1.001], {"control": [1.0] * 10}, {"relation": "same"}, "decided"),
        ([0.5], {"control": [1.0]}, {}, "open"),
    ],
)
def test_verdicts(ours, others, changes, verdict, tmp_path, monkeypatch):
    rows, one = claim(ours, others, **changes)
    (tmp_path / "raw.json").write_text(json.dumps(rows))
    monkeypatch.setitem(EVIDENCE["values_of"].__globals__, "HERE", tmp_path)
    assert EVIDENCE["recompute"]([one])[0]["verdict"] == verdict


def test_returns_are_decided_by_ranks(tmp_path, monkeypatch):
    rows, one = claim(
        [float(i) for i in range(20, 30)],
        {"control": [float(i) for i in range(1, 11)]},
        kind="return",
    )
    (tmp_path / "raw.json").write_text(json.dumps(rows))
    monkeypatch.setitem(EVIDENCE["values_of"].__globals__, "HERE", tmp_path)
    (decided,) = EVIDENCE["recompute"]([one])
    assert decided["verdict"] == "decided" and decided["measured"]["ratio"] < 0.3
    assert EVIDENCE["holm"]([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_returns_below_zero_are_returns(tmp_path, monkeypatch):
    monkeypatch.setitem(EVIDENCE["values_of"].__globals__, "HERE", tmp_path)
    better, worse = [-float(i) for i in range(1, 11)], [-float(i) for i in range(20, 30)]
    for ours, other, verdict in ((better, worse, "decided"), (worse, better, "contradicted")):
        rows, one = claim(ours, {"control": other}, kind="return")
        (tmp_path / "raw.json").write_text(json.dumps(rows))
        assert EVIDENCE["recompute"]([one])[0]["verdict"] == verdict


def test_many_claims_are_corrected_errors_and_returns_apart(tmp_path, monkeypatch):
    monkeypatch.setitem(EVIDENCE["values_of"].__globals__, "HERE", tmp_path)
    rows, one = claim([0.7, 1.1, 0.8, 0.9, 0.7, 0.8, 1.0, 0.9, 0.8, 0.9], {"control": [1.0] * 10})
    (tmp_path / "raw.json").write_text(json.dumps(rows))
    alone, *many = (EVIDENCE["recompute"]([one] * n)[0] for n in (1, 200))
    assert alone["verdict"] == "decided" and [m["verdict"] for m in many] == ["suggestive"]


RETURNS = ("approximate", "data/agents", "data/crossq", "large_groups", "learned_models", "returns")
"""Raw files of returns; those of classification errors are "data/images", of products of both, and the rest of errors."""


def test_rules_follow_from_kinds():
    for claim in CLAIMS:
        one = claim.get("measured")
        if one is None:
            assert claim["verdict"] == "open" and "kind" not in claim
            continue
        file = claim["data"].removesuffix(".json")
        is_return = file in RETURNS or (file == "data/products" and "Reacher" in claim["cell"])
        kind = "return" if is_return else "rate" if file == "data/images" else "error"
        assert claim["kind"] == kind and not {"better", "statistic", "control"} & set(claim), claim["id"]
        assert ("p" in one) == (one["seeds"] >= 5), claim["id"]
        means = one["means"]
        assert is_return or not ("final" in one or any(mean < 0 for mean in means.values())), claim["id"]
        best = max if is_return else min
        assert one["best"] == best(claim["against"], key=means.get), claim["id"]
        if claim["relation"] == "ahead" and one["ratio"] < 1:  # below 1 is better, of returns below zero, too
            ours, other = means[claim["arm"]], means[one["best"]]
            assert (ours > other) if is_return else (ours < other) or kind == "error"
        if claim["verdict"] == "decided":
            assert one["seeds"] >= 10 and one["p"] < 0.05
            assert claim["relation"] != "ahead" or "control" in claim["against"], claim["id"]
        if claim["verdict"] == "suggestive":
            assert one["p"] < 0.1


def test_an_arm_that_is_not_there_is_named(tmp_path, monkeypatch):
    rows, one = claim([1.0, 2.0], {"control": [1.0, 1.0]})
    (tmp_path / "raw.json").write_text(json.dumps(rows[:1]))
    monkeypatch.setitem(EVIDENCE["values_of"].__globals__, "HERE", tmp_path)
    with pytest.raises(ValueError, match=r"it: raw\.json has 0 rows 'control' of 'here'"):
        EVIDENCE["recompute"]([one])


def test_pages_are_short():
    texts = {page: page.read_text(encoding="utf-8") for page in SHORT if page.name not in LISTS}
    assert [page for page, text in texts.items() if len(text.splitlines()) > 80 or len(text.split()) > 1000] == []


def test_raw_data_are_small():
    files = [path for folder in ("results", "evidence") for path in (DOCS / folder).rglob("*") if path.is_file()]
    files = [path for path in files if path.parent.name != "__pycache__"]
    assert max(path.stat().st_size for path in files if path.suffix == ".json") <= 200_000
    assert sum(path.stat().st_size for path in files) < 3_500_000
