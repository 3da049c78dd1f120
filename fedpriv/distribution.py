"""Which part of fedpriv is installed here, or all of it, and the packages that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement

NAMES = ("fedpriv", "fedpriv-site", "fedpriv-coordinator", "fedpriv-verify")


def needed() -> Iterator[Requirement]:
    """Yield the packages that fedpriv's own metadata names, without extras."""
    for name in NAMES:
        try:
            listed = requires(name) or []
        except PackageNotFoundError:  # another part is installed, or it runs from a folder
            continue
        for requirement in map(Requirement, listed):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                yield requirement
