"""The documentation site and its tutorials, without building it (`make docs` does, and checks every link)."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SITE, TUTORIALS = ROOT / "docs" / "site", ROOT / "docs" / "tutorials"
PAGES = (".md", ".ipynb", ".rst")
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))


def module(path: Path):
    spec = importlib.util.spec_from_file_location(f"of_docs_{path.stem}", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def entries(page: Path) -> list[str]:
    """Documents that a page's tables of contents name."""
    blocks = re.findall(r"\.\. toctree::\n((?:   .*\n|\n)*)", page.read_text(encoding="utf-8"))
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    named = [re.sub(r".*<(.*)>", r"\1", line) for line in lines if line and not line.startswith(":")]
    found: list[str] = []
    for name in named:  # what a pattern matches comes after what is named, once, as Sphinx has it
        path = name[1:] if name.startswith("/") else f"docs/site/{name}"
        matched = sorted(
            str(file.relative_to(ROOT).with_suffix("")) for file in ROOT.glob(path) if file.suffix in PAGES
        )
        found += [one for one in (matched if "*" in path else [path]) if one not in found]
    return found


def test_every_page_is_in_the_navigation_once():
    seen, todo = [], ["docs/site/index"]
    while todo:
        name = todo.pop()
        seen.append(name)
        page = ROOT / f"{name}.rst"
        if page.is_file():
            todo += entries(page)
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb"), *SITE.rglob("*.rst")]
    expected = {str(page.relative_to(ROOT).with_suffix("")) for page in pages} | {
        "README", "CHANGELOG", "CONTRIBUTING", "CODE_OF_CONDUCT"}  # fmt: skip
    assert set(seen) == expected
    assert len(seen) == len(set(seen))


SHORTER = {"optimiser__epochs=80": "optimiser__epochs=2", "evaluation__every=80": "evaluation__every=2",
           "learning_starts=300": "learning_starts=100", "agent.learn(800)": "agent.learn(150)"}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_runs_and_draws(path):
    """Its trainings are shortened: what they reach is in the outputs that the file holds."""
    notebooks = module(TUTORIALS / "notebooks.py")
    text = path.read_text(encoding="utf-8")
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    notebook = json.loads(text)
    assert any(cell["cell_type"] == "code" and cell["outputs"] for cell in notebook["cells"])  # what the site shows
    with notebooks.beside_the_examples():
        notebooks.run(notebook)
    kinds = [output["output_type"] for cell in notebook["cells"] for output in cell.get("outputs", [])]
    assert "stream" in kinds and "display_data" in kinds


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_tutorials_are_small_and_say_what_is_next(path):
    text = path.read_text(encoding="utf-8")
    assert len(text) < 80_000
    cells = json.loads(text)["cells"]
    assert "".join(cells[0]["source"]).startswith("# ")
    assert "## What next" in "".join(cells[-1]["source"])
    links = re.findall(
        r"\]\(([^):]+)\)", "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    )
    assert [link for link in links if not (path.parent / link.split("#")[0]).is_file()] == []


def test_links_of_a_built_site_are_checked(tmp_path):
    links = module(SITE / "links.py")
    (tmp_path / "a.html").write_text('<a href="b.html#here">b</a><a href="https://x.org/">x</a><p id="there">')
    (tmp_path / "b.html").write_text('<p id="here"><a href="a.html#there">a</a>')
    assert links.broken(tmp_path.resolve()) == []
    (tmp_path / "b.html").write_text('<a href="c.html">c</a><script src="https://cdn.org/x.js"></script>')
    assert len(links.broken(tmp_path.resolve())) == 3  # no file, no anchor, a script that is fetched
