"""Certificates do what they are for in real TLS, and nothing else."""

from __future__ import annotations

import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from fedpriv.errors import EnrolmentError
from fedpriv.pki.certificates import certificate_pem, check_certificate, describe, load_certificate
from fedpriv.pki.keys import fingerprint, load_key, new_key, write_key
from fedpriv_server.authority import (
    CLOCK_SKEW,
    authority_certificate,
    server_certificate,
    site_certificate,
)

from .conftest import NAMES, NOW, Authority

Pair = tuple[Path, Path]


def trust(folder: Path, authority: Authority) -> str:
    path = folder / f"ca-{authority.federation}.crt"
    path.write_bytes(certificate_pem(authority.certificate))
    return str(path)


def handshake(
    server: Pair, ca: str, name: str, *, site: Pair | None = None, sites_of: str | None = None
) -> str | None:
    """The name by which the server knows the site, after TLS in memory.

    Args:
        ca: that the site trusts; `sites_of` is the one that the server asks sites for.

    Raises:
        ssl.SSLError: either side refuses the other.
    """
    at_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    at_server.load_cert_chain(*server)
    if sites_of is not None:
        at_server.verify_mode = ssl.CERT_REQUIRED
        at_server.load_verify_locations(sites_of)
    at_site = ssl.create_default_context(cafile=ca)
    if site is not None:
        at_site.load_cert_chain(*site)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        at_site.wrap_bio(down, up, server_hostname=name),
        at_server.wrap_bio(up, down, server_side=True),
    ]
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    for end in ends:
        assert end.version() is not None
    shown: Any = ends[1].getpeercert()
    return dict(pair for [pair] in shown["subject"])["commonName"] if shown else None


@pytest.mark.parametrize("name", NAMES)
def test_a_site_that_trusts_the_authority_reaches_the_server_by_its_names(
    tmp_path: Path, authority: Authority, name: str
) -> None:
    assert handshake(authority.pair(tmp_path, "server"), trust(tmp_path, authority), name) is None


@pytest.mark.parametrize("name", ["other.example.org", "example.org", "127.0.0.2", "localhost"])
def test_by_another_name_it_does_not(tmp_path: Path, authority: Authority, name: str) -> None:
    server = authority.pair(tmp_path, "server")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(server, trust(tmp_path, authority), name)


def test_a_server_of_another_authority_is_refused(
    tmp_path: Path, authority: Authority, other: Authority
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer|signature"):
        handshake(other.pair(tmp_path, "server"), trust(tmp_path, authority), NAMES[0])


def test_a_server_that_expired_or_is_from_the_future_is_refused(
    tmp_path: Path, authority: Authority
) -> None:
    for shift, words in ((-20, "expired"), (20, "not yet valid")):
        server = authority.pair(tmp_path, "server", now=NOW + timedelta(days=shift), days=5)
        with pytest.raises(ssl.SSLCertVerificationError, match=words):
            handshake(server, trust(tmp_path, authority), NAMES[0])


def test_a_site_cannot_play_the_server(tmp_path: Path, authority: Authority) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        handshake(authority.pair(tmp_path, "site"), trust(tmp_path, authority), NAMES[0])


def test_mutual_tls_takes_the_sites_of_the_authority_and_no_others(
    tmp_path: Path, authority: Authority, other: Authority
) -> None:
    server, ca = authority.pair(tmp_path, "server"), trust(tmp_path, authority)

    def enter(site: Pair | None) -> str | None:
        return handshake(server, ca, NAMES[0], site=site, sites_of=ca)

    assert enter(authority.pair(tmp_path, "site")) == "cardiology"
    strangers = (
        None,
        other.pair(tmp_path / "other", "site"),
        authority.pair(tmp_path / "server", "server"),
        authority.pair(tmp_path / "old", "site", now=NOW - timedelta(days=20), days=5),
    )
    for stranger in strangers:
        with pytest.raises(ssl.SSLError):
            enter(stranger)


def test_a_site_cannot_sign_certificates(tmp_path: Path, authority: Authority) -> None:
    """Neither for our own check nor for TLS is a site's certificate an authority."""
    certificate, key = authority.pair(tmp_path, "site")
    issuer = load_certificate(certificate)
    forged_key = new_key()
    forged = server_certificate(
        issuer, load_key(key), forged_key.public_key(), NAMES, days=1, now=NOW
    )
    for ca in (authority.certificate, issuer):
        with pytest.raises(EnrolmentError, match="was not issued by the authority"):
            check_certificate(forged, ca, use="server", path=tmp_path / "server.crt")
    chain = tmp_path / "chain.crt"
    chain.write_bytes(certificate_pem(forged) + certificate_pem(issuer))
    write_key(tmp_path / "forged.key", forged_key)
    with pytest.raises(ssl.SSLCertVerificationError, match="invalid CA certificate"):
        handshake((chain, tmp_path / "forged.key"), trust(tmp_path, authority), NAMES[0])


def test_a_certificate_says_what_it_was_made_for(authority: Authority) -> None:
    key = new_key().public_key()
    made = server_certificate(authority.certificate, authority.key, key, NAMES, days=7, now=NOW)
    found = describe(made)
    assert (found.use, found.names, found.fingerprint) == ("server", NAMES, fingerprint(key))
    assert found.starts == (NOW - CLOCK_SKEW).replace(microsecond=0)
    assert found.expires == (NOW + timedelta(days=7)).replace(microsecond=0)
    assert describe(authority.certificate).use is None
    usage = made.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.digital_signature, usage.key_cert_sign, usage.crl_sign) == (True, False, False)


def test_no_certificate_outlives_its_authority(authority: Authority) -> None:
    made = site_certificate(
        authority.certificate, authority.key, new_key().public_key(), "x", days=9999, now=NOW
    )
    assert describe(made).expires == describe(authority.certificate).expires


def test_a_check_names_the_file_and_what_is_wrong(
    tmp_path: Path, authority: Authority, other: Authority
) -> None:
    key, path = new_key().public_key(), tmp_path / "site.crt"
    made = site_certificate(
        authority.certificate, authority.key, key, "cardiology", days=7, now=NOW
    )
    checked = check_certificate(made, authority.certificate, use="site", path=path, key=key)
    assert checked.name == "cardiology"
    cases: list[tuple[str, dict[str, Any]]] = [
        ("was not issued by the authority", {"ca": other.certificate}),
        ("is a certificate for a site, not for a server", {"use": "server"}),
        ("expired on .* --renew cardiology", {"now": checked.expires + timedelta(seconds=1)}),
        ("is valid from .* Set the clock", {"now": checked.starts - timedelta(seconds=1)}),
        ("belongs to another private key", {"key": new_key().public_key()}),
    ]
    for words, change in cases:
        given: dict[str, Any] = {"ca": authority.certificate, "use": "site", "key": key} | change
        with pytest.raises(EnrolmentError, match=rf"site\.crt: .*{words}"):
            check_certificate(made, path=path, **given)
    for edge in (checked.starts, checked.expires):
        check_certificate(made, authority.certificate, use="site", path=path, now=edge)


def test_the_authority_has_to_be_valid_too(tmp_path: Path, authority: Authority) -> None:
    """Even where what it signed would be good for longer."""
    key = new_key().public_key()
    made = site_certificate(authority.certificate, authority.key, key, "x", days=9, now=NOW)
    for ca, words in (
        (authority_certificate(authority.key, authority.federation, "hearts", days=2,
                               now=NOW - timedelta(days=3)), "authority's certificate expired"),
        (authority_certificate(authority.key, authority.federation, "hearts", days=2,
                               now=NOW + timedelta(days=3)), "authority's certificate is valid"),
    ):  # fmt: skip
        with pytest.raises(EnrolmentError, match=words):
            check_certificate(made, ca, use="site", path=tmp_path / "site.crt", now=NOW)


def test_what_fedpriv_did_not_make_is_refused(tmp_path: Path, authority: Authority) -> None:
    path = tmp_path / "ca.crt"
    with pytest.raises(EnrolmentError, match="No such file"):
        load_certificate(path)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bare")])
    key = new_key()
    bare = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    whole = certificate_pem(authority.certificate)
    for content in (b"", b"certificate", whole[:-40], certificate_pem(bare)):
        path.write_bytes(content)
        with pytest.raises(
            EnrolmentError, match=r"ca\.crt: is not a certificate that fedpriv made"
        ):
            load_certificate(path)


def test_a_certificate_of_another_kind_of_key_is_refused(tmp_path: Path) -> None:
    """An authority whose key is a small point of Ed25519 would have signed every certificate."""
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cardiology")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, None)
    )
    der = made.public_bytes(Encoding.DER)
    small = der.replace(key.public_key().public_bytes_raw(), (1).to_bytes(32, "little"))
    for path, content in ((tmp_path / "one.crt", der), (tmp_path / "any.crt", small)):
        path.write_bytes(certificate_pem(x509.load_der_x509_certificate(content)))
        with pytest.raises(EnrolmentError, match="not a certificate that fedpriv made"):
            load_certificate(path)
