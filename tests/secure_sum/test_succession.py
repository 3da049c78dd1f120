"""A roster that follows another: what changed, and that all else is as it was compared."""

from __future__ import annotations

import pytest

from fedpriv.errors import ConfigError
from fedpriv.pki.points import in_groups
from fedpriv.secure_sum.roster import changes, successor
from tests.secure_sum.secure_sites import roster_of, sites

SITES = sites("a", "b", "c")
OLD = roster_of(SITES)


def test_it_names_the_one_before_and_says_what_changed() -> None:
    [new_b], [d] = sites("b"), sites("d")
    new = successor(OLD, [new_b.entry, d.entry], ["c"])
    assert new.predecessor == OLD.digest and new.digest != OLD.digest
    assert [entry.name for entry in new.entries] == ["a", "b", "d"]
    assert new.key_of("a") == OLD.key_of("a")
    assert list(changes(OLD, new)) == [
        f"b has a new key, {in_groups(new_b.entry.public_key)}",
        "c leaves",
        f"d joins, with the key {in_groups(d.entry.public_key)}",
    ]
    assert list(changes(OLD, successor(OLD, []))) == []
    assert successor(OLD, []).digest != OLD.digest  # it is another one all the same


def test_who_is_not_there_does_not_leave() -> None:
    with pytest.raises(ConfigError, match="is not in the roster"):
        successor(OLD, [], ["d"])
    with pytest.raises(ConfigError, match="of one site"):
        successor(OLD, [], ["a", "b"])
