"""`import fedpriv`: what it offers, where that is from, and what it does not load."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import fedpriv

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fedpriv"
HEAVY = ("torch", "transformers", "datasets", "flwr", "numpy", "pydantic", "rich")


def stub() -> dict[str, str]:
    """Each name of the stub, and where type checkers find it, as entry points are written."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text())
    return {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_what_is_declared_is_what_is_registered_and_typed() -> None:
    """A name that is missing somewhere: `fedpriv/__init__.py` says where it belongs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    registered = project["entry-points"]["fedpriv.api"]
    assert list(registered) == sorted(registered)
    assert fedpriv.__all__ == sorted(fedpriv.__all__) == list(registered)
    assert stub() == registered
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text())
    listed = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    assert [ast.literal_eval(value) for value in listed] == [fedpriv.__all__]


@pytest.mark.parametrize("name", fedpriv.__all__)
def test_a_name_is_what_its_package_says_and_has_a_docstring(name: str) -> None:
    module, _, attribute = stub()[name].partition(":")
    found = getattr(fedpriv, name)
    assert found is getattr(import_module(module), attribute)
    assert callable(found) and found.__doc__
    assert {point.value for point in entry_points(group="fedpriv.api", name=name)} == {stub()[name]}


@pytest.mark.parametrize("name", fedpriv.__all__)
def test_no_module_takes_the_place_of_a_name(name: str) -> None:
    """Importing `fedpriv.x` would put the module where the name was."""
    assert not (PACKAGE / name).exists() and not (PACKAGE / f"{name}.py").exists()


def loaded_by(code: str) -> set[str]:
    script = f"import sys, fedpriv\n{code}\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_it_loads_nothing_heavy() -> None:
    assert loaded_by("dir(fedpriv)") == set()


@pytest.mark.parametrize("name", ["FedprivError", "Ledger", "load_job", "plan", "forecast"])
def test_reading_and_planning_load_no_torch(name: str) -> None:
    assert not loaded_by(f"fedpriv.{name}") & {"torch", "transformers", "flwr"}


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        fedpriv.simulat  # type: ignore[attr-defined]  # noqa: B018
    assert set(fedpriv.__all__) <= set(dir(fedpriv))


def test_everything_is_imported_by_a_star() -> None:
    names: dict[str, object] = {}
    exec("from fedpriv import *", names)
    assert set(fedpriv.__all__) <= set(names)
