"""The disk space that a site reserves when it starts, so that no answer depends on free space.

How much space is free later depends on how much the records themselves take. If a proposal were
refused because the disk is full, a server would learn about the records, at no cost.

All space that an answer needs is allocated at the start: for the tokens, and for the growth of
ledger and witness. So is the space for files that are written beside an answer: proposals that are
kept for people, reports and accounts. Whatever else fills the disk, a site answers as before.
"""

from __future__ import annotations

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
REPLIES = 4  # of the most values: two are kept, one is written, and one may be rolled back
MARGIN = 2**24  # bytes of ROWS, for a round's rows and for what a transaction may roll back
FILES = 5 * LARGEST  # bytes for two reports, an account, proposals, and one more file being written


class LedgerGrowth:
    """Limit how much a ledger and its witness grow while their site is open.

    A ledger that grew until the disk is full would end at a row that depends on how much of the
    disk the records take. So it stops earlier, at a size that depends on public rows alone.

    Args:
        ledger: from now on, it and its witness write into the space that is held.

    Attributes:
        space: the space that is held for them.

    Raises:
        DataError: there is not enough space.
    """

    def __init__(self, settings: SiteSettings, ledger: Ledger) -> None:
        files, reply = _growing(settings), 4 * settings.limits.max_trainable
        most, before = len(files) * ROWS + REPLIES * reply, _bytes_of(files)
        self._ledger, self._most = ledger.path, most - MARGIN - reply
        self._grown: Callable[[], int] = lambda: _bytes_of(files) - before
        self.space = held_space(settings, ledger.path.parent, most, self._grown)
        ledger.room = lambda reply: self.space.given(MARGIN // 4 + 2 * reply)

    def check(self) -> None:
        """Check, before anything is paid, that there is space for another round.

        Raises:
            LedgerError: there is not. The site has to start again, and then reserves anew.
        """
        if self._grown() > self._most:
            raise LedgerError(
                f"{self._ledger}: has used up what was reserved for it when the site started."
                " Start the site again: it then reserves more."
            )


def reserve_disk_space(settings: SiteSettings, folder: Path, units: int) -> TokenFile:
    """Reserve a file for the tokens of `units` units, enough for any proposal within the limits.

    It is allocated in full, and one job after the other uses it.

    Raises:
        DataError: the disk has too little space; the message is for the site's administrator.

    Privacy:
        It depends on the records, so it must never be part of an answer to a server.
    """
    tokens = bytes_needed(settings.longest, units)
    try:
        return TokenFile(folder, tokens)
    except OSError as error:
        raise _not_reserved(folder, tokens, error) from None


def space_for_files(settings: SiteSettings) -> HeldSpace:
    """Hold space for the files that are written beside an answer; see `files_taken`.

    Raises:
        DataError: the disk has too little space.
    """
    if not settings.terms.simulated:
        for path in _beside(settings):  # folders take disk space, too
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private_folder(proposals_folder(settings.state_dir))
    return held_space(settings, settings.state_dir, FILES, lambda: files_taken(settings))


def held_space(
    settings: SiteSettings, folder: Path, most: int, grown: Callable[[], int]
) -> HeldSpace:
    """Hold space as `HeldSpace` does. A simulation has one process for all sites and holds none.

    Raises:
        DataError: the disk has too little space.
    """
    try:
        return HeldSpace(folder, 0 if settings.terms.simulated else most, grown)
    except OSError as error:
        raise _not_reserved(folder, most, error) from None


def files_taken(settings: SiteSettings) -> int:
    """Return how many bytes a site has written beside its answers: at most `FILES`."""
    kept = proposals_folder(settings.state_dir).glob("*")
    return _bytes_of({*_beside(settings), *kept})


def _beside(settings: SiteSettings) -> set[Path]:
    """Return the files that are written beside an answer, without the proposals."""
    own = last_report(settings, settings.terms.dataset_id)
    return {own, settings.report, account_file(settings)}


def disk_space_needed(settings: SiteSettings, units: int) -> tuple[int, int]:
    """Return the bytes that a site may need: for the tokens of `units` units, and for all else.

    Files that the site has already written beside its answers count as part of that. So what a
    server made the site write decides nothing about the next start.
    """
    files = max(0, FILES - files_taken(settings))
    rows = len(_growing(settings)) * ROWS
    others = rows + REPLIES * 4 * settings.limits.max_trainable + files
    return bytes_needed(settings.longest, units), others


def _not_reserved(folder: Path, count: int, error: OSError) -> DataError:
    size = f"{-(-count // 10**6):,} MB"
    fix = "Free some of the disk, or lower allow.max_length or allow.max_trainable."
    return DataError(f"can't reserve {size} ({error.strerror})", file=folder, fix=fix)


def _growing(settings: SiteSettings) -> list[Path]:
    """Return the ledger, and also its witness if that is on the same disk."""
    ledger, witness = settings.ledger, settings.witness
    with suppress(OSError):  # there is no folder yet
        if witness and witness.parent.stat().st_dev == ledger.parent.stat().st_dev:
            return [ledger, witness]
    return [ledger]


def _bytes_of(files: Iterable[Path]) -> int:
    """Count the bytes of files in whole blocks, as the disk does."""
    found = 0
    for path in files:
        with suppress(OSError):
            found += -(-path.stat().st_size // 4096) * 4096
    return found
