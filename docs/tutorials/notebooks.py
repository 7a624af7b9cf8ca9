"""Run the tutorials, each in one process and without Jupyter; `--write` keeps what they print and draw.

python docs/tutorials/notebooks.py [--write] [agent.ipynb ...]
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples"


def run(notebook: dict[str, Any]) -> None:
    """Run the code cells one after the other in one namespace, in the working folder; outputs are put in their places.

    What a cell prints and the figures that it leaves open are its outputs.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    namespace = {"__name__": "__main__"}
    for number, cell in enumerate(cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile("".join(cell["source"]), f"cell {number + 1}", "exec"), namespace)
        outputs: list[dict[str, Any]] = []
        if text := printed.getvalue():
            outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
        for figure in map(plt.figure, plt.get_fignums()):
            file = io.BytesIO()
            figure.savefig(file, format="png", dpi=72)
            said = figure.get_label() or "figure"
            data = {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": [said]}
            outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
        plt.close("all")
        cell["outputs"] = outputs


@contextlib.contextmanager
def beside_the_examples() -> Iterator[None]:
    """A folder with copies of the example files; it goes afterwards, with what was imported from it and registered."""
    import sys

    import gymnasium as gym

    before, modules, registered = Path.cwd(), set(sys.modules), set(gym.registry)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
        os.chdir(folder)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            sys.path.remove(folder)
            os.chdir(before)
            for name in {path.stem for path in EXAMPLES.glob("*.py")} - modules:
                sys.modules.pop(name, None)
            for name in set(gym.registry) - registered:
                del gym.registry[name]


def main() -> None:
    """Run the tutorials that are named, else all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=sorted(HERE.glob("*.ipynb")))
    parser.add_argument("--write", action="store_true", help="keep the outputs in the files")
    arguments = parser.parse_args()
    for path in map(Path.resolve, arguments.files):
        notebook, start = json.loads(path.read_text(encoding="utf-8")), time.process_time()
        with beside_the_examples():
            run(notebook)
        print(f"{path.name}: {time.process_time() - start:.0f} s of processor time")
        if arguments.write:
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
