"""The coordinator's signature of a proposal, with the key of its server's certificate.

The authority that signed a site's enrolment vouches for that certificate. So a site knows who made
a proposal, and can show that to others later.

Privacy:
    Nothing here comes from a site, and whether a signature is valid depends on no record.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedpriv.errors import EnrolmentError, StatementError
from fedpriv.files import canonical_json
from fedpriv.pki.certificates import check_certificate, load_certificate, parse_certificate
from fedpriv.pki.keys import is_p256
from fedpriv.protocol import Proposal, Signed

AHEAD = timedelta(minutes=5)  # the coordinator's clock may be so far ahead of ours
_LABEL = "fedpriv-proposal-1"
ECDSA = ec.ECDSA(hashes.SHA256())


def check_signed(proposal: Proposal, signed: Signed, authority: Path, *, begun: bool) -> None:
    """Check that the coordinator of our enrolment signed this very proposal.

    Args:
        authority: file of the authority's certificate.
        begun: the job is under way, and may outlast the certificate, which then only had to be
            valid at the signature's time. The signer states that time, so for any other job the
            certificate has to be valid now, too.

    Raises:
        StatementError: it did not, or the signature's time is still to come.
    """
    whose = Path("the proposal's signature")
    try:
        certificate = parse_certificate(signed.certificate.encode(), whose)
        ca = load_certificate(authority)
        for at in (signed.at,) if begun else (signed.at, datetime.now(UTC)):
            check_certificate(certificate, ca, use="server", path=whose, now=at)
        key = certificate.public_key()
        assert is_p256(key)  # else parsing had failed
        key.verify(bytes.fromhex(signed.signature), signed_content(proposal, signed.at), ECDSA)
    except InvalidSignature:
        raise StatementError(f"{whose}: is of another proposal, or was changed.") from None
    except EnrolmentError as error:
        raise StatementError(str(error)) from None
    if signed.at > datetime.now(UTC) + AHEAD:
        raise StatementError(f"{whose}: was made at {signed.at}, which is still to come.")


def signed_content(proposal: Proposal, at: datetime) -> bytes:
    """Return what the coordinator signs."""
    return canonical_json([_LABEL, proposal.digest(), at.astimezone(UTC).isoformat()])
