"""Which bytes are public keys: against points that are added, and those of small order."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import fedpriv
from fedpriv.dossier.verify import given_key
from fedpriv.errors import ConfigError, LedgerCorruptError
from fedpriv.pki.points import in_groups, is_exchange_key, is_signed, is_signing_key
from fedpriv.report import received
from fedpriv.report.budget import BudgetReport, Signature
from fedpriv.secure_sum.roster import RosterEntry
from tests.secure_sum.secure_sites import LOW_ORDER

P = 2**255 - 19
D = -121665 * pow(121666, P - 2, P) % P
ROOT = pow(2, (P - 1) // 4, P)  # of −1


def decoded(raw: bytes) -> tuple[int, int] | None:
    """A point of Ed25519, as RFC 8032 decodes it; None: there is none."""
    number = int.from_bytes(raw, "little")
    y, sign = number % 2**255, number >> 255
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if x * x % P == square else x * ROOT % P
    if y >= P or x * x % P != square or (x == 0 and sign):
        return None
    return (x if x & 1 == sign else P - x), y


def added(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    (x, y), (v, w) = one, other
    product = D * x * v * y * w
    return (
        (x * w + v * y) * pow(1 + product, P - 2, P) % P,
        (y * w + x * v) * pow(1 - product, P - 2, P) % P,
    )


def is_good(raw: bytes) -> bool:
    point = decoded(raw)
    if point is None:
        return False
    for _ in range(3):
        point = added(point, point)
    return point != (0, 1)


SMALL_ORDER = (  # of the signing curve, without the bit of the sign
    (1).to_bytes(32, "little").hex(),
    (P - 1).to_bytes(32, "little").hex(),
    (0).to_bytes(32, "little").hex(),
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
)


@pytest.mark.parametrize("key", SMALL_ORDER)
def test_the_small_points_of_the_signing_curve_are_no_keys(key: str) -> None:
    raw = bytes.fromhex(key)
    assert decoded(raw) is not None and not is_good(raw)
    assert not is_signing_key(raw)
    assert not is_signing_key(raw[:31] + bytes([raw[31] | 128]))


def test_generated_keys_are_keys() -> None:
    for _ in range(20):
        assert is_signing_key(Ed25519PrivateKey.generate().public_key().public_bytes_raw())
        assert is_exchange_key(X25519PrivateKey.generate().public_key().public_bytes_raw())


@given(st.binary(min_size=32, max_size=32))
def test_a_signing_key_is_a_point_of_large_order(raw: bytes) -> None:
    assert is_signing_key(raw) == is_good(raw)


@pytest.mark.parametrize("beyond", [P, P + 1, P + 3, 2**255 - 1])
def test_a_number_beyond_the_field_is_no_signing_key(beyond: int) -> None:
    assert not is_signing_key(beyond.to_bytes(32, "little"))


def test_half_of_all_bytes_are_signing_keys() -> None:
    found = sum(is_signing_key(os.urandom(32)) for _ in range(200))
    assert 50 < found < 150  # each fails with a chance below 1e-11


@pytest.mark.parametrize("key", LOW_ORDER)
def test_the_small_points_of_the_other_curve_are_no_keys(key: str) -> None:
    raw = bytes.fromhex(key)
    assert not is_exchange_key(raw)
    assert not is_exchange_key(raw[:31] + bytes([raw[31] | 128]))  # the bit that is ignored
    number = int.from_bytes(raw, "little") + P
    if number < 2**255:
        assert not is_exchange_key(number.to_bytes(32, "little"))


# A signature that fits any text under the key that is the neutral point: R = 0, S = 0.
NEUTRAL = (1).to_bytes(32, "little").hex()
ANY_TEXT = NEUTRAL + bytes(32).hex()


def encodings() -> list[str]:
    """Of every point of small order, canonical or not, with either sign."""
    numbers = {int.from_bytes(bytes.fromhex(key), "little") for key in SMALL_ORDER}
    numbers |= {P, P + 1}
    return [
        (number | sign).to_bytes(32, "little").hex()
        for number in sorted(numbers)
        for sign in (0, 2**255)
    ]


def test_a_key_of_small_order_signs_anything_if_nobody_asks() -> None:
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(NEUTRAL)).verify(
        bytes.fromhex(ANY_TEXT), b"what nobody signed"
    )
    assert not is_signed(b"what nobody signed", ANY_TEXT, NEUTRAL)


REPORT = BudgetReport(
    site="north",
    dataset_id="a",
    unit="record",
    max_records_per_unit=1,
    delta=1e-5,
    declared_size=10,
    accountant="PRV",
    private=True,
    simulated=False,
    guarantee="the one plan of this ledger in full",
    epsilon_spent=1.0,
    epsilon_allocated=1.0,
    epsilon_committed=1.0,
    budget=1.0,
    ledger_head="ab",
    ledger_rows=1,
    job="hearts",
)


@pytest.mark.parametrize("key", encodings())
def test_a_key_that_signs_anything_is_refused_wherever_it_enters(key: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="to which anybody has a private one"):
        RosterEntry(name="north", public_key=key)
    with pytest.raises(ValidationError, match="to which anybody has a private one"):
        Signature(public_key=key, value=ANY_TEXT)  # of a dossier, and of a budget report
    signature = Signature.model_construct(public_key=key, value=ANY_TEXT)
    with pytest.raises(LedgerCorruptError, match="does not match its signature"):
        received.verify(REPORT.model_copy(update={"signature": signature}))
    with pytest.raises(ConfigError, match="--signer: is not an Ed25519 public key"):
        fedpriv.verify(tmp_path / "run.zip", signer=key)
    with pytest.raises(ConfigError, match="--site north: is not an Ed25519 public key"):
        fedpriv.verify(tmp_path / "run.zip", sites={"north": key})


def test_a_key_is_64_digits() -> None:
    whole = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    for key in ("", "ab", "x" * 64, f"{whole}00"):
        with pytest.raises(ConfigError, match="--signer"):
            fedpriv.verify("run.zip", signer=key)


def test_a_key_has_one_form_and_is_taken_with_spaces_in_capitals_and_only_whole() -> None:
    key = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    shown = in_groups(key)
    assert [len(group) for group in shown.split(" ")] == [4] * 16
    assert in_groups(f"sha256:{key}") == shown
    for said in (key, shown, shown.upper(), f" {shown} \n"):
        assert given_key(said, "--site north") == key
    for part in (shown[:19], shown[:39], key[:-1]):
        with pytest.raises(
            ConfigError, match=r"--site north: is not an .* but \d+ of them.*all of it"
        ):
            given_key(part, "--site north")


def test_signing_keys_are_read_in_one_place() -> None:
    """Whoever asks the library for one would take a key that signs anything."""
    root = Path(fedpriv.__file__).parents[1]
    readers = [
        path.relative_to(root)
        for folder in ("fedpriv", "client", "server", "strategies")
        for path in (root / folder).rglob("*.py")
        if re.search(
            r"Ed25519PublicKey\.from|load_(pem|der|ssh)_public",
            path.read_text(),
        )
    ]
    assert readers == [Path("fedpriv/pki/points.py")]
