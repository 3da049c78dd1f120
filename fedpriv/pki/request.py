"""A site's request for a certificate: name and public key, signed with its private key.

Source:
    RFC 2986 (PKCS#10).
"""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from fedpriv.errors import EnrolmentError
from fedpriv.pki.keys import PrivateKey, PublicKey, is_p256


def make_request(key: PrivateKey, name: str) -> bytes:
    """Return the PEM of a request whose common name is the site's.

    Privacy:
        The site's name, a public key and a signature leave the site. Nothing of the records does.
    """
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return request.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def read_request(path: Path) -> tuple[str, PublicKey]:
    """Return the name and public key in a request. Whatever else it asks for is ignored.

    Raises:
        EnrolmentError: it can't be read, is damaged, or was not made with the key it names.
    """
    fix = "Ask the site to send the file again that fedpriv-client enroll made."
    try:
        request = x509.load_pem_x509_csr(path.read_bytes())
        key, whole = request.public_key(), request.is_signature_valid
        [name] = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except OSError as error:
        raise EnrolmentError(f"{path}: the request can't be read: {error.strerror}.") from None
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion):
        raise EnrolmentError(
            f"{path}: is not a request in PEM form, or is damaged. {fix}"
        ) from None
    if not is_p256(key):
        raise EnrolmentError(f"{path}: is for another kind of key than P-256. {fix}")
    if not whole:
        raise EnrolmentError(f"{path}: was changed after it was signed with the site's key. {fix}")
    return str(name.value), key
