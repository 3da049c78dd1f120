"""Undo a ledger within a day, if nothing was ever spent from it. This leaves a trace.

Otherwise a mistyped ε would be for life. "A ledger that is undone" in docs/explanation/privacy.md
says why this gives nobody a fresh budget.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedpriv.config.site_file import SiteFile
from fedpriv.errors import LedgerError
from fedpriv.files import sync_folder
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.unit_index import UnitIndex
from fedpriv_client.account import account_file, written_account
from fedpriv_client.settings import ledger_path, settings_of
from fedpriv_client.site_settings import REPORT, last_report

LOG, ENDING = "undone.jsonl", ".undone"  # in the site's folder; ending of an undone ledger
AT_MOST = timedelta(days=1)


@contextmanager
def unspent(file: SiteFile, dataset_id: str) -> Iterator[Ledger]:
    """Open a ledger if nothing anywhere says that a plan was ever accepted.

    Raises:
        LedgerError: something says so, or can't be asked; or the ledger is older than a day, in
            use, or has another witness than the site's file names.
    """
    path, settings = ledger_path(file, dataset_id), settings_of(file, dataset_id)
    with Ledger.open(path, file.budget.witness) as ledger:  # this also asks the witness
        made = datetime.fromisoformat(ledger.rows()[0].body["at"])
        if not timedelta(0) <= datetime.now(UTC) - made <= AT_MOST:
            raise _refused(path, f"it was made at {made:%Y-%m-%d %H:%M} UTC, not in the last day")
        if ledger.head.rows > 1:
            raise _refused(path, f"it has {ledger.head.rows} rows: something was paid or stated")
        index = UnitIndex(path.parent)
        if (index.path.exists() or index.key_path.exists()) and index.knows(dataset_id):
            raise _refused(path, "the client was started with it: its units are in the index")
        for report in (last_report(settings, dataset_id), file.site.state_dir / REPORT):
            if report.exists() and dataset_id in report.read_text(encoding="utf-8"):
                raise _refused(path, f"{report} was written from it")
        if account_file(settings).exists() and written_account(settings)["rows"] != 1:
            raise _refused(path, f"{account_file(settings)} knows of more rows than the ledger has")
        yield ledger


def undo(file: SiteFile, dataset_id: str) -> str:
    """Undo an unspent ledger, and say so in a log. Its file stays, under another name.

    Raises:
        LedgerError: as `unspent`. Nothing was changed.
    """
    state = file.site.state_dir
    with unspent(file, dataset_id) as ledger:
        terms = ledger.terms.as_row()
        row = {"at": datetime.now(UTC).isoformat(timespec="seconds"), **terms}
        with (state / LOG).open("a", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), 0o600)
            # The line break first: a line that a crash cut short stays by itself.
            stream.write("\n" + json.dumps({**row, "head": ledger.head.hash}) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        ledger.path.rename(f"{ledger.path}{ENDING}")
        sync_folder(ledger.path.parent)
        if (witness := file.budget.witness) is not None:
            witness.unlink()  # it saw the ledger's terms and no more
            sync_folder(witness.parent)
    return (
        f"Undid the ledger of data set {dataset_id}: ε = {terms['budget']:g} for life at δ ="
        f" {terms['delta']:g}. {state / LOG} says so from now on."
    )


def last_undone(state_dir: Path) -> dict[str, Any]:
    """Return the terms of the ledger that was undone last; nothing if none was."""
    log = state_dir / LOG
    found: dict[str, Any] = {}
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
        with suppress(ValueError):  # empty, or cut short by a crash
            found = json.loads(line)
    return found


def _refused(path: Path, why: str) -> LedgerError:
    return LedgerError(
        f"{path}: can't be undone: {why}. It stays for life, as do its terms. A ledger can only"
        " be undone within a day, and if ledger, witness, index of units and last report all show"
        " that nothing was spent."
    )
