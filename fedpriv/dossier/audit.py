"""What a dossier needs of ``audit.json``: which run it is of, and what attacks proved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from fedpriv.dossier.findings import Finding, holds, word
from fedpriv.errors import DossierError, UnderstatedError
from fedpriv.report.rundir import Part

HELD = ("as-claimed", "run")  # worlds that keep the claim; in all others something is left out


class World(Part):
    """One way in which an attack was run, and what it proves that ε is at least."""

    name: str
    epsilon_lower: float | None = Field(None, ge=0)


class Attack(Part):
    """One kind of attack on a claim of (ε, δ), with the confidence of its bounds."""

    name: str
    epsilon: float = Field(ge=0)
    delta: float
    confidence: float
    worlds: tuple[World, ...]

    @property
    def proven(self) -> float | None:
        """The most that it proves of what keeps the claim; None if it bounds no ε."""
        found = [one.epsilon_lower for one in self.worlds if one.name in HELD]
        return max((lower for lower in found if lower is not None), default=None)


class Audit(Part):
    """The content of ``audit.json``, as far as a dossier shows it."""

    format: Literal[1]
    job_id: str | None
    base_digest: str
    parts: tuple[Attack, ...]


def check_audit(audit: Audit, job: str, base: str, path: Path) -> Iterator[Finding]:
    """Check that an audit is of this job, and that no attack proved more than was claimed.

    Args:
        path: of the dossier, for messages.

    Raises:
        DossierError: it is of another job or base model.
        UnderstatedError: an attack proved more.
    """
    if audit.base_digest != base or audit.job_id not in (None, job):
        raise DossierError(
            f"{path}: its audit is of job {audit.job_id!r} with the base model {audit.base_digest},"
            f" not of {job!r} with {base}."
        )
    for attack in audit.parts:
        if attack.proven is not None and attack.proven > attack.epsilon:
            raise UnderstatedError(
                f"{path}: the attack {attack.name!r} of its audit proves that ε is at least"
                f" {attack.proven:.4g}, with confidence {attack.confidence:g}, and"
                f" {attack.epsilon:.4g} was claimed. Don't rely on any figure of it."
            )
    proven = [
        f"{one.name} {one.proven:.3g} of {one.epsilon:.3g}"
        for one in audit.parts
        if one.proven is not None
    ]
    if proven:
        yield holds(
            f"no attack of its audit proved more than it says is claimed: {', '.join(proven)}"
        )
    yield word("that the audit was made with this code and these settings, and left nothing out")
    if audit.job_id is None:
        yield word("that the audit is of this job: it names none")
