"""Check a site's report by itself, if nobody sent the rows of its ledger.

A report lists the steps of one job. Its figures can be no less than what these steps cost. What
other jobs of the ledger cost, only the site's word says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fedpriv.dossier.findings import Finding, holds, word
from fedpriv.dossier.sentences import check_sentences
from fedpriv.dossier.statement import Statement
from fedpriv.dossier.sums import Figure, Term, epsilon_of
from fedpriv.errors import DossierError
from fedpriv.privacy.accounting.accountant import Event
from fedpriv.privacy.accounting.shares import share_of
from fedpriv.report.budget import figure_names
from fedpriv.report.received import claims_of


def check_without_rows(said: Statement) -> Iterator[Finding]:
    """Check a report against the least that its own events cost; no rows are known."""
    report = said.report
    said.check_answered(sum(event.count for event in report.events))
    _check_asked(said)
    yield from check_sentences(said, None)
    figures = list(_of_events(said))
    for figure in figures:
        said.check_stated(figure.name, figure.value(epsilon_of), "its own events cost")
    yield holds(f"{said.figures_in_words()}: no less than its own events cost")
    yield from said.asked_again(figures)
    share = "" if report.life is None else ", that its job takes the share of a life that it states"
    yield word(
        f"that these are all events of its ledger{share}, and that it committed to this proposal:"
        " its rows are not in the dossier. The site can send them (fedpriv ledger export)"
    )


def _check_asked(said: Statement) -> None:
    """Check that the events are those that the proposal asked for, as far as it says."""
    proposal = said.facts.proposal
    rates = {event.sample_rate for event in said.report.events}
    steps = sum(event.count for event in said.report.events)
    asked = proposal.privacy.sample_rate
    noises = {event.noise_multiplier for event in said.report.events}
    other = bool(rates - {asked}) or len(noises) > 1
    if proposal.shared is not None:  # the same noise at every site
        other = other or bool(noises - {proposal.shared.noise_multiplier})
    if other or steps > proposal.steps:
        raise DossierError(
            f"{said.whose} counts {steps} steps at rates {sorted(rates)[:3]} with noise of"
            f" {sorted(noises)[:3]}, and the proposal in the dossier has {proposal.steps} at"
            f" {asked}, all with the same noise. It is not the one that the site accepted."
        )


def _of_events(said: Statement) -> Iterator[Figure]:
    """Yield the least that a report's figures can be, by the events and the plan of this job."""
    report, proposal = said.report, said.facts.proposal
    events = tuple(
        Event(event.sample_rate, event.noise_multiplier, event.count) for event in report.events
    )
    if not events:
        return
    planned = events
    if report.rule in ("plan", "sum"):  # all steps of a plan stay charged
        planned = (replace(events[0], count=proposal.steps),)
    parts = 1 if proposal.shared is None else proposal.shared.shares
    for claim in claims_of(report):
        for name, of in zip(figure_names(claim.alone), (events, planned), strict=False):
            own = [
                replace(event, noise_multiplier=share_of(event.noise_multiplier, parts))
                for event in of
            ]
            yield Figure(name, (Term(report.delta, tuple(own) if claim.alone else of),))
