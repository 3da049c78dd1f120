"""The proposals that a site could accept, kept in its folder for people to read.

Each has a file, named by the proposal's digest. A person approves what is in that file. So a
proposal that differs in anything is another one, and people are asked again.

Privacy
    What is kept was sent by a server, or was computed from settings and the ledger's public rows. A
    site answers a proposal in the same way whether or not it could be kept.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import AwareDatetime, Field

from fedpriv.errors import AccountingError, FedprivError, StatementError
from fedpriv.files import canonical_json, private_folder
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.protocol import Proposal, Signed
from fedpriv.section import Section
from fedpriv.signed_proposal import check_signed
from fedpriv_client.held_space import HeldSpace, write_beside
from fedpriv_client.site_settings import SiteSettings

log = logging.getLogger(__name__)
SHARE = 50  # decided ones, and as many others: no flood fills a disk
BYTES = 2**20  # of each of the two shares, which a page reads at every request
_NAMES = "[0-9a-f]*.json"


class KeptProposal(Section):
    """Hold a proposal, with what the site would commit to for it.

    Attributes:
        server: the host:port from which it came.
        first: when it came for the first time.
        committed: the plan, as a ledger's row has it.
        allocated: ε allocated of the ledger with this plan, when the proposal came last.
        allocated_alone: the same for the claim that holds alone, if the ledger has one.
        signed: the coordinator's signature, which was checked when it came.
    """

    format: Literal[1] = 1
    server: str
    first: AwareDatetime
    committed: dict[str, Any]
    allocated: float = Field(ge=0)
    allocated_alone: float | None = Field(None, ge=0)
    proposal: Proposal
    signed: Signed | None = None

    @property
    def job(self) -> str:
        return self.proposal.job_id

    @property
    def digest(self) -> str:
        return self.plan.proposal

    @property
    def plan(self) -> Plan:
        return Plan(**self.committed)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read one file.

        Raises:
            ValueError: its content does not fit its name, or is of an older version.
            OSError: it can't be read.
        """
        try:
            found = cls.model_validate_json(path.read_bytes())
            named = found.proposal.digest() == found.digest == f"sha256:{path.stem}"
        except (AccountingError, TypeError) as error:  # not a valid plan
            raise ValueError(str(error)) from None
        if not named:
            raise ValueError("a proposal of another digest")
        return found


Decide = Callable[[KeptProposal], bool]


def proposals_folder(state_dir: Path) -> Path:
    """Return the folder of kept proposals."""
    return state_dir / "proposals"


def check_expiry(proposal: Proposal, *, begun: bool) -> None:
    """Check that a job may still begin.

    Raises:
        StatementError: its last day to begin has passed.
    """
    if proposal.has_expired and not begun:
        assert proposal.statement is not None
        raise StatementError(
            f"Job {proposal.job_id!r} could be begun until {proposal.statement.expires}."
            " The coordinator has to propose it anew."
        )


def check_word(
    settings: SiteSettings, proposal: Proposal, signed: Signed | None, *, begun: bool
) -> Signed | None:
    """Check expiry and signature of a proposal, as far as the site's own file asks for them.

    Returns:
        The signature, if the site's enrolment names an authority to check it with.

    Raises:
        StatementError: it expired before it began here, or its signature is wrong or missing.
    """
    check_expiry(proposal, begun=begun)
    if settings.authority is None:
        return None
    if signed is not None:
        check_signed(proposal, signed, settings.authority, begun=begun)
    elif settings.limits.statement:
        raise StatementError(
            f"Job {proposal.job_id!r} is not signed, and this site needs that (allow.statement)."
        )
    return signed


def keep_proposal(
    settings: SiteSettings, held: HeldSpace, came: KeptProposal, is_decided: Decide
) -> KeptProposal | None:
    """Keep a proposal that the site's limits allow. Only this site's log says what is wrong.

    The newest decided proposals stay, and the newest undecided ones. If the site asks people, the
    undecided ones stay until somebody decides, and beyond the limits a further one is not kept.

    Args:
        came: the proposal, as if it came for the first time.
        is_decided: tells whether a person said yes or no to a proposal, or its job has begun.

    Returns:
        The kept proposal, if it is new; None otherwise.
    """
    try:
        folder = private_folder(proposals_folder(settings.state_dir))
        others = _files(folder)
        path = folder / f"{came.digest.removeprefix('sha256:')}.json"
        known = others.pop(path, None)
        kept = came if known is None else came.model_copy(update={"first": known.first})
        text = canonical_json(kept.model_dump(mode="json")).decode() + "\n"
        decided = [at for at, one in others.items() if not one or is_decided(one)]
        waiting = [at for at in others if at not in decided]
        if is_decided(kept):
            _forget(decided, len(text))
            _forget(waiting)
        else:
            _forget(decided)
            _forget(waiting, 0 if settings.ask else len(text))
            if settings.ask and _beyond(waiting, len(text)):
                raise OSError(errno.EDQUOT, f"{len(waiting)} others wait for a decision")
        if known is None or path.read_text(encoding="utf-8") != text:
            write_beside(path, text, 0o600, held)
        return kept if known is None else None
    except OSError as error:
        log.error("Job %s is missing from the list of jobs: %s.", came.job, error.strerror)
        return None


def kept_proposals(state_dir: Path) -> Iterator[KeptProposal]:
    """Yield all kept proposals, the newest first; those of another version are left out."""
    found = filter(None, _files(proposals_folder(state_dir)).values())
    yield from sorted(found, key=lambda kept: (kept.first, kept.digest), reverse=True)


def _files(folder: Path) -> dict[Path, KeptProposal | None]:
    """Read each file, oldest first. Files that can't be read come before all others, as None."""
    found: list[tuple[int, Path, KeptProposal | None]] = []
    for path in folder.glob(_NAMES):
        try:
            kept = KeptProposal.read(path)
            found.append((path.stat().st_mtime_ns, path, kept))
        except (OSError, ValueError, FedprivError) as error:
            log.debug("%s: can't be read: %s", path, type(error).__name__)
            found.append((0, path, None))
    return {path: kept for _, path, kept in sorted(found, key=itemgetter(0))}


def _beyond(share: Sequence[Path], new: int = 0) -> Sequence[Path]:
    """Return the oldest files of a share that must go so that `new` bytes fit; 0: nothing new."""
    left = [path.stat().st_size for path in share]
    while left and (len(left) + (new > 0) > SHARE or sum(left) + new > BYTES):
        del left[0]
    return share[: len(share) - len(left)]


def _forget(share: list[Path], new: int = 0) -> None:
    for path in _beyond(share, new):
        path.unlink(missing_ok=True)
        share.remove(path)
