"""Load parts that only some sites or jobs use, when a setting asks for them.

Any installed package may bring a part, by an entry point of its group. Names in the group `PARTS`
are the settings that ask for the parts.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any

from fedpriv.errors import ConfigError

METHODS, SERVER_HALVES, SOURCES = "fedpriv.methods", "fedpriv.server_halves", "fedpriv.sources"
PARTS = "fedpriv.parts"


@cache
def load(group: str, name: str, *, key: str, problem: str = "is not installed") -> Any:
    """Load what a group of entry points has under a name.

    Args:
        key: the setting that asks for it, for errors.
        problem: what the error says if no package has it.

    Raises:
        ConfigError: no package has it, or several have.
    """
    found = {point.value: point for point in entry_points(group=group, name=name)}
    if len(found) > 1:
        both = " and ".join(sorted(found))
        raise ConfigError(f"is in two packages ({both})", key=key, value=name, fix="Remove one.")
    for point in found.values():
        return point.load()
    names = ", ".join(installed(group))
    fix = f"Choose one of: {names}." if names else "Install the whole package: fedpriv."
    raise ConfigError(problem, key=key, value=name, fix=fix)


def load_part(setting: str) -> Any:
    """Load the part of a setting, such as ``compute.devices``: a function, class or module.

    Raises:
        ConfigError: it is not installed.
    """
    return load(PARTS, setting, key=setting)


def installed(group: str) -> list[str]:
    """Return the names in a group, in order."""
    return sorted(point.name for point in entry_points(group=group))
