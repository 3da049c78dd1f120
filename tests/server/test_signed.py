"""A coordinator signs a job once, and begins none whose statement has expired."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any, cast

import pytest

from fedpriv.errors import ConfigError, RunError
from fedpriv_server.listen import ServerTls
from fedpriv_server.run_directory import RunDirectory
from fedpriv_server.signed import signature_of
from tests.pki.conftest import Authority
from tests.test_signed_proposal import AUTHORITY, STATED, STATEMENT

OVER = STATED.model_copy(
    update={"statement": STATEMENT.model_copy(update={"expires": date(2020, 1, 1)})}
)


def run_of(path: Path, status: str) -> RunDirectory:
    return RunDirectory(path, cast(dict[str, Any], {"status": status}))


def tls_of(folder: Path, authority: Authority = AUTHORITY) -> ServerTls:
    return ServerTls(*authority.pair(folder, "server"))


def test_a_job_is_signed_once(tmp_path: Path) -> None:
    first = signature_of(STATED, run_of(tmp_path, "preparing"), tls_of(tmp_path / "a"))
    again = signature_of(STATED, run_of(tmp_path, "running"), tls_of(tmp_path / "renewed"))
    assert first is not None and again == first
    (tmp_path / "signed.json").write_text("{")
    with pytest.raises(RunError, match="signed\\.json"):
        signature_of(STATED, run_of(tmp_path, "running"), tls_of(tmp_path / "a"))


def test_without_an_authority_nobody_signs(tmp_path: Path) -> None:
    assert signature_of(STATED, run_of(tmp_path, "preparing"), None) is None
    assert list(tmp_path.iterdir()) == []


def test_a_job_whose_statement_is_over_is_not_begun_but_goes_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"statement\.expires: has passed"):
        signature_of(OVER, run_of(tmp_path, "preparing"), None)
    assert signature_of(OVER, run_of(tmp_path, "running"), tls_of(tmp_path / "a")) is not None
