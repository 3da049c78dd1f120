"""The documentation site: `scripts/docs` builds it into build/site.

Sphinx, because it and MyST are kept: mkdocs has had no release since August 2024, and
mkdocs-material calls itself inactive. The source folder is the repository itself, so that every link
of a page is the same file here and on a code host: to another page it leads to that page, to any other
file, to a copy of it. Nothing is fetched when a page is read: no script, style, font or picture is
somebody else's (`tests/docs/test_site.py`).
"""

from __future__ import annotations

project = "fedpriv"
html_title = "fedpriv"
root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "docs/notebooks/*.ipynb",
    "*.md",
    "deploy/*.md",
    "deploy/flower/README.md",
    "examples/*.md",
    "fedpriv/recipes/*/README.md",
]
exclude_patterns = ["build", "**/__pycache__", ".git"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
nb_execution_mode = "off"
nb_ipywidgets_js = {}
html_theme = "furo"
html_copy_source = False
suppress_warnings = ["misc.highlighting_failure"]
