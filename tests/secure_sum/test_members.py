"""The set of a slot: what a site checks before it masks, and the tag of what it is about."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from fedpriv.errors import SetError
from fedpriv.secure_sum.members import MemberSet
from fedpriv.secure_sum.ready import Ephemeral, Member, sign_member
from tests.secure_sum.secure_sites import (
    LOW_ORDER,
    OTHER_SLOTS,
    SLOT,
    SecureSite,
    roster_of,
    set_of,
    sites,
)

SITES = sites("a", "b", "c", "d")
ROSTER = roster_of(SITES)
OWN = SITES[1]


def check(members: tuple[Member, ...], own: Member | None = None) -> None:
    found = MemberSet(slot_id=SLOT, members=members, bits=16)
    found.check(ROSTER, own or OWN.member())


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_any_number_of_the_rosters_sites_may_add_up(count: int) -> None:
    members = set_of([OWN, *(site for site in SITES if site is not OWN)][:count])
    members.check(ROSTER, OWN.member())
    assert len(members) == count


A, B, C, D = (site.member() for site in SITES)
LOW = Ephemeral()
LOW.public = LOW_ORDER[0]
NEW_KEY = SecureSite("b", OWN.signing_key).member()
STRANGER = SecureSite("e").member()
WRONG: dict[str, tuple[tuple[Member, ...], str]] = {
    "a site twice": ((A, B, B, C), "once, in the order"),
    "a site twice with two keys": ((A, B, SecureSite("b", OWN.signing_key).member()), "once"),
    "another order": ((B, A, C), "once, in the order"),
    "not in the roster": ((A, B, STRANGER), "'e' is not in it"),
    "more than the roster has": ((A, B, C, D, STRANGER), "at most the 4 sites"),
    "without this site": ((A, C, D), "own entry"),
    "another key of this site": ((A, NEW_KEY, C), "own entry"),
    "this site's of another slot": ((A, OWN.member(OTHER_SLOTS["slot"]), C), "own entry"),
    "one of another slot": ((A, B, SITES[2].member(OTHER_SLOTS["slot"])), "signature of site 'c'"),
    "one of another request": ((A, B, SITES[2].member(OTHER_SLOTS["request"])), "signature"),
    "one of another proposal": ((A, B, SITES[2].member(OTHER_SLOTS["proposal"])), "signature"),
    "keys that were swapped": (
        (A.model_copy(update={"key": C.key}), B, C.model_copy(update={"key": A.key})),
        "signature of site 'a'",
    ),
    "the last is forged": ((A, B, C, SecureSite("d").member()), "signature of site 'd'"),
    "a key of low order": (
        (A, B, sign_member(SITES[2].signing_key, SLOT, "c", LOW)),
        "X25519 public key of site 'c'",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_set_is_refused(what: str) -> None:
    members, words = WRONG[what]
    with pytest.raises(SetError, match=words):
        check(members)


def test_a_set_in_which_this_site_answers_for_another_slot_is_refused() -> None:
    own = OWN.member(OTHER_SLOTS["slot"])
    with pytest.raises(SetError, match="signature of site"):
        check((A, own, C), own)


def test_a_roster_without_one_of_the_set_refuses_it() -> None:
    members = set_of(SITES)
    with pytest.raises(SetError, match="at most the 3"):
        members.check(roster_of(SITES[:3]), OWN.member())
    with pytest.raises(SetError, match="signature of site 'a'"):
        members.check(roster_of([SecureSite("a"), *SITES[1:]]), OWN.member())


@pytest.mark.parametrize(("field", "bad"), [("bits", 8), ("bits", 64), ("members", ())])
def test_a_set_of_nobody_or_of_another_width_is_none(field: str, bad: Any) -> None:
    with pytest.raises(ValidationError):
        MemberSet(**{"slot_id": SLOT, "members": (A, B), "bits": 16, field: bad})


def test_the_tag_is_of_everything_that_the_sum_is_about() -> None:
    members = set_of(SITES[:2])
    about = ["fedpriv-set-1", SLOT.proposal, SLOT.slot, SLOT.request, 16]
    text = json.dumps([*about, [["a", A.key], ["b", B.key]]], separators=(",", ":"))
    assert members.tag == hashlib.sha256(text.encode()).hexdigest()


CHANGES: dict[str, Callable[[MemberSet], dict[str, Any]]] = {
    **{field: lambda _, s=slot: {"slot_id": s} for field, slot in OTHER_SLOTS.items()},
    "bits": lambda _: {"bits": 32},
    "one more": lambda found: {"members": (*found.members, D)},
    "one less": lambda found: {"members": found.members[:2]},
    "another key": lambda found: {"members": (*found.members[:1], NEW_KEY, *found.members[2:])},
    "another name": lambda found: {
        "members": (*found.members[:2], found.members[2].model_copy(update={"name": "cc"}))
    },
}


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_changes_the_tag_changes(what: str) -> None:
    found = set_of(SITES[:3])
    assert found.model_copy(update=CHANGES[what](found)).tag != found.tag
