"""Check what attacks proved about a dossier's run: its ``audit.json``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedpriv.auditing.result import WORLDS, Audit
from fedpriv.dossier.findings import Finding, holds, word
from fedpriv.errors import DossierError, UnderstatedError


def check_audit(audit: Audit, job: str, base: str, path: Path) -> Iterator[Finding]:
    """Check that an audit is of this job, and that no attack proved more than was claimed.

    Args:
        path: the dossier's path, for messages.

    Raises:
        DossierError: the audit is of another job or base model.
        UnderstatedError: an attack proved more than was claimed.
    """
    if audit.base_digest != base or audit.job_id not in (None, job):
        raise DossierError(
            f"{path}: its audit is of job {audit.job_id!r} with the base model {audit.base_digest},"
            f" not of {job!r} with {base}."
        )
    for part in audit.parts:
        if not part.holds:
            raise UnderstatedError(
                f"{path}: the attack {part.name!r} of its audit proves that ε is at least"
                f" {part.proven:.4g}, with confidence {part.confidence:g}, and {part.epsilon:.4g}"
                " was claimed. Don't rely on any of its figures."
            )
    proven = [
        f"{part.name} {part.proven:.3g} of {part.epsilon:.3g}"
        for part in audit.parts
        if part.proven is not None
    ]
    if proven:
        yield holds(
            f"no attack of its audit proved more than it says is claimed: {', '.join(proven)}"
        )
    for part in audit.parts:
        for world in part.missed:
            yield word(
                f"that the attack {part.name} would see a fault: it missed one that was made on"
                f" purpose ({WORLDS[world.name]}), so that what it did not find says nothing"
            )
    yield word("that the audit was made with this code and these settings, and left nothing out")
    if audit.job_id is None:
        yield word("that the audit is of this job: it names none")
