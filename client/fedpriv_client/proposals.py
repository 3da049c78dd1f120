"""The proposals that a site could accept, kept in its folder for people to read.

One file for each, named by the proposal's digest. A person approves what is in such a file, so a
proposal that differs in anything is another one, and has to be asked about again.

Privacy
    What is kept was sent by a server, or computed from settings and the ledger's public rows. A
    site answers a proposal in the same way whether or not it could be kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from fedpriv.errors import AccountingError, FedprivError
from fedpriv.files import private_folder, write_atomic
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.protocol import Proposal
from fedpriv.section import Section

log = logging.getLogger(__name__)
MOST = 100  # beside those that were decided on: whoever sends thousands fills no disk
_NAMES = "[0-9a-f]*.json"


class KeptProposal(Section):
    """A proposal, with what the site would commit to for it.

    Attributes:
        server: host:port from which it came.
        first: when it came for the first time.
        committed: the plan, as a ledger's row has it.
        allocated: ε of the ledger with this plan, as the ledger was when it was asked last.
        allocated_alone: the same of the claim alone, where the ledger has one.
    """

    format: Literal[1] = 1
    server: str
    first: datetime
    committed: dict[str, Any]
    allocated: float = Field(ge=0)
    allocated_alone: float | None = Field(None, ge=0)
    proposal: Proposal

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
            ValueError: there is something else in it than its name says, or an older version's.
            OSError: it can't be read.
        """
        try:
            found = cls.model_validate_json(path.read_bytes())
            named = found.proposal.digest() == found.digest == _digest_of(path)
        except (AccountingError, TypeError) as error:  # a plan that is none
            raise ValueError(str(error)) from None
        if not named:
            raise ValueError("a proposal of another digest")
        return found


def proposals_folder(state_dir: Path) -> Path:
    """Where they are."""
    return state_dir / "proposals"


def keep_proposal(
    state_dir: Path,
    server: str,
    proposal: Proposal,
    plan: Plan,
    allocated: tuple[float, float | None],
    *,
    is_decided: Callable[[KeptProposal], bool],
) -> None:
    """Keep a proposal that the site's limits allow; what is wrong with it is said here alone.

    Args:
        allocated: ε of the ledger with its plan, with trust and alone.
        is_decided: whether another is to be kept for good.
    """
    try:
        folder = private_folder(proposals_folder(state_dir))
        path = _path(folder, plan.proposal)
        first = _first_of(path)
        if first is None:
            _make_room(folder, is_decided)
        kept = KeptProposal(
            server=server,
            first=first or datetime.now(UTC).replace(microsecond=0),
            committed=plan.as_row(),
            allocated=allocated[0],
            allocated_alone=allocated[1],
            proposal=proposal,
        )
        text = kept.model_dump_json(indent=2) + "\n"
        if first is None or path.read_text(encoding="utf-8") != text:
            write_atomic(path, text, mode=0o600)
    except OSError as error:
        log.error("Job %s is on no list: %s.", proposal.job_id, error.strerror)


def kept_proposals(state_dir: Path) -> Iterator[KeptProposal]:
    """All that are kept, the newest first; those of another version are left out."""
    found = []
    for path in proposals_folder(state_dir).glob(_NAMES):
        try:
            found.append(KeptProposal.read(path))
        except (OSError, ValueError, FedprivError) as error:
            log.debug("%s: can't be read: %s", path, type(error).__name__)
    yield from sorted(found, key=lambda kept: (kept.first, kept.digest), reverse=True)


def _first_of(path: Path) -> datetime | None:
    try:
        return KeptProposal.read(path).first
    except (FileNotFoundError, ValueError):
        return None


def _make_room(folder: Path, is_decided: Callable[[KeptProposal], bool]) -> None:
    """Forget the oldest of those that nobody has decided on, if there are too many."""
    paths = sorted(folder.glob(_NAMES), key=lambda path: path.stat().st_mtime_ns)
    if len(paths) < MOST:
        return
    open_ones = [path for path in paths if not _lasts(path, is_decided)]
    for path in open_ones[: max(0, len(open_ones) - MOST + 1)]:
        path.unlink(missing_ok=True)


def _lasts(path: Path, is_decided: Callable[[KeptProposal], bool]) -> bool:
    try:
        return is_decided(KeptProposal.read(path))
    except ValueError:
        return False


def _path(folder: Path, digest: str) -> Path:
    return folder / f"{digest.removeprefix('sha256:')}.json"


def _digest_of(path: Path) -> str:
    return f"sha256:{path.stem}"
