"""`fedpriv-server`: the coordinator's command."""

from __future__ import annotations

import sys


def main() -> None:
    """Say that a server can't be run over the network yet."""
    print(
        "fedpriv-server comes with the network engine, which this version does not have.\n"
        "Until then `fedpriv simulate` runs the whole federation, server included, on one machine.",
        file=sys.stderr,
    )
    raise SystemExit(2)
