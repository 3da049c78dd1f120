"""What the administrator says to a running site: pause, go on, refuse a job, approve a proposal.

Said by a file in the site's folder, so that it holds across restarts and needs no port.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from fedpriv.errors import ConfigError, JobRefusedError, PausedError
from fedpriv.files import private_folder, write_json
from fedpriv.section import Section


class Approval(Section):
    """That a person said yes to a proposal.

    Attributes:
        job: that it is for.
        at: when.
        by: who, or how.
    """

    job: str
    at: datetime
    by: str


class Orders(Section):
    """What stands. Kept until it is changed.

    Attributes:
        paused: compute nothing, for any job.
        refused: jobs to which no request is answered any more, by id, or by the name that the
            coordinator gave them, which an id begins with.
        approved: digest of a proposal → that a person said yes to it, and to no other.
    """

    paused: bool = False
    refused: tuple[str, ...] = ()
    approved: dict[str, Approval] = Field({})  # which older versions don't know

    @classmethod
    def read(cls, folder: Path) -> Orders:
        """The orders in a site's folder; none is no order.

        Raises:
            ConfigError: the file can't be read. A site does not work on until it can.
        """
        path = folder / "orders.json"
        try:
            found = cls.model_validate_json(path.read_bytes(), strict=True)
            if not {"paused", "refused"} <= found.model_fields_set:
                raise ValueError("an order is missing")
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError):
            raise ConfigError(
                "can't be read as orders", file=path, fix="Give the order again, or remove it."
            ) from None
        return found

    def write(self, folder: Path) -> None:
        """Let these stand from now on."""
        write_json(folder / "orders.json", self.model_dump(mode="json"))

    @classmethod
    def change(cls, folder: Path, how: Callable[[Orders], Orders]) -> Orders:
        """Give an order beside those that stand; of two people at once, neither's is lost.

        Raises:
            ConfigError: those that stand can't be read.
        """
        with (private_folder(folder) / "orders.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            stands = how(cls.read(folder))
            stands.write(folder)
            return stands

    def refusing(self, job: str) -> Orders:
        """These, and no part in a job, or in any of that name; a yes to one is forgotten."""
        stands = self.model_copy(update={"refused": tuple(sorted({*self.refused, job}))})
        approved = {d: yes for d, yes in self.approved.items() if not stands.refuses(yes.job)}
        return stands.model_copy(update={"approved": approved})

    def not_refusing(self, job: str) -> Orders:
        """These, but for that refusal."""
        refused = tuple(name for name in self.refused if name != job)
        return self.model_copy(update={"refused": refused})

    def approving(self, job: str, digest: str, by: str) -> Orders:
        """These, and yes to the proposal of that digest.

        Raises:
            JobRefusedError: its job is refused.
        """
        self._check_not_refused(job, "Take that back first: fedpriv-client refuse --undo.")
        yes = Approval(job=job, at=datetime.now(UTC).replace(microsecond=0), by=by)
        return self.model_copy(update={"approved": {**self.approved, digest: yes}})

    def refuses(self, job: str) -> bool:
        """Whether the administrator wants no part in a job."""
        return job in self.refused or job.rpartition("-")[0] in self.refused

    def _check_not_refused(self, job: str, advice: str = "") -> None:
        if self.refuses(job):
            text = f"The administrator of this site refuses job {job!r}."
            raise JobRefusedError(f"{text} {advice}".strip())

    def check(self, job: str) -> None:
        """Raises:
        JobRefusedError: the administrator wants no part in this job.
        PausedError: nothing is to be computed now.
        """
        self._check_not_refused(job)
        if self.paused:
            raise PausedError("This site is paused: fedpriv-client resume lets it go on.")

    def check_approved(self, job: str, digest: str) -> None:
        """Check that a person said yes to a proposal.

        Raises:
            PausedError: nobody has yet. Asked again later, the answer may be another; and a server
                can't tell it from that of a site that is paused.
        """
        if digest not in self.approved:
            raise PausedError(
                f"Job {job!r} waits for somebody to approve it (allow.approve): fedpriv-client jobs"
                f" shows it, fedpriv-client approve {job} says yes."
            )
