"""Check what one site says in a dossier."""

from __future__ import annotations

from collections.abc import Iterator

from fedpriv.dossier.findings import Finding, holds, whose_key, word
from fedpriv.dossier.statement import Statement, check_signed, signer_of
from fedpriv.dossier.with_rows import check_with_rows
from fedpriv.dossier.without_rows import check_without_rows
from fedpriv.errors import DossierError, SignerError
from fedpriv.pki.points import in_groups


def check_site(said: Statement) -> Iterator[Finding]:
    """Check what a site says. Stop at the first thing that is not so.

    Raises:
        AlteredError: the report was changed after the site signed it.
        SignerError: another key signed the report.
        ForkedError: the report names a head that the rows don't have.
        LedgerError: the rows don't add up.
        UnderstatedError: the report states less than its events cost, or leaves events out.
        DossierError: the report is of another job, contradicts its ledger, or claims nothing.
    """
    yield from _check_signature(said)
    if said.rows is None:
        said.check_order()
        yield from check_without_rows(said)
    else:
        yield from check_with_rows(said, said.rows)
        said.check_order()
    yield word(
        f"that the site's newest report is this one, up to row {said.report.ledger_rows}, and that"
        f" it answered in {said.site.rounds} rounds and no more: the coordinator says so"
    )
    yield word(
        f"that its records are those of one population of {said.report.declared_size} units,"
        f" counted by {said.report.unit}, with no other ledger; that each step was sampled and"
        " noised as its row says; and the assumptions that its report names"
    )
    if said.report.simulated:
        yield word("that anybody was there at all: the site is simulated")


def _check_signature(said: Statement) -> Iterator[Finding]:
    report = said.report
    check_signed(report, said.path)
    key = signer_of(report) or ""
    shown = in_groups(key)
    if said.key is not None and key != said.key:
        raise SignerError(
            f"{said.whose} is signed by key {shown}, not by the expected {in_groups(said.key)}. Ask"
            " the site itself which key is its own."
        )
    if (report.site, report.job) != (said.name, said.facts.job):
        raise DossierError(f"{said.whose} is of {report.site!r} and of job {report.job!r}.")
    if report.delta >= 1 / report.declared_size:
        raise DossierError(
            f"{said.whose} states δ = {report.delta:g} for {report.declared_size} units."
            " To publish one unit as it is would claim as much, so it claims nothing."
        )
    if not report.private:
        raise DossierError(f"{said.whose} is stamped NOT PRIVATE: it claims nothing.")
    yield holds(f"the budget report is as key {shown} signed it")
    yield whose_key(shown, "site", f"--site {said.name}=KEY", given=said.key is not None)
