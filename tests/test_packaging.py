"""The package as others meet it: layout, floors, what a wheel holds, what a bare import does."""

from __future__ import annotations

import ast
import functools
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import rppdyn

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
LINKS = ("agents", "configs", "envs")

# The floors of the house: a module imports its own floor and those below, never one above.
FLOORS = {
    "_version": 0,
    "errors": 0,
    "settings": 1,
    "configs": 0,
    "groups": 1,
    "reps": 1,
    "runs": 1,
    "basis": 2,
    "nn": 3,
    "priors": 3,
    "compression": 3,
    "equivariance": 3,
    "dynamics": 4,
    "images": 4,
    "tasks": 4,
    "envs": 5,
    "agents": 6,
    "integrations": 6,
    "jobs": 7,
    "cli": 8,
}
# The rooms of jobs, and files that they share, in the same way. The other files beside them are verbs, which may use every
# room, and some rooms verbs' models.
ROOMS_OF_JOBS = {"config": 0, "results": 1, "figure": 2, "fit": 3, "building": 3, "own_data": 4, "loading": 4, "measure": 5,
                 "targets": 6}  # fmt: skip
FILES_OF_JOBS = set(ROOMS_OF_JOBS) - {"config"}
TOP = 7  # where verbs are
VERBS_OF_ROOMS = {("fit", "report"), ("figure", "loading"), ("targets", "fit_image")}
"""Verbs and rooms that a lower room asks: a fit leaves the report of its own run, `figure` plays agents from files, images are
measured by the models of a fit."""
# Imports that go up, each with its reason. They stand inside a function or under TYPE_CHECKING.
UPWARDS = {("reps", "basis"): "rep.solve() and rep.equivariant_basis() are how users reach the solver"}
MATHEMATICS = ("groups", "reps", "basis", "nn", "priors", "compression", "equivariance", "dynamics", "images", "tasks")
SIMULATORS = {"gymnasium", "mujoco", "stable_baselines3"}
FOREIGN = {*SIMULATORS, "hydra", "omegaconf"}


def sources() -> list[tuple[str, Path]]:
    """(room, file) of every module; a room is a file or folder on one floor. Links are left to the folders they name."""
    found = [(path.stem, path) for path in (ROOT / "rppdyn").glob("*.py") if path.stem != "__init__"]
    for folder in [*(ROOT / "rppdyn").iterdir(), *(ROOT / name for name in LINKS)]:
        if folder.is_dir() and not folder.is_symlink() and folder.name != "__pycache__":
            found += [(folder.name, path) for path in folder.rglob("*.py")]
    return sorted(found)


@functools.cache
def imports(path: Path) -> list[tuple[str, int, bool]]:
    """(dotted name, line, lazily) of every import in a file; lazily means in a function or under TYPE_CHECKING."""
    found = []

    def visit(node: ast.AST, lazily: bool) -> None:
        for child in ast.iter_child_nodes(node):
            within = lazily or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                within = True
            if isinstance(child, ast.Import):
                found.extend((alias.name, child.lineno, within) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}:{child.lineno}: a relative import; write it absolutely"
                names = [f"{child.module}.{alias.name}" for alias in child.names]
                found.extend((name, child.lineno, within) for name in names)
            visit(child, within)

    visit(ast.parse(path.read_text(encoding="utf-8")), False)
    return found


def rooms_imported(path: Path) -> list[tuple[str, int, bool]]:
    parts = [(name.split("."), line, lazily) for name, line, lazily in imports(path)]
    return [(p[1], line, lazily) for p, line, lazily in parts if p[0] == "rppdyn" and len(p) > 1 and p[1] in FLOORS]


def test_nothing_imports_upwards():
    wrong = []
    for room, path in sources():
        for target, line, lazily in rooms_imported(path):
            allowed = FLOORS[target] <= FLOORS[room] or ((room, target) in UPWARDS and lazily)
            if not allowed:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {room} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_rooms_of_jobs_import_one_way():
    wrong, jobs = [], ROOT / "rppdyn" / "jobs"
    assert {path.parent.name for path in jobs.glob("*/__init__.py")} == set(ROOMS_OF_JOBS) - FILES_OF_JOBS
    for room, floor in ROOMS_OF_JOBS.items():
        for path in [jobs / f"{room}.py"] if room in FILES_OF_JOBS else (jobs / room).glob("*.py"):
            targets = [(name.split(".")[2], line) for name, line, _ in imports(path) if name.startswith("rppdyn.jobs.")]
            wrong += [
                f"{path.relative_to(ROOT)}:{line}: {room} imports {target}"
                for target, line in targets
                if target != room and ROOMS_OF_JOBS.get(target, TOP) >= floor and (room, target) not in VERBS_OF_ROOMS
            ]
    assert not wrong, "\n".join(wrong)


def test_rooms_have_no_cycles():
    graph: dict[str, set[str]] = {room: set() for room, _ in sources()}
    for room, path in sources():
        graph[room] |= {target for target, _, lazily in rooms_imported(path) if target != room and not lazily}
    TopologicalSorter(graph).prepare()  # raises CycleError, naming the cycle


def test_modules_have_no_cycles():
    """Module by module, of what is imported when a module is. The one exception stands at the end of its file."""
    modules: dict[str, Path] = {}
    for room, path in sources():
        base = ROOT if room in LINKS else ROOT / "rppdyn"
        modules[".".join(["rppdyn", *path.relative_to(base).with_suffix("").parts]).removesuffix(".__init__")] = path
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        names = {name for name, _, lazily in imports(path) if not lazily}
        graph[module] = {name if name in modules else name.rpartition(".")[0] for name in names} & set(modules) - {
            module
        }
    graph["rppdyn.reps._rep"] -= {f"rppdyn.reps.{name}" for name in ("_builtin", "_matrices")}
    TopologicalSorter(graph).prepare()


# Lines and modules of each room, at most. A change that adds a mechanism removes one; when lines go, these numbers go down.
BUDGET = {
    "agents": (4998, 16), "basis": (2282, 7), "cli": (658, 1), "compression": (688, 3), "dynamics": (1398, 6),
    "envs": (14280, 36), "equivariance": (3053, 7), "errors": (244, 1), "groups": (663, 1), "images": (2668, 8),
    "integrations": (1235, 8), "jobs": (11021, 30), "nn": (4072, 13), "priors": (1381, 5), "reps": (1530, 5),
    "runs": (2608, 8), "settings": (256, 1), "tasks": (2555, 8),
}  # fmt: skip


def test_rooms_keep_to_their_budget():
    held: dict[str, list[int]] = {room: [] for room in BUDGET}
    for room, path in sources():
        if room in BUDGET:
            held[room].append(len(path.read_text(encoding="utf-8").splitlines()))
    over = {room: (sum(lines), len(lines)) for room, lines in held.items()
            if sum(lines) > BUDGET[room][0] or len(lines) > BUDGET[room][1]}  # fmt: skip
    assert not over and set(BUDGET) | {"_version", "configs"} == set(FLOORS)


def test_no_class_name_stands_twice():
    names = [
        node.name
        for _, path in sources()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    ]
    assert sorted(name for name, count in Counter(names).items() if count > 1) == []


def test_mathematics_knows_no_simulator_and_no_configuration_tool():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for room, path in sources()
        if room in MATHEMATICS
        for name, line, _ in imports(path)
        if name.split(".")[0] in FOREIGN
    ]
    assert not wrong, "\n".join(wrong)


def test_packages_listed_are_the_packages_there_are():
    tree = {"rppdyn"}
    for base, name in [(ROOT / "rppdyn", "rppdyn"), *((ROOT / link, f"rppdyn.{link}") for link in LINKS)]:
        for init in base.rglob("__init__.py"):
            inner = init.parent.relative_to(base).parts
            if not (base.name == "rppdyn" and inner and inner[0] in LINKS):
                tree.add(".".join([name, *inner]))
    assert set(SETUPTOOLS["packages"]) == tree
    assert SETUPTOOLS["packages"] == sorted(SETUPTOOLS["packages"])
    assert SETUPTOOLS["package-dir"] == {"rppdyn": "rppdyn"} | {f"rppdyn.{link}": link for link in LINKS}


@pytest.mark.parametrize("name", LINKS)
def test_links_name_the_folders_beside_the_package(name):
    link = ROOT / "rppdyn" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name
    assert (ROOT / name / "__init__.py").is_file()


@pytest.mark.parametrize("name", ["envs", "agents"])
def test_bare_names_refuse_to_be_imported(name):
    done = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError") and f"rppdyn.{name}" in last


IMPORTED = {
    "rppdyn": {"torch", "numpy", "gymnasium", "hydra"},
    "rppdyn.tasks._images, rppdyn.jobs.fit_image, rppdyn.jobs.fit_regression, rppdyn.jobs.fit_dynamics": SIMULATORS,
}


@pytest.mark.parametrize("names", IMPORTED, ids=lambda names: names[:20])
def test_an_import_loads_no_more_than_it_needs(names):
    code = f"import sys, {names}; dir(rppdyn); print(*sorted({IMPORTED[names]} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_version_is_told_once():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {rppdyn.__version__}\n" in citation
    assert f"## {rppdyn.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "version" in PYPROJECT["project"]["dynamic"]


def test_constraints_pin_what_the_project_asks_for():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines if line and not line.startswith("#")}
    asked = PYPROJECT["project"]["dependencies"] + PYPROJECT["project"]["optional-dependencies"]["test"]
    names = {requirement.split(">")[0].split("[")[0].lower().replace("_", "-") for requirement in asked}
    assert names <= pinned
    assert all("==" in line for line in lines if line and not line.startswith("#"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built from a copy of the sources without the symbolic links, as a checkout on Windows would be."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    skip = shutil.ignore_patterns("__pycache__", *LINKS)
    shutil.copytree(ROOT / "rppdyn", copy / "rppdyn", ignore=skip)
    for name in LINKS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(copy / "dist"), str(copy)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (path,) = (copy / "dist").glob("*.whl")
    return zipfile.ZipFile(path)


def test_wheel_holds_every_module_and_every_configuration(wheel):
    expected = {"rppdyn/__init__.py", "rppdyn/py.typed"}
    expected |= {f"rppdyn/{path.relative_to(ROOT / 'rppdyn')}" for room, path in sources() if room not in LINKS}
    expected |= {f"rppdyn/{path.relative_to(ROOT)}" for room, path in sources() if room in LINKS}
    expected |= {f"rppdyn/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.yaml")}
    expected |= {"rppdyn/envs/verdicts.json", "rppdyn/jobs/report.html"}
    expected |= {f"rppdyn/{path.relative_to(ROOT)}" for path in (ROOT / "agents" / "weights").iterdir()}
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == expected
    assert sum(entry.compress_size for entry in wheel.infolist()) < 10_000_000
    info = f"rppdyn-{rppdyn.__version__}.dist-info"
    assert f"{info}/licenses/LICENSE" in wheel.namelist()
    assert "rppdyn = rppdyn.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()
