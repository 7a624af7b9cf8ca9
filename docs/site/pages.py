"""What Sphinx lacks for these pages: formulas as MathML, notebooks, indented code in docstrings, names by which things go."""

from __future__ import annotations

import ast
import importlib
import json
import re
from html import escape
from typing import Any

import latex2mathml.converter
from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx
from sphinx.util.nodes import make_refnode

HEADERS = re.compile(r"(Args|Arguments|Attributes|Returns|Yields|Raises|Source|Sources|Example|Examples):\s*$")
REDIRECT = (
    '<!doctype html><meta charset="utf-8"><title>rppdyn</title><meta http-equiv="refresh" content="0; url={0}">'
    '<a href="{0}">rppdyn</a>\n'
)


# -- formulas ---------------------------------------------------------------------------------------------------------


def mathml(latex: str, display: str) -> str:
    """A formula as MathML.

    Raises:
        ValueError: it can't be read, with its text.
    """
    try:
        return latex2mathml.converter.convert(latex.replace(r"\bigl", "").replace(r"\bigr", ""), display=display)
    except Exception as error:  # whatever its parser raises
        raise ValueError(f"the formula {latex!r} can't be read: {type(error).__name__}: {error}") from error


def visit_inline(translator: Any, node: nodes.Element) -> None:
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_display(translator: Any, node: nodes.Element) -> None:
    rows = [row for row in re.split(r"\n\s*\n", node.astext().strip()) if row]
    translator.body.append("".join(f'<div class="formula">{mathml(row, "block")}</div>' for row in rows))
    raise nodes.SkipNode


# -- notebooks --------------------------------------------------------------------------------------------------------


class NotebookParser(MystParser):
    """A Jupyter notebook as a page: its cells, and what they printed and drew."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        super().parse(as_markdown(json.loads(inputstring)), document)


def as_markdown(notebook: dict[str, Any]) -> str:
    """Cells of a notebook as MyST."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [_output(output) for output in cell["outputs"]]
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        content = "".join(data["image/png"]).replace("\n", "")
        name = escape("".join(data.get("text/plain", "figure")))
        return f'```{{raw}} html\n<img class="output" alt="{name}" src="data:image/png;base64,{content}">\n```'
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```"


# -- docstrings -------------------------------------------------------------------------------------------------------


def mark_code(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Make literal blocks of what is indented below a blank line and no header, as in this package's docstrings."""
    out: list[str] = []
    i = 0
    while i < len(lines):
        line, before = lines[i], out[-1] if out else ""
        last = next((text for text in reversed(out) if text.strip()), "")
        starts = line.startswith("    ") and not before.strip()
        if (
            starts
            and last
            and not last.startswith(" ")
            and not last.rstrip().endswith("::")
            and not HEADERS.match(last)
        ):
            block = []
            while i < len(lines) and (lines[i].startswith("    ") or not lines[i].strip()):
                block.append(lines[i])
                i += 1
            text = "\n".join(row[4:] for row in block)
            out += [f".. code-block:: {_language(text)}", "", *block, ""]
            continue
        out.append(_escaped(line))
        i += 1
    lines[:] = out


def _escaped(line: str) -> str:
    """Signs that reST would read as markup, outside of what is between backticks."""
    if re.match(r"\s*(=+ )+=*$", line):
        return line
    line = re.sub(r"(?<=`)s\b", r"\\ s", line)  # `ValueError`s
    line = line.replace("*args, **kwargs", r"\*args, \*\*kwargs")
    parts = re.split(r"(``.+?``|`[^`]+`)", line)
    parts[::2] = [re.sub(r"(?<=\w)_(?=\W|$)", r"\_", part.replace("|", r"\|")) for part in parts[::2]]
    return "".join(parts)


def plain_folders(app: Sphinx, name: str, source: list[str]) -> None:
    """Leave the text of links to folders: GitHub shows them, a site has no page for them."""
    folder = (app.srcdir / name).parent

    def text(link: re.Match[str]) -> str:
        return f"{link[1]} (`{link[2]}/`)" if (folder / link[2]).is_dir() else link[0]

    source[0] = re.sub(r"\[([^\]]*)\]\(([\w./-]+)\)", text, source[0])


def _language(text: str) -> str:
    try:
        ast.parse(text)
    except SyntaxError:
        return "text"
    return "python"


def leave_out(app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what torch's modules and dataclasses have of their own."""
    module = getattr(thing, "__module__", None) or ""
    return True if not skip and module.split(".")[0] in ("torch", "stable_baselines3", "gymnasium") else None


# -- names ------------------------------------------------------------------------------------------------------------


def resolve(app: Sphinx, env: Any, node: Any, content: nodes.Element) -> nodes.Element | None:
    """Follow a name to where the same thing is documented: packages offer what their modules define.

    A thing that exists and has no entry is shown without a link; one that does not exist is a warning.
    """
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target.startswith("rppdyn."):
        return None
    thing = _named(target)
    if thing is None:
        return None
    domain = env.get_domain("py")
    for name, entry in domain.objects.items():
        if name.rpartition(".")[2] == target.rpartition(".")[2] and _named(name) is thing:
            return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content, name)
    return content


def _named(name: str) -> Any:
    parts = name.split(".")
    for i in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:i]))
        except ImportError:
            continue
        for part in parts[i:]:
            thing = getattr(thing, part, None)
        return thing
    return None


def finish(app: Sphinx, error: Exception | None) -> None:
    """Write the first page's redirection to the top of the site."""
    if error is None and app.builder.name == "html":
        (app.outdir / "index.html").write_text(REDIRECT.format(f"{app.config.root_doc}.html"), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_display, None))
    app.add_source_parser(NotebookParser)
    app.connect("autodoc-process-docstring", mark_code, priority=100)  # before napoleon
    app.connect("autodoc-skip-member", leave_out)
    app.connect("source-read", plain_folders)
    app.connect("missing-reference", resolve)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
