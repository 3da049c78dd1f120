"""The documentation site: `scripts/docs` builds it into build/site.

Sphinx with MyST, because both are kept: mkdocs has had no release since August 2024, and
mkdocs-material says of itself that it is inactive. The source folder is the repository, so that
every link of a page is the same file here and on a code host: one to a page leads to that page, one
to any other file to a copy of it. The pages fetch nothing from elsewhere (tests/docs/test_site.py).
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any, get_type_hints

from pygments.lexers.shell import BashLexer
from sphinx.application import Sphinx

import fedpriv
from fedpriv import errors

project = html_title = "fedpriv"
version = fedpriv.__version__
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/*/*.md",
    "docs/tutorials/*.ipynb",
    "deploy/README.md",
    "deploy/flower/README.md",
    "examples/README.md",
    "fedpriv/recipes/*/README.md",
]
exclude_patterns = [".*", "build", "runs"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
suppress_warnings = ["misc.highlighting_failure"]  # of JSON with comments

myst_heading_anchors = 4
nb_execution_mode = "cache"  # notebooks are kept without results, which are made here
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # they would be fetched from elsewhere

default_role = "code"
napoleon_custom_sections = ["Privacy"]
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_root"]
html_copy_source = False
html_show_copyright = False
_MANY = 40  # parameters, which nobody reads


def api() -> Iterator[str]:
    """Write the page of names in Markdown: `fedpriv.__all__`, what they return, all errors."""
    functions_first = sorted(fedpriv.__all__, key=str.swapcase)
    found = {name: getattr(fedpriv, name) for name in functions_first}
    for name, value in found.items():
        if value is not errors.FedprivError:
            yield from _entry(f"fedpriv.{name}", value, f"## {name}")
    results = {
        result
        for value in found.values()
        if inspect.isfunction(value) and dataclasses.is_dataclass(result := _result(value))
    }
    yield "## What they return\n"
    for result in sorted(results, key=lambda result: result.__name__):
        yield from _entry(f"{result.__module__}.{result.__name__}", result, "")
    yield f"## Errors\n\n{inspect.getdoc(errors)}\n"
    for error in vars(errors).values():
        if inspect.isclass(error) and issubclass(error, errors.FedprivError):
            yield from _entry(f"{errors.__name__}.{error.__name__}", error, "")


def _result(function: Any) -> Any:
    return get_type_hints(function).get("return")


def _entry(path: str, value: Any, heading: str) -> Iterator[str]:
    kind = "class" if inspect.isclass(value) else "function"
    if kind == "class" and issubclass(value, Exception):
        kind = "exception"
    elif len(inspect.signature(value).parameters) > _MANY:
        path += "(**settings)"
    members = "" if kind == "function" else "\n   :members:"
    yield f"{heading}\n\n```{{eval-rst}}\n.. auto{kind}:: {path}{members}\n```\n"


def _fill_in(app: Sphinx, page: str, source: list[str]) -> None:
    if page == "docs/reference/api":
        source[0] += "\n" + "\n".join(api())


def _as_rst(app: Sphinx, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    """Our docstrings have the fences of Markdown; autodoc reads them as reStructuredText."""
    inside = False
    for number, line in enumerate(lines):
        fence = re.match(r"( *)```(\w*)$", line)
        if fence:
            inside = not inside
            lines[number] = f"{fence[1]}.. code-block:: {fence[2]}\n" if inside else ""
        elif inside:
            lines[number] = f"    {line}"
    lines[:] = "\n".join(lines).split("\n")


def setup(app: Sphinx) -> None:
    app.add_lexer("console", BashLexer)  # our commands have no prompt
    app.connect("source-read", _fill_in)
    app.connect("autodoc-process-docstring", _as_rst, priority=400)  # before napoleon's
