"""Check, store and add up the budget reports that sites sent.

Privacy
    Every field of a report is public.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from fedpriv.errors import LedgerCorruptError
from fedpriv.files import write_json
from fedpriv.pki.points import in_groups, is_signed
from fedpriv.report.budget import BudgetReport, figure_names, signed_bytes


def verify(report: BudgetReport, public_key: str | None = None) -> None:
    """Check that nothing in `report` changed since it was signed.

    Without `public_key` (hex) this shows that the report is whole, not who signed it:
    anyone can sign with a key of their own. Compare the key with one that the site gave you.

    Raises:
        LedgerCorruptError: it is unsigned, changed after it was signed, or signed by another key.
    """
    whose = f"The budget report of site {report.site!r}"
    advice = "Don't rely on its numbers: ask the site for its budget.json again."
    if report.signature is None:
        raise LedgerCorruptError(f"{whose} is not signed. {advice}")
    key = report.signature.public_key
    if public_key is not None and key != public_key.lower():
        raise LedgerCorruptError(
            f"{whose} is signed by key {in_groups(key)}, not by the expected"
            f" {in_groups(public_key)}. {advice}"
        )
    if not is_signed(signed_bytes(report), report.signature.value, key):
        raise LedgerCorruptError(
            f"{whose} does not match its signature by key {in_groups(key)}: it was changed"
            f" after it was signed. {advice}"
        )


def write(report: BudgetReport, path: Path) -> None:
    """Write `report` to `path`, and replace any file there atomically."""
    write_json(path, report.model_dump(mode="json"))


class StatedClaim(NamedTuple):
    """The figures of one of a report's claims. Each is at most as large as the next."""

    alone: bool
    spent: float
    allocated: float
    committed: float
    budget: float

    @property
    def left(self) -> float:
        """Return what the ledger's rule can still allow and no plan has taken."""
        return max(0.0, self.committed - self.allocated)


def claims_of(report: BudgetReport) -> list[StatedClaim]:
    """Return the report's claim, and after it the claim *alone*, if the report has one."""
    return [
        StatedClaim._make((alone, *(getattr(report, f) for f in figure_names(alone)), budget))
        for alone, budget in ((False, report.budget), (True, report.budget_alone))
        if budget is not None
    ]


def totals(reports: Iterable[BudgetReport]) -> dict[str, float]:
    """Return Σε and Σδ over sites: what holds for a person whose data is in all of them.

    This is basic composition over the sites' ledgers. `epsilon` sums the committed figures, which
    are the claim. `epsilon_spent` sums the executed ones. The sums cover one unit in each site.
    Basic composition is about mechanisms with noise of their own. The noise of a secure sum is
    common to its sites. So for a ledger that pays for such sums, the figures *alone* are added:
    they count only the site's own share of the noise.
    """
    listed = list(reports)
    return {
        "sites": len(listed),
        # For each site, the figure that rests on the site's own noise.
        "epsilon": _sum(claims_of(report)[-1].committed for report in listed),
        "epsilon_spent": _sum(claims_of(report)[-1].spent for report in listed),
        "delta": _sum(report.delta for report in listed),
    }


def _sum(values: Iterable[float]) -> float:
    """Return the sum of the decimals that the files show: three times 1e-5 is 3e-5."""
    return float(sum(Decimal(repr(value)) for value in values))
