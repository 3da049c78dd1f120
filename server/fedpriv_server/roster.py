"""The roster of a job over the network: the coordinator's copy of what the sites compared."""

from __future__ import annotations

from pathlib import Path

from fedpriv.config.sites import Sites
from fedpriv.errors import ConfigError
from fedpriv.secure_sum.roster import Roster, read


def roster_of(path: Path | None, sites: Sites) -> Roster | None:
    """Read the roster of a secure sum: the sites of the federation file, and no others.

    Args:
        path: as the file says it; None in a job without such a sum.

    Raises:
        ConfigError: the roster can't be read, or names other sites.
    """
    if path is None:
        return None
    roster = read(path)
    named, listed = {site.name for site in sites}, {e.name for e in roster.entries}
    if named != listed:
        raise ConfigError(
            f"names other sites than the federation file: {', '.join(sorted(named ^ listed))}",
            file=path,
            key="privacy.roster",
            fix="Make a roster of the sites of this federation: fedpriv roster make.",
        )
    return roster
