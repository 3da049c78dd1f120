"""A site that is ready: only it can say so, and for one slot."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedpriv.errors import SetError, ShareLostError
from fedpriv.secure_sum.ready import Ephemeral, Member, check_member, sign_member
from tests.secure_sum.secure_sites import LOW_ORDER, OTHER_SLOTS, SLOT, SecureSite, roster_of, sites

SITES = sites("a", "b", "c")
ROSTER = roster_of(SITES)
FIRST, SECOND, _ = SITES


def test_what_a_site_says_is_believed() -> None:
    for site in SITES:
        check_member(site.member(), ROSTER, SLOT)


def test_the_signature_is_over_all_that_it_is_about() -> None:
    member = FIRST.member()
    about = ["fedpriv-ready-1", SLOT.proposal, SLOT.slot, SLOT.request, "a", member.key]
    text = json.dumps(about, separators=(",", ":")).encode()
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(FIRST.entry.public_key))
    key.verify(bytes.fromhex(member.signature), text)


@pytest.mark.parametrize("field", OTHER_SLOTS)
def test_what_was_said_of_another_slot_proposal_or_request_is_refused(field: str) -> None:
    with pytest.raises(SetError, match="signature of site 'a'"):
        check_member(FIRST.member(OTHER_SLOTS[field]), ROSTER, SLOT)
    with pytest.raises(SetError, match="signature of site 'a'"):
        check_member(FIRST.member(), ROSTER, OTHER_SLOTS[field])


def forged() -> dict[str, Member]:
    own, other = FIRST.member(), SECOND.member()
    stranger = SecureSite("a", ephemeral=FIRST.ephemeral)
    flipped = f"{int(own.signature[0], 16) ^ 1:x}{own.signature[1:]}"
    return {
        "another key": own.model_copy(update={"key": Ephemeral().public}),
        "the key of another": own.model_copy(update={"key": other.key}),
        "the signature of another": own.model_copy(update={"signature": other.signature}),
        "the name of another": own.model_copy(update={"name": "b"}),
        "signed by a stranger": stranger.member(),
        "a bit of the signature": own.model_copy(update={"signature": flipped}),
        "no signature": own.model_copy(update={"signature": "0" * 128}),
    }


@pytest.mark.parametrize("what", forged())
def test_what_is_forged_is_refused(what: str) -> None:
    with pytest.raises(SetError, match="signature of site"):
        check_member(forged()[what], ROSTER, SLOT)


def test_a_site_that_is_not_in_the_roster_is_refused() -> None:
    with pytest.raises(SetError, match="'d' is not in it"):
        check_member(SecureSite("d").member(), ROSTER, SLOT)


@pytest.mark.parametrize("key", LOW_ORDER)
def test_a_key_of_low_order_is_refused_though_it_is_signed(key: str) -> None:
    ephemeral = Ephemeral()
    ephemeral.public = key
    member = sign_member(FIRST.signing_key, SLOT, "a", ephemeral)
    with pytest.raises(SetError, match="X25519 public key of site 'a'"):
        check_member(member, ROSTER, SLOT)
    with pytest.raises(SetError, match="X25519"):
        Ephemeral().agree(key)


def test_two_keys_agree_on_what_nobody_else_has() -> None:
    one, other = Ephemeral(), Ephemeral()
    assert one.agree(other.public) == other.agree(one.public)
    assert one.agree(other.public) != Ephemeral().agree(other.public)
    assert len({Ephemeral().public for _ in range(10)}) == 10


def test_a_key_is_not_copied_pickled_or_shown() -> None:
    ephemeral = Ephemeral()
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="can't be pickled or copied"):
            leak(ephemeral)
    assert repr(ephemeral) == str(ephemeral) == "Ephemeral()"
    assert not hasattr(ephemeral, "__dict__")


def test_what_is_forgotten_is_gone() -> None:
    ephemeral, peer = Ephemeral(), X25519PrivateKey.generate().public_key()
    public = ephemeral.public
    ephemeral.forget()
    ephemeral.forget()
    assert ephemeral.public == public
    with pytest.raises(ShareLostError, match="the slot is void"):
        ephemeral.agree(peer.public_bytes_raw().hex())
