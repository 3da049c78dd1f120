"""Check that the sentences of a site's report follow from its rows and from the proposal."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fedpriv.dossier.findings import Finding, holds, word
from fedpriv.dossier.statement import Statement
from fedpriv.errors import DossierError, UnderstatedError, shown
from fedpriv.privacy.ledger.history import UNKNOWN, History
from fedpriv.report.budget import TICKS, BudgetReport
from fedpriv.report.words import DISTINCT, GROWN, LOST_SUMS, ONE_RUN, Basis, words
from fedpriv.software import software

_DISTINCT = re.compile(re.escape(DISTINCT).replace(r"\{by\}", "(.+)").replace(r"\{other\}", "(.+)"))


def check_sentences(said: Statement, history: History | None) -> Iterator[Finding]:
    """Make a report's sentences again, and compare what they rest on with what is known.

    Args:
        history: history of its ledger's rows; None if they are not in the dossier.

    Raises:
        DossierError: a sentence says something else than a site says about such a ledger.
        UnderstatedError: the claim allows more colluding sites than a sum does, or the claim
            *alone* is left out.
    """
    basis, odd = basis_of(said.report)
    _check_trust(said, history)
    for field, contradiction in _contradictions(said, basis, history):
        if field not in odd:
            raise DossierError(f"{said.whose} says {contradiction}. One of them is not the site's.")
    if odd and said.facts.software.get("fedpriv") == software()["fedpriv"]:
        text = getattr(said.report, odd[0])
        raise DossierError(
            f"{said.whose} says of its {odd[0]} what no report of such a ledger says:"
            f" {shown(text)}. It was written by hand, or by another fedpriv than the dossier names."
        )
    if odd:
        yield word(
            f"what its report says of {', '.join(odd)}: in words of another version of fedpriv,"
            " which were not derived"
        )
    if history is None:
        yield word("what its report says of other jobs of its ledger, of whatever kind")
    elif not odd:
        yield holds(
            "what its report says of guarantee, accountant, timing, numerics, trust and assumptions"
            " follows from its rows and the proposal"
        )
    yield from _believed(said, basis, history)


def _contradictions(
    said: Statement, basis: Basis, history: History | None
) -> Iterator[tuple[str, str]]:
    """Yield fields whose sentences rest on something wrong, and what contradicts them."""
    if basis.at_ticks and (said.report.simulated or not said.report.private):
        yield "", "that its replies left at public ticks, and nobody waited for one"
    if basis.one_run and not said.report.simulated:
        yield "assumptions", "that its ledger is of one run, and no ledger of the network is"
    privacy, took_part = said.facts.proposal.privacy, said.site.rounds or said.report.events
    unit = (said.report.unit, said.report.max_records_per_unit)
    if took_part and unit != (privacy.unit, privacy.max_records_per_unit):
        asked = f"and the proposal has {privacy.max_records_per_unit} of one {privacy.unit}"
        yield "", f"that {unit[1]} records of one {unit[0]} are a unit, {asked}"
    if history is None:
        if basis.strict and took_part and privacy.numerics != "strict":
            yield "", "that its numerics are strict, and the job's proposal has other ones"
        return
    if basis.strict and not history.numerics <= {"strict"}:
        yield "", "that its numerics are strict, and its ledger has plans of other ones"
    if basis.at_ticks and not history.at_ticks:
        yield "", "that replies leave at public ticks, and its ledger has plans in which none did"
    lost_sums = history.terms.budget_alone is not None and UNKNOWN in history.numerics
    for field, what, stated, found in (
        ("assumptions", "a size or delta that changed", basis.grown, history.grown),
        ("assumptions", "secure sums that were lost", basis.lost_sums, lost_sums),
    ):
        if stated != found:
            says, has = ("something", "nothing") if stated else ("nothing", "something")
            yield field, f"{says} of {what}, and its ledger has {has} of it"
    if missing := [one for one in history.distinct if one not in basis.distinct]:
        yield "assumptions", f"nothing of what {missing[0][1]} states of data set {missing[0][0]}"


def _check_trust(said: Statement, history: History | None) -> None:
    """Check that the claim allows no more colluding sites than the sums that it is about."""
    report, shared = said.report, said.facts.proposal.shared
    if history is not None:
        least = history.max_colluding
        if report.budget_alone is not None and UNKNOWN in history.numerics:
            least = 0  # nobody knows how many the lost sums allow
    else:
        took_part = bool(said.site.rounds or report.events)
        least = shared.max_colluding if shared is not None and took_part else None
    if least is None:
        return
    if report.max_colluding is None:
        raise UnderstatedError(
            f"{said.whose} states one claim, with no trust in anybody, and the job is a secure sum,"
            " in which the site adds a share of the noise: what holds without trust in the others"
            " is missing."
        )
    if report.max_colluding > least:
        raise UnderstatedError(
            f"{said.whose} states a claim that holds if {report.max_colluding} sites collude, and"
            f" its ledger has a secure sum that allows for {least}."
        )


def _believed(said: Statement, basis: Basis, history: History | None) -> Iterator[Finding]:
    """Yield findings on what the sentences rest on, but no row shows."""
    more_may_come = history is None or not history.is_full
    if basis.strict and more_may_come:
        yield word("that other jobs of its ledger are computed strictly, too")
    if basis.at_ticks and more_may_come:
        yield word("that replies of other jobs of its ledger leave at ticks, too")
    if basis.at_ticks:
        yield word("that its replies left at the ticks that its plans name")
    for other, by in basis.distinct:
        yield word(
            f"that units which look like some of data set {other} are other people: {by} says so"
        )
    if basis.one_run:
        yield word("that no other run used these records")


def basis_of(report: BudgetReport) -> tuple[Basis, tuple[str, ...]]:
    """Return the values that a report's sentences state, and the fields that don't follow."""
    said = report.assumptions
    found = [match for text in said if (match := _DISTINCT.fullmatch(text)) is not None]
    basis = Basis(
        rule=report.rule,
        strict=report.numerics.startswith("strict"),
        max_colluding=report.max_colluding,
        lost_sums=LOST_SUMS in said,
        distinct=tuple((match[2], match[1]) for match in found),
        grown=GROWN in said,
        one_run=ONE_RUN in said,
        at_ticks=report.timing == TICKS,
    )
    made = words(basis)
    return basis, tuple(field for field, text in made.items() if getattr(report, field) != text)
