"""Flower's internals, which its minor versions break, are used in one place a side."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}
PLACES = ("client/fedpriv_client/flower.py", "server/fedpriv_server/flower/")
ROOMS = ("fedpriv", "client", "server", "strategies", "lab", "deploy", "benchmarks", "examples")


def internals(source: str) -> Iterator[str]:
    """What a source uses of Flower beyond its public packages."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found = [name.name for name in names]
            case ast.ImportFrom(module=str(module), level=0):
                found = [module]
            case ast.Subscript(
                value=ast.Attribute(attr="__dict__"), slice=ast.Constant(value=str(name))
            ) if name.startswith("_"):
                yield f"{name} of an object"
                continue
            case _:
                continue
        for module in found:
            if module.partition(".")[0] == "flwr" and module not in PUBLIC:
                yield module


@pytest.mark.slow
def test_internals_are_used_in_one_place_a_side() -> None:
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if used := list(internals(path.read_text())):
                found[name] = used
    outside = {name: used for name, used in found.items() if not name.startswith(PLACES)}
    assert not outside, f"Let {' and '.join(PLACES)} say it in our words."
    assert all(any(name.startswith(place) for name in found) for place in PLACES)


@pytest.mark.parametrize(
    "source",
    [
        "from flwr.supercore.date import now",
        "from flwr.app.metadata import Metadata",
        "import flwr.proto.fleet_pb2",
        'message.metadata.__dict__["_message_id"] = "a"',
    ],
)
def test_what_is_an_internal(source: str) -> None:
    assert list(internals(source))
    assert not list(internals("from flwr.app import Message\nimport flwr.clientapp"))
