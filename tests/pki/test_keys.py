"""Private keys in files: made once, read by nobody else, refused if they are anything else."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fedpriv.errors import EnrolmentError
from fedpriv.pki.keys import (
    fingerprint,
    is_encrypted,
    load_key,
    new_key,
    private_pem,
    public_pem,
    write_key,
)


def test_a_key_comes_back_from_a_file_that_only_its_owner_may_read(tmp_path: Path) -> None:
    key, path = new_key(), tmp_path / "folder" / "site.key"
    write_key(path, key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_key(path).private_numbers() == key.private_numbers()
    assert not is_encrypted(path.read_bytes())


def test_a_key_is_never_overwritten_unless_that_is_asked_for(tmp_path: Path) -> None:
    first, second, path = new_key(), new_key(), tmp_path / "site.key"
    write_key(path, first)
    with pytest.raises(EnrolmentError, match=r"site\.key: is there already"):
        write_key(path, second)
    assert load_key(path).private_numbers() == first.private_numbers()
    write_key(path, second, replace=True)
    assert load_key(path).private_numbers() == second.private_numbers()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["site.key"]


def test_a_passphrase_is_asked_for_where_there_is_one_and_only_there(tmp_path: Path) -> None:
    key, plain, locked = new_key(), tmp_path / "plain.key", tmp_path / "locked.key"
    write_key(plain, key)
    write_key(locked, key, passphrase=b"correct horse")
    asked: list[bytes] = []

    def say(words: bytes) -> bytes:
        asked.append(words)
        return words

    assert load_key(plain, lambda: say(b"x")).private_numbers() == key.private_numbers()
    assert asked == []
    assert load_key(locked, lambda: say(b"correct horse")).private_numbers() == (
        key.private_numbers()
    )
    with pytest.raises(EnrolmentError, match=r"locked\.key: can't be read as a private key"):
        load_key(locked, lambda: say(b"battery staple"))
    with pytest.raises(EnrolmentError, match=r"locked\.key: .* or is encrypted"):
        load_key(locked)
    assert private_pem(key) not in locked.read_bytes()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_key_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "site.key"
    write_key(path, new_key())
    path.chmod(mode)
    with pytest.raises(EnrolmentError, match="chmod 600"):
        load_key(path)


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP256K1()),
        ed25519.Ed25519PrivateKey.generate(),
    ],
)
def test_another_kind_of_key_is_refused(tmp_path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path = tmp_path / "site.key"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    with pytest.raises(EnrolmentError, match=r"site\.key: holds another kind of key than P-256"):
        load_key(path)


def test_what_is_no_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "site.key"
    with pytest.raises(EnrolmentError, match="No such file"):
        load_key(path)
    for content in (b"", b"key", public_pem(new_key().public_key()), private_pem(new_key())[:90]):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(EnrolmentError, match="can't be read as a private key in PEM form"):
            load_key(path)


def test_the_private_half_has_to_be_that_of_the_public_one(tmp_path: Path) -> None:
    """A file that holds both can be damaged in one of them."""
    key, path = new_key(), tmp_path / "site.key"
    der = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    secret = key.private_numbers().private_value
    changed = der.replace(secret.to_bytes(32, "big"), (secret ^ 1).to_bytes(32, "big"))
    assert changed != der
    body = base64.encodebytes(changed).decode()
    path.write_text(f"-----BEGIN PRIVATE KEY-----\n{body}-----END PRIVATE KEY-----\n")
    path.chmod(0o600)
    with pytest.raises(EnrolmentError, match=r"site\.key"):
        load_key(path)


def test_a_fingerprint_is_of_the_public_key_alone() -> None:
    first, second = new_key(), new_key()
    assert fingerprint(first.public_key()) == fingerprint(first.public_key())
    assert fingerprint(first.public_key()) != fingerprint(second.public_key())
    assert len(fingerprint(first.public_key())) == len("sha256:") + 64
