"""Orders of the administrator to a running site: pause, resume, refuse a job, approve a proposal.

They are kept in a file in the site's folder. So they hold across restarts and need no port.
"""

from __future__ import annotations

import fcntl
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import Field

from fedpriv.errors import ConfigError, JobRefusedError, PausedError
from fedpriv.files import canonical_json, private_folder, sha256, write_json
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.section import Section

Reason = Literal["agreement", "ethics", "usual", "purpose", "recipients", "cost", "other"]


class Said(Section):
    """Hold who decided about a job, and why.

    Attributes:
        by: who decided, or how.
        reason: a reason of the list; None if nobody was asked for one.
        text: more about it, in the person's own words.
        agreed: whether name and text may leave the site.
    """

    by: str = Field(max_length=200)
    reason: Reason | None = None
    text: str = Field("", max_length=1000)
    agreed: bool = False


class Approval(Said):
    """Record that a person said yes to a proposal, or no to a job.

    Attributes:
        job: the job's id or name.
        at: when the person said so.
        plan: digest of what the person was asked, as `Asked.digest`, because the site's own file
            also decides the price. It is None for a no. A yes without it, from an older version,
            does not count.
        before: the yes of another person, which was there already.
    """

    job: str
    at: datetime
    plan: str | None = None
    before: Approval | None = None

    @property
    def persons(self) -> tuple[Approval, ...]:
        """Return all who said so, in order of time."""
        return (*(() if self.before is None else self.before.persons), self)

    def as_row(self, key: bytes, proposal: str) -> dict[str, str]:
        """Return the approval as a ledger's row keeps it. A secret key hides guessable names."""
        person = hmac.new(key, canonical_json([proposal, self.by]), "sha256").hexdigest()
        row = {"person": person, "reason": self.reason or "none"}
        return {**row, "name": self.by, "text": self.text} if self.agreed else row


@dataclass(frozen=True)
class Asked:
    """Hold what a person is asked to approve: a plan, paid from one ledger at its δ."""

    plan: Plan
    dataset_id: str
    delta: float

    @property
    def digest(self) -> str:
        """Return the digest of what decides whose records pay and how much, but not of `ticks`."""
        plan = replace(self.plan, ticks=False).as_row()
        return sha256(canonical_json([plan, self.dataset_id, self.delta]))


class Orders(Section):
    """Hold the present orders, which stay until they are changed.

    Attributes:
        paused: whether the site computes nothing, for any job.
        refused: jobs for which no request is answered any more, by id, or by the coordinator's name
            for them, with which an id begins.
        approved: by digest of a proposal, the yes to this proposal and no other.
        reasons: by refused job, as in `refused`, who said no and why.
    """

    paused: bool = False
    refused: tuple[str, ...] = ()
    approved: dict[str, Approval] = Field({})  # older versions don't know it
    reasons: dict[str, Approval] = Field({})  # nor this one

    @classmethod
    def read(cls, folder: Path) -> Orders:
        """Read the orders in a site's folder; no file means no orders.

        Raises:
            ConfigError: the file can't be read. The site does not work until it can be.
        """
        path = folder / "orders.json"
        try:
            found = cls.model_validate_json(path.read_bytes(), strict=True)
            if not {"paused", "refused"} <= found.model_fields_set:
                raise ValueError("an order is missing")
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError):
            fix = "Give the order again, or remove it."
            raise ConfigError("can't be read as orders", file=path, fix=fix) from None
        return found

    def write(self, folder: Path) -> None:
        """Write these orders, which hold from now on."""
        write_json(folder / "orders.json", self.model_dump(mode="json"))

    @classmethod
    def change(cls, folder: Path, how: Callable[[Orders], Orders]) -> Orders:
        """Change the orders. If two people do so at once, neither change is lost.

        Raises:
            ConfigError: the present orders can't be read.
        """
        with (private_folder(folder) / "orders.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            stands = how(cls.read(folder))
            stands.write(folder)
            return stands

    def refusing(self, job: str, said: Said | None = None) -> Orders:
        """Add the refusal of a job, or of all jobs of that name, and forget their approvals."""
        stands = self.model_copy(update={"refused": tuple(sorted({*self.refused, job}))})
        approved = {d: yes for d, yes in self.approved.items() if not stands.refuses(yes.job)}
        reasons = self.reasons if said is None else {**self.reasons, job: _now(job, said)}
        return stands.model_copy(update={"approved": approved, "reasons": reasons})

    def not_refusing(self, job: str) -> Orders:
        """Remove that refusal from the orders."""
        refused = tuple(name for name in self.refused if name != job)
        reasons = {name: no for name, no in self.reasons.items() if name != job}
        return self.model_copy(update={"refused": refused, "reasons": reasons})

    def approving(self, asked: Asked, said: Said | str) -> Orders:
        """Add the approval of a proposal at this price, beside those of other persons.

        Args:
            said: the person who approves, and why; or only who, or how, as text.

        Raises:
            JobRefusedError: the proposal's job is refused.
        """
        plan = asked.plan
        self._check_not_refused(plan.job, "Take that refusal back: fedpriv-client refuse --undo.")
        said = Said(by=said) if isinstance(said, str) else said
        known, before = self.approved.get(plan.proposal), None
        for one in () if known is None else known.persons:
            if one.by != said.by:
                before = one.model_copy(update={"before": before})
        yes = _now(plan.job, said).model_copy(update={"before": before, "plan": asked.digest})
        return self.model_copy(update={"approved": {**self.approved, plan.proposal: yes}})

    def persons(self, asked: Asked, approvers: Sequence[str] = ()) -> tuple[Approval, ...]:
        """Return the approvals that count. One at another price, or for other records, does not.

        Args:
            approvers: who may approve; if empty, everybody who can give orders.
        """
        yes, price = self.approved.get(asked.plan.proposal), asked.digest
        found = () if yes is None else yes.persons
        may = (one for one in found if not approvers or one.by in approvers)
        return tuple(one for one in may if one.plan == price)

    def refuses(self, job: str) -> bool:
        """Tell whether the administrator wants no part in a job."""
        return job in self.refused or job.rpartition("-")[0] in self.refused

    def is_approved(self, asked: Asked, approvers: Sequence[str] = (), needed: int = 1) -> bool:
        """Tell whether enough persons approved a plan."""
        return len(self.persons(asked, approvers)) >= needed

    def refusal(self, job: str) -> Approval | None:
        """Return who refused a job and why, if a person was named."""
        return self.reasons.get(job) or self.reasons.get(job.rpartition("-")[0])

    def _check_not_refused(self, job: str, advice: str = "") -> None:
        if self.refuses(job):
            text = f"The administrator of this site refuses job {job!r}."
            raise JobRefusedError(f"{text} {advice}".strip())

    def check(self, job: str) -> None:
        """Raise JobRefusedError for a job that the site refuses, PausedError while it is paused."""
        self._check_not_refused(job)
        if self.paused:
            raise PausedError("This site is paused: fedpriv-client resume lets it go on.")

    def check_approved(self, asked: Asked, approvers: Sequence[str] = (), needed: int = 1) -> None:
        """Check that at least `needed` persons said yes to a plan.

        Raises:
            PausedError: not enough have yet. Later the answer may be another. A server can't tell
                this error from that of a paused site.
        """
        if not self.is_approved(asked, approvers, needed):
            job = asked.plan.job
            raise PausedError(
                f"Job {job!r} waits for somebody to approve it (allow.approve): fedpriv-client"
                f" jobs shows it, fedpriv-client approve {job} says yes."
            )


def _now(job: str, said: Said) -> Approval:
    return Approval(job=job, at=datetime.now(UTC).replace(microsecond=0), **dict(said))
