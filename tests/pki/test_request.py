"""A site's request: its name and key, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpriv.errors import EnrolmentError
from fedpriv.pki.keys import fingerprint, new_key
from fedpriv.pki.request import make_request, read_request

KEY = new_key()
REQUEST = make_request(KEY, "cardiology")


def test_a_request_gives_the_name_and_the_key(tmp_path: Path) -> None:
    path = tmp_path / "cardiology.request.pem"
    path.write_bytes(REQUEST)
    name, key = read_request(path)
    assert (name, fingerprint(key)) == ("cardiology", fingerprint(KEY.public_key()))


@given(st.integers(0, len(REQUEST) - 1), st.integers(1, 255))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_byte_changes_nothing_or_is_refused(tmp_path: Path, at: int, by: int) -> None:
    path = tmp_path / "cardiology.request.pem"
    changed = bytearray(REQUEST)
    changed[at] ^= by
    path.write_bytes(changed)
    try:
        name, key = read_request(path)
    except EnrolmentError as error:
        assert str(path) in str(error)
    else:
        assert (name, fingerprint(key)) == ("cardiology", fingerprint(KEY.public_key()))


def test_a_request_for_another_name_or_key_is_not_made_of_this_one(tmp_path: Path) -> None:
    path = tmp_path / "cardiology.request.pem"
    der = x509.load_pem_x509_csr(REQUEST).public_bytes(Encoding.DER)
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    keys = [key.public_key().public_bytes(*form) for key in (KEY, new_key())]
    for old, new in ((b"cardiology", b"orthopedic"), (keys[0], keys[1])):
        changed = x509.load_der_x509_csr(der.replace(old, new))
        path.write_bytes(changed.public_bytes(Encoding.PEM))
        with pytest.raises(EnrolmentError, match="was changed after it was signed"):
            read_request(path)


def test_a_request_for_another_kind_of_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pem"
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cardiology")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    path.write_bytes(request.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    with pytest.raises(EnrolmentError, match="another kind of key than P-256"):
        read_request(path)


def test_what_is_no_request_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnrolmentError, match="No such file"):
        read_request(tmp_path / "x.pem")
    for content in (b"", b"request", REQUEST[:100]):
        (tmp_path / "x.pem").write_bytes(content)
        with pytest.raises(EnrolmentError, match="is not a request in PEM form"):
            read_request(tmp_path / "x.pem")
