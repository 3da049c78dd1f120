"""The disk space that a site reserves when it starts, so that no answer depends on what is free.

How much is free later depends on how much of it the records themselves take. A proposal that was
refused because the disk is full would tell a server of them, at no cost.

All that has to be written for an answer is allocated at the start: the tokens, and what ledger and
witness grow by. So is the room for what is written beside an answer: proposals that are kept for
people, reports and accounts. Whatever else fills the disk, a site answers as before.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from fedpriv.data.store import TokenFile, bytes_needed
from fedpriv.errors import DataError, LedgerError
from fedpriv.files import private_folder
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv_client.account import account_file
from fedpriv_client.held_space import LARGEST, HeldSpace
from fedpriv_client.proposals import proposals_folder
from fedpriv_client.site_settings import SiteSettings, last_report

ROWS = 2**26  # bytes for the rows that the ledger gets while a site is open
REPLIES = 4  # of the most values: two that are kept, one that is written, and what is rolled back
MARGIN = 2**24  # of ROWS, for a round's rows, and what a transaction may roll back
FORMATS = "number-formats.json"  # of jobs, where compute.dtype is auto
FILES = 5 * LARGEST  # for two reports, an account, proposals, and one more that is written


class LedgerGrowth:
    """How much a ledger and its witness have grown since their site started, and may grow.

    A ledger that went on until the disk is full would end at a row that depends on how much of the
    disk the records take. So it stops before, at a size that depends on public rows alone.

    Args:
        ledger: writes into the space that is held from now on, and so does its witness.

    Attributes:
        space: what is held for them.

    Raises:
        DataError: there is not so much space.
    """

    def __init__(self, settings: SiteSettings, ledger: Ledger) -> None:
        files, reply = _growing(settings), 4 * settings.limits.max_trainable
        most, before = len(files) * ROWS + REPLIES * reply, _bytes_of(files)
        self._ledger, self._most = ledger.path, most - MARGIN - reply
        self._grown: Callable[[], int] = lambda: _bytes_of(files) - before
        self.space = held_space(settings, ledger.path.parent, most, self._grown)
        ledger.room = lambda reply: self.space.given(MARGIN // 4 + 2 * reply)

    def check(self) -> None:
        """Check, before anything is paid, that another round finds its space.

        Raises:
            LedgerError: the site has to be started again, which looks at the disk anew.
        """
        if self._grown() > self._most:
            raise LedgerError(
                f"{self._ledger}: has grown by all that was reserved for it when the site started."
                " Start the site again: it reserves anew."
            )


def reserve_disk_space(settings: SiteSettings, folder: Path, units: int) -> TokenFile:
    """Reserve a file for the tokens of so many units, for any proposal within the site's limits.

    It is allocated in full and used by one job after the other.

    Raises:
        DataError: the disk has too little space; the message is for the site's administrator.

    Privacy:
        Depends on the records, and so must never answer a server.
    """
    check_disk_space(settings, units, shutil.disk_usage(folder).free)
    tokens, _ = disk_space_needed(settings, units)
    try:
        return TokenFile(folder, tokens)
    except OSError as error:  # a quota, or a limit of the process
        raise _not_reserved(folder, tokens, error) from None


def space_for_files(settings: SiteSettings) -> HeldSpace:
    """Hold space for what is written into a site's folder beside an answer; see `files_taken`.

    Raises:
        DataError: the disk has too little space.
    """
    if not settings.terms.simulated:
        for path in _beside(settings):  # a folder takes disk space, too
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private_folder(proposals_folder(settings.state_dir))
    return held_space(settings, settings.state_dir, FILES, lambda: files_taken(settings))


def held_space(
    settings: SiteSettings, folder: Path, most: int, grown: Callable[[], int]
) -> HeldSpace:
    """Hold space as `HeldSpace` does. A simulation, one process for all sites, holds nothing.

    Raises:
        DataError: the disk has too little space.
    """
    try:
        return HeldSpace(folder, 0 if settings.terms.simulated else most, grown)
    except OSError as error:
        raise _not_reserved(folder, most, error) from None


def files_taken(settings: SiteSettings) -> int:
    """Return the bytes that a site has written beside its answers: at most `FILES`."""
    kept = proposals_folder(settings.state_dir).glob("*")
    return _bytes_of({*_beside(settings), *kept})


def _beside(settings: SiteSettings) -> set[Path]:
    """Return the files that are written beside an answer, without the proposals."""
    own = last_report(settings, settings.terms.dataset_id)
    formats = settings.state_dir / FORMATS
    return {own, settings.report, account_file(settings), formats}


def check_disk_space(settings: SiteSettings, units: int, free: int) -> None:
    """Check that so many bytes are enough for what a site's own limits allow.

    Raises:
        DataError: they are not; names the limit that takes the most.
    """
    tokens, ledger = disk_space_needed(settings, units)
    missing = tokens + ledger - free
    if missing <= 0:
        return
    limit, key = "max_length", "model.max_length"
    if ledger > tokens:
        limit, key = "max_trainable", "lora.r"
    raise DataError(
        f"is {megabytes(missing)} short of disk space: this site's own limits may need"
        f" {megabytes(tokens)} for the tokens of {units:,} units and {megabytes(ledger)} for the"
        " ledger, its replies, and what is kept for people",
        file=settings.state_dir,
        key=key if settings.terms.simulated else f"allow.{limit}",
        value=getattr(settings.limits, limit),
        fix="Lower this limit, or free some of the disk.",
    )


def disk_space_needed(settings: SiteSettings, units: int) -> tuple[int, int]:
    """Return the bytes that a site may need: for the tokens of so many units, and for all else.

    Files that the site wrote beside its answers before count as part of them. So what a server
    made the site write decides nothing about the next start.
    """
    files = max(0, FILES - files_taken(settings))
    rows = len(_growing(settings)) * ROWS
    others = rows + REPLIES * 4 * settings.limits.max_trainable + files
    return bytes_needed(settings.longest, units), others


def megabytes(count: int) -> str:
    """Write bytes as people read them, rounded up."""
    return f"{-(-count // 10**6):,} MB"


def _not_reserved(folder: Path, count: int, error: OSError) -> DataError:
    fix = "Free some of the disk, or raise the quota."
    return DataError(f"can't reserve {megabytes(count)} ({error.strerror})", file=folder, fix=fix)


def _growing(settings: SiteSettings) -> list[Path]:
    """Return the ledger, and also its witness if that is on the same disk."""
    ledger, witness = settings.ledger, settings.witness
    with suppress(OSError):  # no folder yet
        if witness and witness.parent.stat().st_dev == ledger.parent.stat().st_dev:
            return [ledger, witness]
    return [ledger]


def _bytes_of(files: Iterable[Path]) -> int:
    """Count the bytes of files as the disk does, in blocks."""
    found = 0
    for path in files:
        with suppress(OSError):
            found += -(-path.stat().st_size // 4096) * 4096
    return found
