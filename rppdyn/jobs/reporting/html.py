"""A page of HTML that needs nothing else: elements that escape their text, tables, inlined pictures, one style sheet."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

VOID = ("meta", "link", "br", "hr", "img", "col")

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What a browser may load for the page: nothing; and it may run no script."""

INK = "#123456"
"""The colour of text and lines in a picture, which becomes the colour of the page's text."""

STYLE = """
:root { color-scheme: light dark; --ink: #1d2530; --soft: #5b6675; --paper: #ffffff; --tint: #f3f5f8; --line: #d5dae1;
  --link: #0b5c94; --good: #0a6b4b; --fair: #8a5a00; --bad: #a8321c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #a3adba; --paper: #14181e; --tint: #1d232b;
  --line: #38414d; --link: #7cc0f0; --good: #5fd0a4; --fair: #eebd5c; --bad: #ff9a82; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", Roboto, sans-serif; }
main, header, nav, footer { max-width: 76rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2.5rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.35rem; margin: 3rem 0 .5rem; padding-top: .9rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .3rem; }
p { max-width: 46rem; margin: .4rem 0 .8rem; }
a { color: var(--link); }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -100rem; }
.skip:focus { left: 1rem; top: 1rem; background: var(--paper); padding: .5rem; }
.lead, figcaption, caption, .note, footer { color: var(--soft); }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: 1rem 0 0; padding: 0; }
.wide { overflow-x: auto; margin: .6rem 0 1.2rem; }
sup { line-height: 0; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.4rem; margin: .2rem 0 .4rem; font-weight: 600; font-size: .93rem; }
table { min-width: min(100%, 32rem); border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .93rem; }
caption { text-align: left; padding: 0 0 .4rem; }
th, td { text-align: left; padding: .35rem 1.1rem .35rem 0; vertical-align: top; border-bottom: 1px solid var(--line); }
th:last-child, td:last-child { padding-right: 0; }
thead th { color: var(--soft); font-weight: 600; white-space: nowrap; }
tbody th { font-weight: 600; min-width: 9rem; }
td.number, th.number { text-align: right; white-space: nowrap; }
td small { color: var(--soft); }
td small.below { display: block; }
td small.each { white-space: normal; }
td:last-child:not(.number) { min-width: 12rem; }
code { font: .9em ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.swatch { display: inline-block; width: 1.5em; height: .6em; margin-right: .5em; }
.exact { color: var(--good); } .approximate { color: var(--fair); } .broken { color: var(--bad); }
figure { margin: 1rem 0 1.6rem; }
.picture { overflow-x: auto; }
.picture svg { max-width: 100%; min-width: 34rem; height: auto; display: block; }
.picture.alone svg { min-width: 0; }
figcaption { font-size: .93rem; max-width: 46rem; margin-top: .3rem; }
details { border: 1px solid var(--line); border-radius: .4rem; background: var(--tint); padding: .5rem .9rem; margin: .8rem 0; }
summary { cursor: pointer; font-weight: 600; }
footer { margin-top: 4rem; padding-bottom: 3rem; font-size: .9rem; }
@media print { .skip, nav { display: none; } h2 { break-after: avoid; } figure, table { break-inside: avoid; } }
"""


class Markup(str):
    """Text that is HTML already."""


def tag(name: str, /, *children: str | Markup | None, **attributes: str | bool | None) -> Markup:
    """An element; children that are not `Markup` are escaped, those that are None left out.

    >>> tag("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    words = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(key)
        elif value not in (None, False):
            words.append(f'{key}="{html.escape(str(value))}"')
    opening = f"<{' '.join(words)}>"
    return Markup(opening) if name in VOID else Markup(f"{opening}{joined(children)}</{name}>")


def joined(parts: Iterable[str | Markup | None]) -> Markup:
    """Parts one after the other, escaped where they are plain text."""
    return Markup(
        "".join(part if isinstance(part, Markup) else html.escape(part) for part in parts if part is not None)
    )


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str | Markup]], numbers: Sequence[int] = ()
) -> Markup:
    """A table whose first column names its rows; `numbers` are the columns that are aligned to the right."""

    def cell(kind: str, i: int, content: str | Markup, **attributes: str) -> Markup:
        return tag(kind, content, class_="number" if i in numbers else None, **attributes)

    header = tag("tr", *(cell("th", i, text, scope="col") for i, text in enumerate(head)))
    body = [
        tag("tr", *(cell("td", i, c) if i else cell("th", i, c, scope="row") for i, c in enumerate(row)))
        for row in rows
    ]
    content = tag("table", tag("caption", caption), tag("thead", header), tag("tbody", *body))
    return tag("div", content, class_="wide", role="region", tabindex="0", aria_label=caption)


def figure(
    identity: str, draw: Callable[[], Figure], caption: str, alternative: str, legend: Markup | None = None
) -> Markup:
    """A picture as inlined SVG, its text as text, in the colours of the page.

    Args:
        identity: a word that no other picture of the page has; it keeps the picture's own references apart.
        alternative: what the picture shows, in words.
        legend: stands above the picture.
    """
    ink = (
        "text.color",
        "axes.labelcolor",
        "axes.edgecolor",
        "axes.titlecolor",
        "xtick.color",
        "ytick.color",
        "grid.color",
    )
    look: dict[Any, Any] = dict.fromkeys(ink, INK) | {
        "svg.fonttype": "none",
        "svg.hashsalt": identity,
        "font.family": "sans-serif",
        "font.size": 11.0,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "legend.facecolor": "none",
        "savefig.facecolor": "none",
    }
    buffer = io.StringIO()
    with matplotlib.rc_context(look):
        drawn = draw()
        drawn.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{identity}-', svg)
    svg = svg.replace('href="#', f'href="#{identity}-').replace("url(#", f"url(#{identity}-")
    svg = svg.replace(INK, "currentColor").replace(", sans-serif", ", system-ui, sans-serif")
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(alternative)}" ', 1)
    look_at = "picture alone" if len(drawn.axes) == 1 else "picture"
    picture = tag("div", Markup(svg), class_=look_at, role="region", tabindex="0", aria_label=f"picture {identity}")
    return tag("figure", legend, picture, tag("figcaption", caption))


def page(title: str, lead: str | Markup, sections: Sequence[tuple[str, Markup]], footer: Markup) -> str:
    """The document: a heading, a list of contents, and sections, each with its heading."""
    anchors = [re.sub(r"\W+", "-", heading.lower()).strip("-") for heading, _ in sections]
    links = zip(anchors, sections, strict=True)
    contents = tag("ul", *(tag("li", tag("a", heading, href=f"#{anchor}")) for anchor, (heading, _) in links))
    bodies = [
        tag("section", tag("h2", heading, id=f"{anchor}-heading"), body, id=anchor, aria_labelledby=f"{anchor}-heading")
        for anchor, (heading, body) in zip(anchors, sections, strict=True)
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(STYLE)),
    )
    body = tag(
        "body",
        tag("a", "Skip to the content", class_="skip", href="#content"),
        tag("header", tag("h1", title), tag("p", lead, class_="lead")),
        tag("nav", contents, aria_label="Contents"),
        tag("main", *bodies, id="content"),
        tag("footer", footer),
    )
    return f'<!doctype html>\n<html lang="en">\n{head}\n{body}\n</html>\n'
