"""Open a site's ledger, but only if it is the one that the site's file states."""

from __future__ import annotations

from fedpriv.errors import ConfigError, LedgerCorruptError, LedgerError
from fedpriv.privacy.ledger.ledger import Head, Ledger, Terms
from fedpriv.privacy.ledger.rules import RdpRule, SumRule
from fedpriv.report import budget
from fedpriv_client.site_settings import SiteSettings, last_report

_FIXED = ("declared_size", "unit", "max_records_per_unit", "delta", "simulated", "private")
_GROWS = ("declared_size", "delta")
_IN_THE_SITES_FILE = {  # what is fixed, and where its administrator states it
    "declared_size": "data.size",
    "unit": "data.unit",
    "max_records_per_unit": "data.max_records_per_unit",
    "delta": "budget.delta",
    "dataset_id": "data.dataset_id",
    "budget": "budget.epsilon",
    "budget_alone": "budget.epsilon_alone",
    "rule": "budget.rule",
}


def open_or_create_ledger(settings: SiteSettings) -> Ledger:
    """Open the ledger of a site that starts. If it need not outlive its job, it is made here.

    Raises:
        LedgerError: there is no ledger, and it has to be made beforehand; or as `open_ledger`.
        LedgerCorruptError: there is no ledger, although the site has reported from it.
        ConfigError: it was made with other terms.
    """
    path, report = settings.ledger, settings.report
    if path.exists() and path.stat().st_size:
        return open_ledger(settings)
    if report.exists():
        raise LedgerCorruptError(
            f"{path}: is missing, although {report} was written from it. Restore the"
            " newest ledger; a new one would be a fresh budget for the same people."
        )
    if settings.lasting:
        raise LedgerError(
            f"{path}: no such ledger. A ledger that outlives a job is made once, with the budget"
            " that its people have for life: fedpriv-client init, or fedpriv ledger init with"
            " --simulated for a simulation."
        )
    return Ledger.create(path, settings.terms, settings.witness)


def open_ledger(settings: SiteSettings, *, reading: bool = False) -> Ledger:
    """Open a site's ledger, and compare it with the stated terms, its witness and last report.

    Args:
        reading: open it for reading only.

    Raises:
        LedgerError: it can't be used; see `Ledger.open`.
        LedgerCorruptError: the witness, or the site's own last report, has seen newer rows.
        ConfigError: it was made with other terms.
    """
    ledger = Ledger.open(settings.ledger, settings.witness, reading=reading)
    try:
        report = last_report(settings, ledger.terms.dataset_id)
        if report.exists():
            seen = budget.read(report)
            ledger.check_witness(Head(seen.ledger_rows, seen.ledger_head))
        check_terms(settings.terms, ledger)
    except BaseException:
        ledger.close()
        raise
    return ledger


def check_terms(stated: Terms, ledger: Ledger) -> None:
    """Check that a ledger was made with what is stated now.

    Raises:
        ConfigError: it was not, or only one of the two is of a simulation.
    """
    names = {} if stated.simulated else _IN_THE_SITES_FILE
    for key in dict.fromkeys((*_FIXED, *names)):
        now, fixed = getattr(stated, key), getattr(ledger.terms, key)
        if ledger.grown and isinstance(fixed, RdpRule | SumRule):  # they derive from the first δ
            now, fixed = now.name, fixed.name
        if now == fixed:
            continue
        if key == "simulated":
            made_for = "simulations" if fixed else "the network"
            problem = f"was made for {made_for}, and pays for nothing else"
            raise ConfigError(problem, file=ledger.path, fix="Name another ledger.")
        problem = f"was fixed as {fixed!r} when the ledger was made"
        if fixed is None:
            problem = "does not fit this ledger, which was made without one"
        fix = "State the same again. Another population needs another ledger."
        if key in _GROWS:
            fix += " If this one grew: fedpriv ledger grow."
        raise ConfigError(problem, file=ledger.path, key=names.get(key, key), value=now, fix=fix)
