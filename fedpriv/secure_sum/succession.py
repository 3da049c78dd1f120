"""What a roster changes in the one before it: who joined, who left, whose key is another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fedpriv.errors import ConfigError
from fedpriv.pki.points import in_groups
from fedpriv.secure_sum.roster import Roster, RosterEntry


def successor(old: Roster, entries: Iterable[RosterEntry], without: Iterable[str] = ()) -> Roster:
    """Return the roster that follows another.

    Args:
        entries: of sites that join, or have a new key.
        without: names of sites that leave.

    Raises:
        ConfigError: somebody leaves who is not in it, or it is no roster; see `Roster.of`.
    """
    kept = {entry.name: entry for entry in old.entries}
    for name in without:
        if kept.pop(name, None) is None:
            raise ConfigError("is not in the roster", key="--without", value=name)
    kept |= {entry.name: entry for entry in entries}
    return Roster.of(kept.values(), old.digest)


def changes(old: Roster, new: Roster) -> Iterator[str]:
    """Yield what people must compare before they approve a successor: these keys, no others."""
    before = {entry.name: entry.public_key for entry in old.entries}
    after = {entry.name: entry.public_key for entry in new.entries}
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield f"{name} leaves"
        elif name not in before:
            yield f"{name} joins, with the key {in_groups(after[name])}"
        elif before[name] != after[name]:
            yield f"{name} has a new key, {in_groups(after[name])}"
