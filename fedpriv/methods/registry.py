"""Methods by name, of whatever package brings one."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from fedpriv.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedpriv.methods.server_half import ServerContext, ServerMethod
    from fedpriv.private_training.method import Method

GROUP, SERVER_HALVES = "fedpriv.methods", "fedpriv.server_halves"  # of entry points


@cache
def find_method(name: str) -> Method:
    """The method of that name.

    Raises:
        ConfigError: no such method is installed.
    """
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        raise ConfigError(
            "no such method is installed",
            key="job.method",
            value=name,
            fix=f"Choose one of: {', '.join(sorted(found))}.",
        )
    method: Method = found[name].load()()
    return method


@cache
def find_server_half(name: str) -> Callable[[ServerContext], ServerMethod]:
    """What makes the server's half of the method of that name, for a job.

    Raises:
        ConfigError: none is installed.
    """
    for point in entry_points(group=SERVER_HALVES, name=name):
        half: Callable[[ServerContext], ServerMethod] = point.load()
        return half
    raise ConfigError(
        "has no half for a server",
        key="job.method",
        value=name,
        fix=f"Its package needs an entry point of the group {SERVER_HALVES!r}.",
    )


def method_names() -> list[str]:
    """What is installed, in order."""
    return sorted(point.name for point in entry_points(group=GROUP))
