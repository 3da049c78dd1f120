"""Sign a job's proposal once with the server's key, and keep the signature with the run."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import ValidationError

from fedpriv.errors import ConfigError, RunError
from fedpriv.files import write_json
from fedpriv.pki.certificates import parse_certificate
from fedpriv.pki.keys import PrivateKey, load_key
from fedpriv.protocol import Proposal, Signed
from fedpriv.signed_proposal import ECDSA, signed_content
from fedpriv_server.listen import ServerTls
from fedpriv_server.run_directory import RunDirectory

SIGNATURE = "signed.json"  # in a run directory


def signature_of(proposal: Proposal, run: RunDirectory, tls: ServerTls | None) -> Signed | None:
    """Return the signature of a job's proposal. Return None if no authority can vouch for it.

    Raises:
        ConfigError: the job has not begun, and its statement has expired.
        EnrolmentError: the server's key can't be used.
        RunError: the signature that was kept can't be read.
    """
    path = run.path / SIGNATURE
    if path.exists():
        try:
            signed = Signed.model_validate_json(path.read_bytes())
        except ValidationError:
            raise RunError(f"{path}: can't be read. Remove it, to sign anew.") from None
        certificate = parse_certificate(signed.certificate.encode(), path)
        if tls is None or datetime.now(UTC) < certificate.not_valid_after_utc:
            return signed  # no site that begins now would take an expired certificate
    if proposal.has_expired and run.info["status"] == "preparing":
        assert proposal.statement is not None
        raise ConfigError(
            "has passed, so no site begins the job any more",
            key="statement.expires",
            value=str(proposal.statement.expires),
            fix="State a later day.",
        )
    if tls is None:
        return None
    signed = sign_proposal(proposal, load_key(tls.key), tls.certificate.read_bytes())
    write_json(path, signed.model_dump(mode="json"))
    return signed


def sign_proposal(proposal: Proposal, key: PrivateKey, certificate: bytes) -> Signed:
    """Sign a proposal now.

    Args:
        certificate: the server's certificate, in PEM; `key` is its private key.
    """
    at = datetime.now(UTC).replace(microsecond=0)
    signature = key.sign(signed_content(proposal, at), ECDSA).hex()
    return Signed(at=at, certificate=certificate.decode("ascii"), signature=signature)
