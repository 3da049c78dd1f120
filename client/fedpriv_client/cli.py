"""`fedpriv-client`: the site's command."""

from __future__ import annotations

import sys


def main() -> None:
    """Say that a site can't join over the network yet."""
    print(
        "fedpriv-client comes with the network engine, which this version does not have.\n"
        "Until then `fedpriv simulate` runs the whole federation, sites included, on one machine.",
        file=sys.stderr,
    )
    raise SystemExit(2)
