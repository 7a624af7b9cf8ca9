"""Pages of HTML as tests see them: parsed, and shown in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

VOID = ("meta", "link", "br", "hr", "img", "col")
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What a browser may load for a report: nothing; and it may run no script."""
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no browser found: apt-get install chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


class Page(HTMLParser):
    """The elements of a page, with their attributes and text; fails on tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open, self.text = [], [], {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, name, attributes):
        self.found.append((name, dict(attributes)))
        self.text[len(self.found) - 1] = ""
        if name not in VOID:
            self.open.append((name, len(self.found) - 1))

    def handle_endtag(self, name):
        assert self.open.pop()[0] == name

    def handle_startendtag(self, name, attributes):
        self.found.append((name, dict(attributes)))

    def handle_data(self, data):
        for _, index in self.open:
            self.text[index] += data

    def all(self, name):
        return [(attributes, self.text.get(i, "")) for i, (n, attributes) in enumerate(self.found) if n == name]


def rows_of(text, caption):
    start = text.index(f"<caption>{caption}</caption>")
    body = text[start : text.index("</table>", start)]
    strip = lambda cell: re.sub(r"<[^>]*>", "", cell)  # noqa: E731
    return [[strip(c) for c in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in body.split("<tr>")[2:]]


# -- in a browser -----------------------------------------------------------------------------------------------------

LISTENER = """<script>
let refused = 0;
document.addEventListener("securitypolicyviolation", () => { refused += 1; });
</script></head>"""
PROBE = """<script>
addEventListener("load", () => {
const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
  .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const paper = getComputedStyle(document.body).backgroundColor;
const ink = e => getComputedStyle(e)[e instanceof SVGElement ? "fill" : "color"];
const contrast = e => { const [a, b] = [light(ink(e)), light(paper)].sort((x, y) => y - x); return (a + 0.05) / (b + 0.05); };
const texts = [...document.querySelectorAll("h1, h2, p, caption, th, td, a, figcaption, .exact, svg text")];
const drawn = [...document.querySelectorAll(".picture svg")].filter(e => e.checkVisibility());
const pictures = drawn.map(e => e.getBoundingClientRect());
const found = { contrast: Math.min(...texts.map(contrast)), paper, refused,
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  width: Math.min(...pictures.map(r => r.width)), height: Math.min(...pictures.map(r => r.height)), pictures: pictures.length,
  captions: document.querySelectorAll("table > caption").length, mode: document.compatMode };
document.body.innerHTML = "<pre>" + JSON.stringify(found) + "</pre>";
});
</script></body>"""


def browse(path, profile, *flags):
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", *flags, path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def probed(text, folder, window="1280,900", scheme="light"):
    """What a script finds in the page once it is shown."""
    path = folder / "probe.html"
    assert text.count(POLICY) == 1
    text = text.replace(POLICY, f"{POLICY}; script-src 'unsafe-inline'")
    path.write_text(text.replace("</head>", LISTENER).replace("</body>", PROBE), encoding="utf-8")
    preference = f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"
    dom = browse(path, folder / "profile", f"--window-size={window}", preference, "--dump-dom")
    return json.loads(re.search(r"<pre>(.*)</pre>", dom)[1])
