"""Masked shares: together they are the sum, and without one of them nothing."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import numpy as np
import pytest
import scipy.stats
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import example, given
from hypothesis import strategies as st

from fedpriv.errors import SetError, ShareLostError
from fedpriv.secure_sum import masks
from fedpriv.secure_sum.masks import BLOCK
from fedpriv.secure_sum.members import Bits
from fedpriv.secure_sum.ready import Ephemeral
from tests.secure_sum.secure_sites import (
    LOW_ORDER,
    OTHER_SLOTS,
    SLOT,
    SecureSite,
    masked_by,
    set_of,
    sites,
    total_of,
)

INT64 = np.iinfo(np.int64)
P = 2**255 - 19
names = st.text("abcXYZ019._-", min_size=1, max_size=5).filter(lambda name: name[0] not in "._-")


@given(
    listed=st.lists(names, min_size=1, max_size=7, unique=True),
    size=st.integers(1, 40),
    bits=st.sampled_from([16, 32]),
    data=st.data(),
)
@example(listed=["b", "a"], size=1, bits=16, data=None)
def test_the_masks_of_all_members_cancel(
    listed: list[str], size: int, bits: Bits, data: Any
) -> None:
    values = st.lists(st.integers(INT64.min, INT64.max), min_size=size, max_size=size)
    shares = [data.draw(values) if data else [INT64.min] * size for _ in listed]
    members = set_of(present := sites(*listed), bits)
    masked = [masked_by(site, share, members) for site, share in zip(present, shares, strict=True)]
    half, whole = 2 ** (bits - 1), 2**bits
    expected = [(sum(column) + half) % whole - half for column in zip(*shares, strict=True)]
    assert total_of(masked, bits).tolist() == expected


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_they_cancel_on_both_sides_of_a_block(size: int, bits: Bits) -> None:
    members = set_of(present := sites("a", "b", "c"), bits)
    shares = np.random.default_rng(size).integers(-5000, 5000, (3, size))
    masked = [masked_by(site, share, members) for site, share in zip(present, shares, strict=True)]
    assert all(values.dtype == np.dtype(f"<u{bits // 8}") for values in masked)
    assert np.array_equal(total_of(masked, bits), shares.sum(axis=0))


def test_blocks_are_of_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = sites("a", "b")
    members = set_of([first, second])
    share = np.arange(-50, 50)
    whole = masked_by(first, share, members)
    monkeypatch.setattr(masks, "BLOCK", 7)
    blocks = masked_by(second, np.zeros(100), members)
    assert np.array_equal(total_of([whole, blocks]), share)


def uniform(values: Any) -> bool:
    """Whether both bytes of 16-bit values look uniform: else by chance with 1e-9."""
    chances = [
        scipy.stats.chisquare(np.bincount((values >> shift) & 255, minlength=256)).pvalue
        for shift in (0, 8)
    ]
    return min(chances) > 1e-9


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_without_one_member_what_is_left_is_uniform(missing: int) -> None:
    found = []
    for _ in range(2):
        members = set_of(present := sites("a", "b", "c", "d"))
        masked = [masked_by(site, np.full(2**17, 7), members) for site in present]
        assert np.array_equal(total_of(masked), np.full(2**17, 28))
        del masked[missing]
        found.append(total_of(masked).astype(np.uint16))
    assert not np.array_equal(*found)
    assert uniform(found[0]) and uniform(found[1])
    assert uniform(found[0] - found[1])
    assert not uniform(np.full(2**17, 28, np.uint16))


def test_one_message_is_uniform_and_says_nothing_of_its_share() -> None:
    first, second = sites("a", "b")
    members = set_of([first, second])
    sent = masked_by(first, np.full(2**17, 1000), members)
    assert uniform(sent)
    masked_by(second, np.zeros(2**17), members)
    assert abs(np.corrcoef(sent[1:], sent[:-1])[0, 1]) < 0.02  # 7 deviations


def pair(slot_id: Any = SLOT, bits: Bits = 16, others: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """The shares of zero that sites a and b send, of the same keys each time, for another set."""
    listed = [RepeatableSite(name) for name in ("a", "b", *others)]
    members = set_of(listed, bits, slot_id)
    return masked_by(listed[0], np.zeros(200), members), masked_by(
        listed[1], np.zeros(200), members
    )


class RepeatableEphemeral(Ephemeral):
    """The same key for the same name: what a site never makes."""

    def __init__(self, name: str) -> None:
        self._key = X25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())
        self.public = self._key.public_key().public_bytes_raw().hex()


class RepeatableSite(SecureSite):
    def __init__(self, name: str) -> None:
        super().__init__(name, ephemeral=RepeatableEphemeral(name))


@pytest.mark.parametrize("field", OTHER_SLOTS)
def test_sites_that_were_told_different_things_do_not_cancel(field: str) -> None:
    (first, _), (_, second) = pair(), pair(OTHER_SLOTS[field])
    assert np.array_equal(total_of(list(pair())), np.zeros(200))
    assert np.count_nonzero(total_of([first, second])) > 190


def test_in_another_set_two_sites_have_another_stream() -> None:
    listed = [RepeatableSite(name) for name in ("a", "b", "c")]
    third = masked_by(listed[2], np.zeros(200), set_of(listed))
    among, alone = pair(others=("c",)), pair()
    assert np.array_equal(total_of([*among, third]), np.zeros(200))
    assert np.count_nonzero(total_of([among[0], alone[1], third])) > 190


def test_the_width_is_of_the_tag_too() -> None:
    narrow, wide = pair()[0], pair(bits=32)[0]
    assert not np.array_equal(narrow, wide.view("<u2")[:200])


def ladder(scalar: bytes, point: bytes) -> bytes:
    """X25519 as in RFC 7748, section 5."""
    k = int.from_bytes(scalar, "little") & ~7 & (2**255 - 1) | 2**254
    u = int.from_bytes(point, "little") % 2**255
    x2, z2, x3, z3, swap = 1, 0, u, 1, 0
    for t in reversed(range(255)):
        bit = k >> t & 1
        if swap ^ bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb = d * a % P, c * b % P
        x3, z3 = (da + cb) ** 2 % P, u * (da - cb) ** 2 % P
        e = (a * a - b * b) % P
        x2, z2 = a * a * b * b % P, e * (a * a + 121665 * e) % P
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


def test_a_stream_is_what_the_standards_say() -> None:
    site, other = RepeatableSite("a"), RepeatableSite("bee")
    members = set_of([site, other])
    secret = ladder(hashlib.sha256(b"a").digest(), bytes.fromhex(other.ephemeral.public))
    info = b"\0\x0efedpriv-mask-1\0\x01a\0\x03bee"
    extracted = hmac.digest(bytes.fromhex(members.tag), secret, "sha256")
    key = hmac.digest(extracted, info + b"\x01", "sha256")
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    stream = b"".join(block.update(count.to_bytes(16, "big")) for count in range(25))
    words = np.frombuffer(stream, "<u2").astype(int)
    shares = np.arange(200), np.arange(200) - 500
    assert np.array_equal(masked_by(site, shares[0], members), (shares[0] + words) % 2**16)
    assert np.array_equal(masked_by(other, shares[1], members), (shares[1] - words) % 2**16)


def test_of_a_set_of_one_the_share_itself_leaves() -> None:
    [site] = sites("a")
    share = np.array([-3, 0, 40_000])
    assert np.array_equal(masked_by(site, share, set_of([site])), share % 2**16)


def test_a_share_is_not_changed_and_a_key_is_good_for_one() -> None:
    first, second = sites("a", "b")
    members = set_of([first, second])
    share = np.arange(5)
    masked_by(first, share, members)
    assert share.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ShareLostError, match="void"):
        masked_by(first, share, members)


@pytest.mark.parametrize("name", ["a", "c"])
def test_a_set_without_this_key_is_refused_and_the_key_is_gone(name: str) -> None:
    first, second, third = sites("a", "b", "a")
    site = SecureSite(name, ephemeral=third.ephemeral)
    with pytest.raises(SetError, match="own key"):
        masked_by(site, np.zeros(3), set_of([first, second]))
    with pytest.raises(ShareLostError):
        third.ephemeral.agree(first.ephemeral.public)


@pytest.mark.parametrize("key", LOW_ORDER)
def test_a_key_of_low_order_is_refused_whoever_checked_the_set(key: str) -> None:
    first, second = sites("a", "b")
    second.ephemeral.public = key
    with pytest.raises(SetError, match="X25519"):
        masked_by(first, np.zeros(3), set_of([first, second]))
