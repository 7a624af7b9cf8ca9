"""Check a built site: every link and picture of every page leads to a file in it, and every anchor to an element.

python docs/site/links.py build/site
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page links to, and what can be linked to in it."""

    def __init__(self, text: str):
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.fetched: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := found.get(key))}
        for key in ("href", "src"):
            if value := found.get(key):
                self.links.add(value)
                if tag in ("script", "img", "link") and urlsplit(value).scheme.startswith("http"):
                    self.fetched.add(value)


def broken(site: Path) -> list[str]:
    """One line for each link that leads nowhere, and for each file that a page would fetch from the net."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        found += [f"{path}: fetches {link}" for link in sorted(page.fetched)]
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            if not target.is_file():
                found.append(f"{path}: {link} is no file")
            elif "_modules" in path.parts:
                continue  # sources point back by the name of the module; the page is right
            elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{path}: {link} has no such anchor")
    return found


def main() -> None:
    site = Path(sys.argv[1]).resolve()
    found = broken(site)
    print("\n".join(found) or f"{len(list(site.rglob('*.html')))} pages: every link leads somewhere")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
