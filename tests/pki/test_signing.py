"""A signing key is made once, and nobody else reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpriv.errors import LedgerError
from fedpriv.pki.signing import load_or_create_key


def test_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "report.key"
    first = load_or_create_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    assert load_or_create_key(path).private_bytes_raw() == first.private_bytes_raw()


def test_a_key_made_meanwhile_by_another_process_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.key"
    theirs = load_or_create_key(path)
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert load_or_create_key(path).private_bytes_raw() == theirs.private_bytes_raw()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_key_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "report.key"
    load_or_create_key(path)
    path.chmod(mode)
    with pytest.raises(LedgerError, match="chmod 600"):
        load_or_create_key(path)


def test_what_is_no_key_is_refused_without_being_shown(tmp_path: Path) -> None:
    path = tmp_path / "report.key"
    path.write_text("patient 4711")
    path.chmod(0o600)
    with pytest.raises(LedgerError, match=r"report\.key") as caught:
        load_or_create_key(path)
    assert "4711" not in str(caught.value)
