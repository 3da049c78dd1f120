"""Methods by name, of whatever package brings one."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from fedpriv.errors import ConfigError

if TYPE_CHECKING:
    from fedpriv.training.method import Method

GROUP = "fedpriv.methods"  # of entry points


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


def method_names() -> list[str]:
    """What is installed, in order."""
    return sorted(point.name for point in entry_points(group=GROUP))
