"""A proposal is the coordinator's word: signed by a key for which the authority vouches."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from pathlib import Path

import pytest

from fedpriv.config.statement import StatementSection
from fedpriv.errors import StatementError
from fedpriv.pki.certificates import certificate_pem
from fedpriv.pki.keys import load_key
from fedpriv.protocol import Proposal, Signed
from fedpriv.signed_proposal import ECDSA, check_signed, signed_content
from fedpriv_server.signed import sign_proposal
from tests.golden_messages import PROPOSAL
from tests.pki.conftest import NOW, Authority

STATEMENT = StatementSection(
    purpose="Shorter discharge letters",
    recipients="The hospitals that take part",
    contact="Dr Ada, +49 30 1234",
    expires=date(2999, 12, 31),
    participants=("north", "south"),
)
STATED = PROPOSAL.model_copy(update={"statement": STATEMENT})
AUTHORITY = Authority.new("a" * 32, now=NOW - timedelta(days=50))


def signed_by(
    folder: Path, authority: Authority, use: str = "server", now: datetime = NOW, days: int = 10
) -> Signed:
    certificate, key = authority.pair(folder, use, now=now, days=days)
    return sign_proposal(STATED, load_key(key), certificate.read_bytes())


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    path = tmp_path / "ca.crt"
    path.write_bytes(certificate_pem(AUTHORITY.certificate))
    return path


def test_a_statement_is_part_of_the_digest_and_of_what_travels() -> None:
    assert STATED.digest() != PROPOSAL.digest()
    assert Proposal.parse(STATED.model_dump_json()) == STATED
    for field, value in (("purpose", "Longer ones"), ("participants", ("north",))):
        changed = STATEMENT.model_copy(update={field: value})
        assert STATED.model_copy(update={"statement": changed}).digest() != STATED.digest()


def test_what_the_coordinator_signed_is_its_word(tmp_path: Path, ca: Path) -> None:
    signed = signed_by(tmp_path / "a", AUTHORITY)
    check_signed(STATED, Signed.parse(signed.model_dump_json()), ca, begun=False)
    with pytest.raises(StatementError, match="another proposal"):
        check_signed(PROPOSAL, signed, ca, begun=True)


def test_nobody_else_signs_for_it(tmp_path: Path, ca: Path) -> None:
    other = signed_by(tmp_path / "other", Authority.new("b" * 32))
    with pytest.raises(StatementError, match="was not issued by the authority"):
        check_signed(STATED, other, ca, begun=True)
    site = signed_by(tmp_path / "site", AUTHORITY, use="site")
    with pytest.raises(StatementError, match="not for a server"):
        check_signed(STATED, site, ca, begun=True)
    with pytest.raises(StatementError, match="not a certificate that fedpriv made"):
        check_signed(STATED, site.model_copy(update={"certificate": "x"}), ca, begun=True)


def test_a_certificate_counts_at_the_time_of_the_signature(
    tmp_path: Path, ca: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = signed_by(tmp_path / "late", AUTHORITY, now=NOW - timedelta(days=40), days=10)
    with pytest.raises(StatementError, match="expired"):
        check_signed(STATED, late, ca, begun=True)
    old, key = AUTHORITY.pair(tmp_path / "old", "server", now=NOW - timedelta(days=40), days=10)
    at = NOW - timedelta(days=35)  # as who has an old key may say of today
    signature = load_key(key).sign(signed_content(STATED, at), ECDSA).hex()
    dated = Signed(at=at, certificate=old.read_text(), signature=signature)
    check_signed(STATED, dated, ca, begun=True)
    with pytest.raises(StatementError, match="expired"):
        check_signed(STATED, dated, ca, begun=False)
    signed = signed_by(tmp_path / "now", AUTHORITY)
    moved = signed.model_copy(update={"at": signed.at + timedelta(minutes=1)})
    with pytest.raises(StatementError, match="was changed"):
        check_signed(STATED, moved, ca, begun=True)

    class Earlier(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return NOW - timedelta(hours=1)

    monkeypatch.setattr("fedpriv.signed_proposal.datetime", Earlier)
    with pytest.raises(StatementError, match="still to come"):
        check_signed(STATED, signed, ca, begun=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "two\nlines",
        "\x1b[2Jescape",
        "a\u202ereversed",
        "x" * 1001,
        "zero\u200bwidth",
        "a\u2028b",
    ],
)
def test_a_statement_is_what_it_looks_like(text: str) -> None:
    with pytest.raises(ValueError, match="purpose"):
        StatementSection.model_validate({**STATEMENT.model_dump(), "purpose": text})
