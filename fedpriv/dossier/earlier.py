"""Two dossiers of one ledger: the later one has to continue what the earlier one showed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedpriv.dossier.facts import Contents
from fedpriv.dossier.findings import Finding, holds, left_open, word
from fedpriv.dossier.said import check_signed
from fedpriv.errors import ForkedError
from fedpriv.privacy.ledger.chain import GENESIS, Head, Row
from fedpriv.privacy.ledger.ledger import read_history
from fedpriv.report.budget import BudgetReport


def check_continues(
    now: Contents, before: Contents, path: Path, earlier: Path
) -> Iterator[Finding]:
    """Compare the heads of ledgers that are in both dossiers.

    A ledger that goes on from an older copy, or by turns in two copies, has another row where the
    earlier dossier has one: what was paid there is forgotten.

    Args:
        path, earlier: of the two, for messages.

    Raises:
        ForkedError: a ledger does not continue what the earlier dossier shows of it.
        AlteredError: a report in the earlier one was changed after it was signed.
    """
    seen = {report.dataset_id: report for report in before.reports.values()}
    common = 0
    for name, report in now.reports.items():
        older = seen.get(report.dataset_id)
        if older is None:
            if name in before.reports:
                yield word(
                    f"that its people are others than those of {earlier}, where it has another"
                    " ledger: if they are not, what that one paid is not in these figures",
                    name,
                )
            continue
        common += 1
        check_signed(older, earlier)
        yield _compare(name, report, now.rows.get(name), older, path, earlier)
    if not common:
        yield left_open(f"{earlier} is about none of these ledgers, so there is nothing to compare")


def _compare(
    name: str,
    report: BudgetReport,
    rows: list[Row] | None,
    older: BudgetReport,
    path: Path,
    earlier: Path,
) -> Finding:
    seen = Head(older.ledger_rows, older.ledger_head)
    hashes = {report.ledger_rows: report.ledger_head}
    if rows is not None:
        hashes = dict(enumerate([GENESIS, *(row.hash for row in rows)]))
        if seen in read_history(rows, path).lost:
            return holds(f"row {seen.rows} of {earlier} is of a lost copy that is paid for", name)
    if report.ledger_rows < seen.rows or hashes.get(seen.rows, seen.hash) != seen.hash:
        raise ForkedError(
            f"{path}: the ledger of site {name!r} does not continue what {earlier} shows of it:"
            f" there its row {seen.rows} has the hash {seen.hash}, and here it ends at row"
            f" {report.ledger_rows}, or has another hash. It was set back or used in two copies,"
            " and what the other one paid is not in its figures. Rely on neither."
        )
    if seen.rows not in hashes:
        return left_open(
            f"that the ledger continues row {seen.rows} of {earlier}: its rows are not in the"
            " dossier",
            name,
        )
    return holds(f"the ledger continues row {seen.rows}, which {earlier} shows of it", name)
