"""A site makes its own key: it stays, and a request goes."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fedpriv.errors import ConfigError, EnrolmentError
from fedpriv.pki.keys import fingerprint, load_key, private_pem
from fedpriv.pki.points import in_groups
from fedpriv.pki.request import read_request
from fedpriv_client.enroll import enroll


def test_the_key_stays_and_the_request_is_for_it(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    enroll(folder, "cardiology")
    path, request = folder / "site.key", folder / "cardiology.request.pem"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    name, public = read_request(request)
    key = load_key(path)
    assert name == "cardiology"
    assert fingerprint(public) == fingerprint(key.public_key())
    sent = request.read_bytes()
    assert b"PRIVATE" not in sent
    assert private_pem(key) not in sent


def test_it_says_what_to_send_and_what_to_compare(tmp_path: Path) -> None:
    said = enroll(tmp_path, "cardiology")
    assert f"Send {tmp_path / 'cardiology.request.pem'}" in said
    assert "--approve cardiology.request.pem" in said
    key = load_key(tmp_path / "site.key")
    assert in_groups(fingerprint(key.public_key())) in said


def test_a_key_that_is_there_is_never_replaced(tmp_path: Path) -> None:
    enroll(tmp_path, "cardiology")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for name in ("cardiology", "radiology"):
        with pytest.raises(EnrolmentError, match=r"site\.key: is there already"):
            enroll(tmp_path, name)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert before[tmp_path / "site.key"]


@pytest.mark.parametrize("name", ["", "../x", "a/b", "-x", "a b", "x" * 65])
def test_a_name_that_no_site_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is not a site's name"):
        enroll(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnrolmentError, match="file: can't be written"):
        enroll(tmp_path / "file", "cardiology")
