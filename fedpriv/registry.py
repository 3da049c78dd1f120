"""Methods by name: a method is a site's half and a server's half, found by entry points."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from fedpriv.errors import ConfigError

if TYPE_CHECKING:
    from fedpriv.training.private_step import SiteMethod

SITE_METHODS = "fedpriv.site_methods"
STRATEGIES = "fedpriv.strategies"


def site_method(name: str) -> SiteMethod:
    """The site's half of a method.

    Raises:
        ConfigError: no such method is installed.
    """
    method: SiteMethod = _load(SITE_METHODS, name)()
    return method


def strategy(name: str) -> Any:
    """The class of the server's half of a method.

    Raises:
        ConfigError: no such method is installed.
    """
    return _load(STRATEGIES, name)


def names(group: str) -> list[str]:
    """The names that are installed in a group, in order."""
    return sorted(point.name for point in entry_points(group=group))


@cache
def _load(group: str, name: str) -> Any:
    found = {point.name: point for point in entry_points(group=group)}
    if name not in found:
        raise ConfigError(
            "no such method is installed",
            key="job.method",
            value=name,
            fix=f"Choose one of: {', '.join(sorted(found))}.",
        )
    return found[name].load()
