"""The documentation site: `make docs` writes build/site, which works from the disk, search included.

Its pages are the Markdown files that GitHub shows, with the same links; here are their order, the API reference, formulas as
MathML (made when the site is built, so nothing is fetched when it is read) and notebooks.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]

project = "rppdyn"
author = "The rppdyn developers"
copyright = "2026, the rppdyn developers"
namespace: dict = {}
exec((ROOT / "rppdyn" / "_version.py").read_text(encoding="utf-8"), namespace)
version = release = namespace.pop("__version__")
del namespace

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "pages"]
root_doc = "docs/site/index"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "docs/**"]
exclude_patterns = ["docs/**/_static", "docs/**/__pycache__"]
source_suffix = {".rst": "restructuredtext", ".md": "markdown", ".ipynb": "notebook"}
default_role = "literal"  # of docstrings, whose single backticks are code

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # pages that have a third level after a first one
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!rppdyn\.).*")]  # names of torch, NumPy and Python, and annotations

html_theme = "furo"
html_title = f"rppdyn {version}"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_search_summary = False  # which would read pages by HTTP
pygments_style = "friendly"
pygments_dark_style = "monokai"

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # fields of dataclasses and named tuples are listed once
napoleon_attr_annotations = False
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
