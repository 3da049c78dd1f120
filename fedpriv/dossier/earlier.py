"""Compare two dossiers of one ledger. The later one has to continue the earlier one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from fedpriv.dossier.facts import Contents
from fedpriv.dossier.findings import Finding, holds, left_open
from fedpriv.dossier.statement import DIGITS, LEAST, SECOND, check_signed, signer_of
from fedpriv.errors import ForkedError, SignerError, shown
from fedpriv.privacy.ledger.chain import GENESIS, Head, Row
from fedpriv.privacy.ledger.ledger import read_history
from fedpriv.report.budget import BudgetReport


def check_continues(
    now: Contents, before: Contents, path: Path, earlier: Path, given: Collection[str]
) -> Iterator[Finding]:
    """Compare the heads of ledgers that are in both dossiers.

    A ledger may go on from an older copy, or be used in two copies by turns. Then it has another
    row in the place of one in the earlier dossier, and what was paid there is forgotten.

    Args:
        path, earlier: paths of the two dossiers, for messages.
        given: names of sites that told the reader their key themselves.

    Raises:
        SignerError: another key than before signed for a ledger, and the reader knows neither.
        ForkedError: a ledger does not continue what the earlier dossier shows of it.
        AlteredError: a report in the earlier dossier was changed after it was signed.
    """
    seen = {report.dataset_id: name for name, report in before.reports.items()}
    common = 0
    for name, report in now.reports.items():
        known = seen.get(report.dataset_id)
        if known is None:
            if name in before.reports:
                text = (
                    f"that its people are others than those of {earlier}, where it has another"
                    " ledger: if they are not, what that one paid is not in these figures"
                )
                yield Finding("word", text, name)
            continue
        common += 1
        older = before.reports[known]
        check_signed(older, earlier)
        if name not in given and signer_of(report) != signer_of(older):
            raise SignerError(
                f"{path}: the report of site {name!r} is signed by key {signer_of(report)}, and in"
                f" {earlier} that of the same ledger by {signer_of(older)}. Ask the site itself"
                f" which key is its own, and give it: --site {name}=KEY."
            )
        two = _Two(name, path, earlier, report, older, now.rows.get(name), before.rows.get(known))
        yield replace(two.compared(), site=name)
    if not common:
        yield left_open(f"{earlier} is about none of these ledgers, so there is nothing to compare")


@dataclass(frozen=True)
class _Two:
    """What two dossiers show of one ledger."""

    name: str
    path: Path
    earlier: Path
    report: BudgetReport
    older: BudgetReport
    rows: list[Row] | None
    older_rows: list[Row] | None

    def compared(self) -> Finding:
        """Check that the later dossier continues the earlier one.

        Raises:
            ForkedError: it does not.
        """
        seen = self._seen()
        hashes = {self.report.ledger_rows: self.report.ledger_head}
        if self.rows is not None:
            hashes = dict(enumerate([GENESIS, *(row.hash for row in self.rows)]))
            signed = self.rows[: self.report.ledger_rows]  # newer rows are in no figure
            if seen in read_history(signed, self.path).lost:
                return self._covered(seen, signed)
        is_older = self.report.ledger_rows < self.older.ledger_rows or max(hashes) < seen.rows
        if is_older or hashes.get(seen.rows, seen.hash) != seen.hash:
            raise self._forked(
                f"there its row {seen.rows} has the hash {seen.hash}, and here its report is of row"
                f" {self.report.ledger_rows}, or that row has another hash. If this dossier is not"
                " the newer one, name the other one as --earlier"
            )
        if seen.rows in hashes:
            return holds(f"the ledger continues row {seen.rows} of {self.earlier}")
        self._check_figures()
        return left_open(
            f"that the ledger continues row {seen.rows} of {self.earlier}: its rows are not in the"
            " dossier"
        )

    def _seen(self) -> Head:
        """Return the newest row that the earlier dossier shows."""
        signed = Head(self.older.ledger_rows, self.older.ledger_head)
        if self.older_rows is None or self.rows is None:
            return signed
        heads = [Head(row.number, row.hash) for row in self.older_rows]
        if signed not in heads:
            raise self._forked(f"{self.earlier} has other rows than its report was made of")
        return heads[-1]

    def _covered(self, seen: Head, rows: list[Row]) -> Finding:
        """Check that the later figures include what had been taken by a row of a lost copy.

        The check is in the rule's own unit. What the plans in both copies take now, with what was
        written down as lost, has to be no less than what all plans of the earlier rows had taken.
        """
        if self.older_rows is None:
            self._check_figures()
            return left_open(
                f"that all which a lost copy had taken at row {seen.rows} is paid for: its rows are"
                f" not in {self.earlier}"
            )
        pairs = zip(rows, self.older_rows, strict=False)
        both = sum(1 for _ in takewhile(lambda pair: pair[0].hash == pair[1].hash, pairs))
        lost = [row for row in rows if row.kind == "restored"]
        back = [row for row in lost if seen.hash in row.body["heads"]]
        heads = {head for row in back for head in row.body["heads"]}
        if not both or not {row.hash for row in self.older_rows[both:]} <= heads:
            raise self._forked(f"rows {both + 1} to {seen.rows} are of no copy that is lost")
        before = read_history(self.older_rows, self.earlier)
        ended = any(row.body["heads"][-1] == seen.hash for row in back)  # no plan was closed later
        taken = before.used if ended else before.kept
        jobs = read_history(rows[:both], self.path).accounts
        found = list(read_history(rows, self.path).used_by(jobs))
        for row in (*(row for row in lost if row.number <= both), *back):
            found = [one + more for one, more in zip(found, row.body["lost"], strict=True)]
        if any(one < least * (1 - DIGITS) for one, least in zip(found, taken, strict=True)):
            raise self._forked(
                f"there its plans had taken {shown(taken)} by row {seen.rows}, and of that"
                f" {shown(tuple(found))} is paid for here, with what is said to be lost"
            )
        return holds(
            f"row {seen.rows} of {self.earlier} is of a lost copy, and all that its plans had taken"
            " is in these figures"
        )

    def _check_figures(self) -> None:
        """Check that what was spent for life only grows. Without rows nothing else is known."""
        for key in ("epsilon_spent", "epsilon_alone_spent"):
            now, least = getattr(self.report, key), getattr(self.older, key)
            if least is not None and (now is None or now < least - max(SECOND * least, LEAST)):
                raise self._forked(
                    f"there {key} is {least}, and here {now}. If a plan was closed after a copy of"
                    " the ledger was lost, the site's rows can show it (fedpriv ledger export)"
                )

    def _forked(self, why: str) -> ForkedError:
        return ForkedError(
            f"{self.path}: the ledger of site {self.name!r} does not continue what {self.earlier}"
            f" shows of it: {why}. It was set back or used in two copies, and what the other one"
            " paid is not in its figures. Rely on neither."
        )
