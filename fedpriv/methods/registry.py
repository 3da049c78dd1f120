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
CONTROLS = "pe-sgd-gradient", "pe-sgd-products", "pe-sgd-residual"  # of `fedpriv compare`
# Methods that this process alone knows: what makes the half at a site, and that at the server.
BESIDE: dict[str, tuple[Callable[[], Method], Callable[[ServerContext], ServerMethod]]] = {}


@cache
def find_method(name: str) -> Method:
    """The method of that name.

    Raises:
        ConfigError: no such method is installed.
    """
    if name in BESIDE:
        return BESIDE[name][0]()
    for point in entry_points(group=GROUP, name=name):
        method: Method = point.load()()
        return method
    control = "is a control, which fedpriv compare alone runs"
    problem = control if name in CONTROLS else "no such method is installed"
    fix = f"Choose one of: {', '.join(method_names())}."
    raise ConfigError(problem, key="job.method", value=name, fix=fix)


@cache
def find_server_half(name: str) -> Callable[[ServerContext], ServerMethod]:
    """What makes the server's half of the method of that name, for a job.

    Raises:
        ConfigError: none is installed.
    """
    if name in BESIDE:
        return BESIDE[name][1]
    for point in entry_points(group=SERVER_HALVES, name=name):
        half: Callable[[ServerContext], ServerMethod] = point.load()
        return half
    fix = f"Its package needs an entry point of the group {SERVER_HALVES!r}."
    raise ConfigError("has no half for a server", key="job.method", value=name, fix=fix)


def method_names() -> list[str]:
    """What this process knows, in order."""
    return sorted([*BESIDE, *(point.name for point in entry_points(group=GROUP))])
