"""Whose word a proposal is, and for how long: what a site makes of a statement and a signature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from fedpriv.errors import ProtocolError, StatementError
from fedpriv.pki.certificates import certificate_pem
from fedpriv.protocol import Signed
from fedpriv_client.proposals import check_word, kept_proposals
from fedpriv_client.site import Site
from tests.client.client_setting import Setting, request
from tests.client.test_approval import SERVER, answer
from tests.server.test_signed import OVER
from tests.test_signed_proposal import AUTHORITY, STATED, STATEMENT, signed_by

Make = Callable[..., Any]


@pytest.fixture
def setting(tmp_path: Path, model_folder: Make) -> Setting:
    return Setting(tmp_path, model_folder("llama"))


def site_of(setting: Setting, ca: bool = True, **limits: bool) -> Site:
    site = setting.site(server=SERVER, **limits)
    path = setting.folder / "ca.crt"
    path.write_bytes(certificate_pem(AUTHORITY.certificate))
    site.settings = replace(site.settings, authority=path if ca else None)
    return site


def test_a_signature_is_kept_where_an_authority_vouches_for_it(
    setting: Setting, tmp_path: Path
) -> None:
    signed = signed_by(tmp_path / "a", AUTHORITY)
    site = site_of(setting)
    with pytest.raises(StatementError, match="another proposal"):
        site.consider(setting.proposal, signed)
    assert check_word(site.settings, STATED, signed, begun=False) == signed
    assert check_word(site.settings, STATED, None, begun=False) is None
    plain = replace(site.settings, authority=None)
    assert check_word(plain, STATED, signed, begun=False) is None  # nobody vouches for it
    site.close()


def test_a_site_may_want_a_statement_that_is_signed(setting: Setting) -> None:
    site = site_of(setting, statement=True)
    assert answer(site, setting.proposal) == {"refused": "statement", "kind": "StatementError"}
    with pytest.raises(
        StatementError, match=r"is not signed, and this site needs that \(allow\.statement\)"
    ):
        site.consider(setting.change(statement=STATEMENT))
    assert list(kept_proposals(site.settings.state_dir)) == []
    site.close()


def test_what_has_expired_is_not_begun_and_goes_on_where_it_has(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_of(setting)
    over = setting.change(statement=OVER.statement)
    with pytest.raises(StatementError, match="could be begun until 2020-01-01"):
        site.consider(over)
    until = STATEMENT.model_copy(update={"expires": date(2998, 1, 1)})
    proposal = setting.change(statement=until)
    site.consider(proposal)
    site.step(request(), setting.vector)
    monkeypatch.setattr(type(proposal), "has_expired", True)
    assert site.consider(proposal).epsilon > 0
    with pytest.raises(StatementError):
        site.consider(setting.change(job_id="job-2", statement=until))
    site.close()


def test_an_offer_of_the_last_day_is_not_begun_later(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_of(setting)
    until = STATEMENT.model_copy(update={"expires": date(2998, 1, 1)})
    proposal = setting.change(statement=until)
    site.consider(proposal)
    monkeypatch.setattr(type(proposal), "has_expired", True)
    with pytest.raises(StatementError, match="could be begun until 2998-01-01"):
        site.step(request(), setting.vector)
    assert site.ledger.head.rows == 1
    site.close()


def test_a_signature_that_is_none_is_refused_as_any_message(setting: Setting) -> None:
    with pytest.raises(ProtocolError, match=r"Signed\.signature"):
        Signed.parse('{"at": "2026-01-01T00:00:00Z", "certificate": "", "signature": "xyz"}')
