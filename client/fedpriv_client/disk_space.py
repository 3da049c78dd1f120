"""The disk space that a site reserves when it starts, so that no answer depends on what is free.

How much is free later depends on how much of it the records themselves take. A proposal that was
refused because the disk is full would tell a server of them, at no cost.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.data.spec import DataSpec
from fedpriv.data.store import TokenFile, bytes_needed
from fedpriv.errors import DataError, LedgerError

if TYPE_CHECKING:
    from fedpriv_client.site_settings import SiteSettings

ROWS = 2**26  # bytes for the rows that the ledger gets while a site is open
REPLIES = 4  # of the most values: two that are kept, one that is written, and what is rolled back
MARGIN = 2**24  # of ROWS, for a round's rows, reports, and what a transaction may roll back


def reserve_disk_space(settings: SiteSettings, folder: Path, units: int) -> TokenFile:
    """A file for the tokens of so many units, whatever a server proposes within the site's limits.

    It is allocated in full and used by one job after the other. Beside it the ledger needs space
    for its rows and for replies of as many values as the site allows; that is free now, and nothing
    that the site does uses it otherwise.

    Raises:
        DataError: there is not so much, for the site's administrator.

    Privacy:
        Depends on the records, and so must never answer a server.
    """
    check_disk_space(settings, units, shutil.disk_usage(folder).free)
    tokens, _ = disk_space_needed(settings, units)
    try:
        return TokenFile(folder, tokens)
    except OSError as error:  # a quota, or a limit of the process
        raise DataError(
            f"can't reserve {megabytes(tokens)} for the tokens of records ({error.strerror})",
            file=folder,
            fix="Free some of the disk, or raise the quota.",
        ) from None


class LedgerGrowth:
    """How much a ledger's file has grown since its site started, against what was free for it.

    A ledger that went on until the disk is full would end at a row that depends on how much of the
    disk the records take. So it stops before, at a size that depends on public rows alone.

    Args:
        ledger: the file.
        values: the most that a reply may have.
    """

    def __init__(self, ledger: Path, values: int) -> None:
        self._ledger = ledger
        self._most = ledger.stat().st_size + ROWS - MARGIN + (REPLIES - 1) * 4 * values

    def check(self) -> None:
        """Check, before anything is paid, that another round finds its space.

        Raises:
            LedgerError: the site has to be started again, which looks at the disk anew.
        """
        if self._ledger.stat().st_size > self._most:
            raise LedgerError(
                f"{self._ledger}: has grown by all that was reserved for it when the site started."
                " Start the site again: it reserves anew."
            )


def check_disk_space(settings: SiteSettings, units: int, free: int) -> None:
    """Check that so many bytes are enough for what a site's own limits allow.

    Raises:
        DataError: they are not; names the limit that takes the most.
    """
    tokens, ledger = disk_space_needed(settings, units)
    missing = tokens + ledger - free
    if missing <= 0:
        return
    limit, in_a_job = ("max_length", "model.max_length")
    if ledger > tokens:
        limit, in_a_job = ("max_trainable", "lora.r")
    raise DataError(
        f"is {megabytes(missing)} short of disk space: this site's own limits may need"
        f" {megabytes(tokens)} for the tokens of {units:,} units and {megabytes(ledger)} for the"
        " ledger and its replies",
        file=settings.state_dir,
        key=in_a_job if settings.terms.simulated else f"allow.{limit}",
        value=getattr(settings.limits, limit),
        fix="Lower this limit, or free some of the disk.",
    )


def disk_space_needed(settings: SiteSettings, units: int) -> tuple[int, int]:
    """Bytes that a job may need: for the tokens of so many units, and for the ledger."""
    terms, limits = settings.terms, settings.limits
    longest = DataSpec(
        columns=settings.columns,
        task="classification" if "label" in settings.columns else "causal-lm",
        labels=limits.labels,
        max_length=limits.max_length,
        unit=terms.unit,
        max_records_per_unit=terms.max_records_per_unit,
    )
    return bytes_needed(longest, units), ROWS + REPLIES * 4 * limits.max_trainable


def megabytes(count: int) -> str:
    """Bytes as people read them, rounded up."""
    return f"{-(-count // 10**6):,} MB"
