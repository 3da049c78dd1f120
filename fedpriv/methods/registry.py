"""Methods by name: a method is a site's half and a server's half, found by entry points."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from fedpriv.errors import ConfigError

if TYPE_CHECKING:
    from fedpriv.methods.pe_sgd.site import Span
    from fedpriv.training.private_step import SiteMethod

SITE_METHODS = "fedpriv.site_methods"
STRATEGIES = "fedpriv.strategies"


def site_method(name: str, span: Span | None = None) -> SiteMethod:
    """The site's half of a method.

    Args:
        span: of a method that projects, for it alone.

    Raises:
        ConfigError: no such method is installed, or it needs a span, or has no use for one.
    """
    kind = _load(SITE_METHODS, name)
    if kind.projects != (span is not None):
        raise ConfigError(
            "is missing" if kind.projects else "has nothing to do",
            key="synthetic",
            fix=f"Method {name!r} {'needs' if kind.projects else 'has no use for'} such a set.",
        )
    method: SiteMethod = kind(span) if kind.projects else kind()
    return method


def projects(name: str) -> bool:
    """Whether a method needs a synthetic set at the sites.

    Raises:
        ConfigError: no such method is installed.
    """
    return bool(_load(SITE_METHODS, name).projects)


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
