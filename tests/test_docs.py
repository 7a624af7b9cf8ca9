"""What the documentation says is run: Python blocks, docstring examples, commands, links."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shlex
import subprocess
from pathlib import Path

import pytest

import rppdyn

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def blocks(page: Path, *languages: str) -> list[str]:
    return [code for language, code in BLOCK.findall(page.read_text(encoding="utf-8")) if language in languages]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def modules() -> list[str]:
    return sorted(m.name for m in pkgutil.walk_packages(rppdyn.__path__, "rppdyn.") if not m.name.endswith("__main__"))


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """The blocks of a page run one after the other in one namespace, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for code in blocks(page, "python"):
        exec(compile(code, name(page), "exec"), namespace)


@pytest.mark.parametrize("module", modules())
def test_docstring_examples(module):
    results = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert results.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_resolve(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = [link.split("#")[0] for link in LINK.findall(text) if not re.match(r"[a-z]+:|#", link)]
    assert [t for t in targets if not (page.parent / t).exists()] == []


def test_every_page_is_reached_from_the_readme():
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop().resolve()
        if page not in seen and page.suffix == ".md" and page.is_file():
            seen.add(page)
            todo += [page.parent / link.split("#")[0] for link in LINK.findall(page.read_text(encoding="utf-8"))]
    assert [name(page) for page in PAGES if page not in seen] == []


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "console", "bash", "sh")], ids=name)
def test_make_commands_exist(page):
    for code in blocks(page, "console", "bash", "sh"):
        for words in map(shlex.split, code.splitlines()):
            if words[:1] == ["make"]:
                assert {w for w in words[1:] if "=" not in w} <= make_targets(), words


def test_makefile_parses():
    done = subprocess.run(["make", "--dry-run", "help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
