"""What the documentation says is run: Python blocks, docstring examples, commands, links."""

from __future__ import annotations

import doctest
import functools
import importlib
import importlib.util
import pkgutil
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import rppdyn
from rppdyn import cli
from rppdyn.cli import Parser
from rppdyn.envs import certify
from rppdyn.jobs.config import compose

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def blocks(page: Path, *languages: str) -> list[str]:
    return [code for language, code in BLOCK.findall(page.read_text(encoding="utf-8")) if language in languages]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def with_examples() -> list[str]:
    """Modules in whose source there is a docstring's example."""
    paths = {module: importlib.util.find_spec(module).origin for module in modules()}
    return [m for m, path in paths.items() if ">>> " in Path(path).read_text(encoding="utf-8")]


def modules() -> list[str]:
    return sorted(m.name for m in pkgutil.walk_packages(rppdyn.__path__, "rppdyn.") if not m.name.endswith("__main__"))


def beside_the_examples(folder: Path, monkeypatch) -> None:
    """Go where a reader is told to be: in a folder that holds copies of the example files."""
    shutil.copytree(ROOT / "docs" / "examples", folder, dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """The blocks of a page run one after the other in one namespace, in a folder with the examples, from a fixed seed.

    An exception or a warning in any of them fails it; values in comments are not compared.
    """
    beside_the_examples(tmp_path, monkeypatch)
    for option, few in (("n_states", 60), ("n_resets", 100)):
        monkeypatch.setitem(certify.__kwdefaults__, option, few)
    namespace = {"__name__": "__main__"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for code in blocks(page, "python"):
            exec(compile(code, name(page), "exec"), namespace)


def test_no_python_block_is_left_out():
    """One that is indented, or fenced as py, would not run."""
    fences = {page: re.findall(r"^\s*```\s*py", page.read_text(encoding="utf-8"), re.MULTILINE) for page in PAGES}
    assert [name(page) for page, own in fences.items() if len(own) != len(blocks(page, "python"))] == []


@pytest.mark.parametrize("module", with_examples())
def test_docstring_examples(module):
    if module in ("rppdyn.integrations.rsl_rl.export", "rppdyn.integrations.rsl_rl.models"):
        pytest.importorskip("rsl_rl")
    results = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert results.failed == 0 < results.attempted


def test_relative_links_resolve():
    broken = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for link in LINK.findall(text):
            other, _, anchor = link.partition("#")
            target = page.parent / other if other else page
            if not re.match(r"[a-z]+:", link) and not (
                target.exists() and (not anchor or target.suffix != ".md" or anchor in headings(target))
            ):
                broken.append((name(page), link))
    assert broken == []


@functools.cache
def headings(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings: small letters, hyphens for spaces, no other signs."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_reached_from_the_readme():
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop().resolve()
        if page not in seen and page.suffix == ".md" and page.is_file():
            seen.add(page)
            todo += [page.parent / link.split("#")[0] for link in LINK.findall(page.read_text(encoding="utf-8"))]
    assert [name(page) for page in PAGES if page not in seen] == []


def commands(page: Path) -> list[list[str]]:
    """The words of every command in the page: shell blocks, and indented lines that start with rppdyn or make.

    Comments, the output below a `$ ` prompt and synopses with [optional] parts are left out.
    """
    found = []
    indented = re.findall(r"^    ((?:rppdyn|make) [^\[\n]*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    for code in [*blocks(page, "console", "bash", "sh"), *indented]:
        lines = code.replace("\\\n", " ").splitlines()
        if any(line.startswith("$ ") for line in lines):
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        found += [words for line in lines if (words := shlex.split(line, comments=True))]
    return found


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=name)
def test_commands_are_understood(page, tmp_path, monkeypatch):
    """make's targets exist; of `rppdyn`, the verb, its arguments and its overrides are accepted. Nothing is started."""
    beside_the_examples(tmp_path, monkeypatch)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for words in commands(page):
        while re.match(r"[A-Z_]+=", words[0]):  # variables set for one command
            words = words[1:]
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets, words
        if words[0] == "rppdyn" and words[1:] and not words[1].startswith("-"):
            understood(words[1], words[2:])


def understood(verb: str, words: list[str]) -> None:
    searches = compose.is_search(words)
    words = [word for word in words if not re.match(r"hydra[/.](launcher|sweeper)[=.]", word)]  # not installed
    assert verb in cli.VERBS, verb
    parser = Parser(exit_on_error=False)
    cli.VERBS[verb].arguments(parser)
    if "--help" in words:
        return
    arguments = parser.parse_intermixed_args(words)
    if verb == "train-agent":
        overrides = [word for word in arguments.overrides if not (arguments.resume and "=" not in word)]
        sweep = compose.compose_search if searches else compose.compose_sweep
        check = sweep if arguments.multirun else compose.composed
        check("train_agent", overrides)


def test_makefile_parses():
    done = subprocess.run(["make", "--dry-run", "help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
