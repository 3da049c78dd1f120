"""What one site says in a dossier: its report, its rows, and whether they come to the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fedpriv.dossier.facts import Facts, Participant
from fedpriv.dossier.findings import Finding, holds, left_open, word
from fedpriv.dossier.sums import Figure, Numerical, Renyi, Term, epsilon_of, figures_of
from fedpriv.errors import (
    AlteredError,
    DossierError,
    ForkedError,
    LedgerCorruptError,
    SignerError,
    UnderstatedError,
)
from fedpriv.privacy.accounting.accountant import Event
from fedpriv.privacy.accounting.shares import share_of
from fedpriv.privacy.ledger.chain import Row
from fedpriv.privacy.ledger.history import History
from fedpriv.privacy.ledger.ledger import read_history
from fedpriv.report import budget
from fedpriv.report.budget import BudgetReport
from fedpriv.report.figures import upper
from fedpriv.report.ledger_export import check_within

DIGITS = 1e-6  # share of a figure by which the same events may differ from machine to machine
SECOND, LEAST = 0.01, 1e-3  # what one upper bound may be above another: a share, or this much
_TERMS = (
    *("dataset_id", "unit", "max_records_per_unit", "delta", "declared_size", "budget"),
    *("budget_alone", "private", "simulated", "relation"),
)


@dataclass(frozen=True)
class Said:
    """What a dossier has of one site.

    Attributes:
        path: of the dossier, for messages.
        rows: of its ledger; None where they are not in the dossier.
        key: public key that has to have signed the report, in hex; None takes any.
    """

    path: Path
    facts: Facts
    site: Participant
    report: BudgetReport
    rows: list[Row] | None
    key: str | None = None

    @property
    def name(self) -> str:
        return self.site.name

    @property
    def whose(self) -> str:
        """Beginning of a message."""
        return f"{self.path}: the budget report of site {self.name!r}"


def check_site(said: Said, second: Callable[[Term], float] | None) -> Iterator[Finding]:
    """Check what a site says; stops at the first thing that is not so.

    Args:
        second: another accountant; None where there is none.

    Raises:
        AlteredError: the report was changed after the site signed it.
        SignerError: another key signed it.
        ForkedError: it speaks of a head that the rows don't have.
        LedgerError: the rows don't add up.
        UnderstatedError: it states less than its events cost, or leaves some out.
        DossierError: it is of another job, contradicts its ledger, or claims nothing.
    """
    yield from _check_signature(said)
    if said.rows is None:
        yield from _check_without_rows(said, second)
    else:
        yield from _check_with_rows(said, said.rows, second)
    yield from _claims(said.report)


def _check_signature(said: Said) -> Iterator[Finding]:
    report = said.report
    try:
        budget.verify(report)
    except LedgerCorruptError as error:
        raise AlteredError(f"{said.path}: {error}") from None
    key = "" if report.signature is None else report.signature.public_key
    if said.key is not None and key != said.key.lower():
        raise SignerError(
            f"{said.whose} is signed by key {key}, not by the expected {said.key}. Ask the site"
            " itself which key is its own."
        )
    if (report.site, report.job) != (said.name, said.facts.job):
        raise DossierError(f"{said.whose} is of {report.site!r} and of job {report.job!r}.")
    if not report.private:
        raise DossierError(f"{said.whose} is stamped NOT PRIVATE: it claims nothing.")
    yield holds(f"the budget report is as key {key} signed it", said.name)
    if said.key is None:
        yield word(
            f"that {key} is the site's key: give --site {said.name}=KEY with one that the site"
            " told you",
            said.name,
        )
    else:
        yield holds("that is the key that was given for the site", said.name)


def _check_with_rows(
    said: Said, rows: list[Row], second: Callable[[Term], float] | None
) -> Iterator[Finding]:
    report, name = said.report, said.name
    history = _history(said, rows)
    newer = len(rows) - report.ledger_rows
    more = f", and {newer} newer ones" if newer else ""
    yield holds(
        f"{report.ledger_rows} rows of the ledger, each with the hash of the one before, up to the"
        f" head that the report names{more}",
        name,
    )
    _check_terms(said, history)
    yield from _check_plan(said, history)
    _check_events(said, history)
    for figure, value in _stated(said, history):
        _check_stated(said, figure, value, "its rows come to")
    yield holds(f"{_figures(report)}: no less than its rows come to, {_rule(history)}", name)
    figures = figures_of(history)
    for one in figures:
        ours, found = one.value(epsilon_of), getattr(history, one.name)
        if abs(ours - found) > DIGITS * max(1.0, found):
            raise DossierError(
                f"{said.whose}: {one.name} is {found} by the ledger's own code and {ours} by its"
                " events. That is a fault of fedpriv: please report it."
            )
    if not figures:
        yield word("what a lost copy of the ledger took: one number, which the site stated", name)
        return
    yield holds("our accountant comes to the same from the events alone", name)
    yield from _asked_twice(said, figures, second)


def _history(said: Said, rows: list[Row]) -> History:
    """What the rows up to the report's head add up to; the newer ones have to follow, too."""
    report, path = said.report, said.path / f"sites/{said.name}/ledger.json"
    if report.ledger_rows > len(rows):
        raise ForkedError(
            f"{said.whose} speaks of row {report.ledger_rows}, and the ledger's rows in the dossier"
            f" end at {len(rows)}: some are missing. Ask the site for its export again."
        )
    if not report.ledger_rows or rows[report.ledger_rows - 1].hash != report.ledger_head:
        raise ForkedError(
            f"{said.whose} names a head at row {report.ledger_rows} that the ledger's rows in the"
            " dossier don't have: it is of another ledger, or of another branch of it."
        )
    for end in (len(rows), report.ledger_rows):
        history = read_history(rows[:end], path)
        check_within(history, path)
    if history.is_over:
        raise DossierError(f"{said.whose} claims nothing: {history.guarantee}.")
    return history


def _check_terms(said: Said, history: History) -> None:
    for field in _TERMS:
        stated, found = getattr(said.report, field), getattr(history.terms, field)
        if stated != found:
            raise DossierError(
                f"{said.whose} states {field} = {stated}, and its ledger {found}. One of them is"
                " not the site's."
            )
    if said.report.rule != history.terms.rule.name:
        raise DossierError(
            f"{said.whose} states the rule {said.report.rule!r}, and its ledger"
            f" {history.terms.rule.name!r}."
        )
    least, stated = history.max_colluding, said.report.max_colluding
    if least is not None and (stated is None or stated > least):
        raise UnderstatedError(
            f"{said.whose} states a claim that holds if {stated} sites collude, and its ledger has"
            f" a secure sum that allows for {least}."
        )


def _check_plan(said: Said, history: History) -> Iterator[Finding]:
    """The plan that the site committed to is that of the proposal."""
    account, proposal = history.accounts.get(said.facts.job), said.facts.proposal
    if account is None:
        if said.site.rounds or said.report.events:
            raise UnderstatedError(
                f"{said.whose}: its ledger has no plan for job {said.facts.job!r}, of which the"
                f" coordinator had replies in {said.site.rounds} rounds."
            )
        yield holds("the ledger paid nothing for this job, and no reply came from it", said.name)
        return
    plan, shared = account.plan, proposal.shared
    asked = {
        "proposal": proposal.digest(),
        "method": proposal.method,
        "sample_rate": proposal.privacy.sample_rate,
        "clip_norm": proposal.privacy.clip_norm,
        "steps": proposal.steps,
        "numerics": proposal.privacy.numerics,
        "max_colluding": None if shared is None else shared.max_colluding,
        "shares": 1 if shared is None else shared.shares,
    }
    for field, value in asked.items():
        if getattr(plan, field) != value:
            raise DossierError(
                f"{said.whose}: its ledger's plan for this job has {field} ="
                f" {getattr(plan, field)}, and the proposal in the dossier {value}. The proposal is"
                " not the one that the site accepted."
            )
    yield holds(
        "the ledger committed to this very proposal, by its digest, before the job's first step",
        said.name,
    )


def _check_events(said: Said, history: History) -> None:
    """The report's events are the slots that its ledger reserved, and no fewer than were answered."""
    report, job = said.report, said.facts.job
    account = history.accounts.get(job)
    slots = [] if account is None else history.slot_events(job)
    found = tuple(budget.events_of(job, slots))
    if report.events != found:
        counts = [sum(event.count for event in events) for events in (report.events, found)]
        raise UnderstatedError(
            f"{said.whose} lists {counts[0]} steps, and its ledger reserved {counts[1]}, or others:"
            " events are missing, or were changed."
        )
    use = None if account is None else history.filter_use(job)
    if use != (None if report.filter is None else report.filter.model_dump()):
        raise DossierError(f"{said.whose}: its filter is not as its ledger has it, {use}.")
    check_answered(said, len(slots))


def check_answered(said: Said, slots: int) -> None:
    """Check that a site paid for at least the steps that the coordinator had replies for."""
    proposal = said.facts.proposal
    looks = 0 if proposal.evaluation is None else said.site.looks * proposal.evaluation.slots
    answered = said.site.rounds * proposal.round_steps + looks
    if slots < answered:
        raise UnderstatedError(
            f"{said.whose} counts {slots} steps of job {said.facts.job!r}, and the coordinator had"
            f" replies of {answered}: events are missing. The report may be an older one; ask the"
            " site for its newest."
        )


def _check_without_rows(said: Said, second: Callable[[Term], float] | None) -> Iterator[Finding]:
    """What a report's own events cost at least, where nothing else of the ledger is known."""
    report, name = said.report, said.name
    check_answered(said, sum(event.count for event in report.events))
    figures = _of_events(said)
    for figure in figures:
        _check_stated(said, figure.name, figure.value(epsilon_of), "its own events cost")
    _check_order(said)
    yield holds(f"{_figures(report)}: no less than its own events cost", name)
    yield from _asked_twice(said, figures, second)
    yield word(
        "that these are all events of its ledger, and that the ledger committed to this proposal:"
        " its rows are not in the dossier. The site can send them (fedpriv ledger export)",
        name,
    )


def _of_events(said: Said) -> list[Figure]:
    """The least that each figure of a report can be, by the events and the plan of this job."""
    report, proposal = said.report, said.facts.proposal
    events = tuple(
        Event(event.sample_rate, event.noise_multiplier, event.count) for event in report.events
    )
    if not events:
        return []
    if report.filter is not None:
        order = report.filter.order
        term: Term = Renyi(report.delta, order, tuple((order, event) for event in events))
        return [Figure("epsilon_spent", (term,)), Figure("epsilon_allocated", (term,))]
    planned = events
    if report.rule in ("plan", "sum"):  # under which all steps of a plan stay charged
        planned = (replace(max(events, key=_dearness), count=proposal.steps),)
    found = [
        Figure("epsilon_spent", (Numerical(report.delta, events),)),
        Figure("epsilon_allocated", (Numerical(report.delta, planned),)),
    ]
    if report.budget_alone is not None:
        parts = 1 if proposal.shared is None else proposal.shared.shares
        found += [
            Figure(f"epsilon_alone_{key}", (Numerical(report.delta, _shares(of, parts)),))
            for key, of in (("spent", events), ("allocated", planned))
        ]
    return found


def _dearness(event: Event) -> tuple[float, float]:
    return event.sample_rate, -event.noise_multiplier


def _shares(events: tuple[Event, ...], parts: int) -> tuple[Event, ...]:
    """The same with a site's own share of the noise alone."""
    return tuple(
        replace(event, noise_multiplier=share_of(event.noise_multiplier, parts))
        for event in events
    )


def _check_order(said: Said) -> None:
    """What is spent is within what is allocated, and that within the claim and the budget."""
    report = said.report
    for prefix, limit in (("epsilon_", report.budget), ("epsilon_alone_", report.budget_alone)):
        if limit is None:
            continue
        names = [f"{prefix}{key}" for key in ("spent", "allocated", "committed")]
        stated = [getattr(report, name) for name in names]
        if sorted(stated) != stated or stated[-1] > limit * (1 + DIGITS):
            raise UnderstatedError(
                f"{said.whose} states {', '.join(f'{n} = {v}' for n, v in zip(names, stated, strict=True))}"
                f" and a budget of {limit}: each has to be within the next."
            )


def _stated(said: Said, history: History) -> Iterator[tuple[str, float]]:
    """Each figure of a report, with what the rows come to."""
    for prefix in ("epsilon", "epsilon_alone"):
        for key in ("spent", "allocated", "committed"):
            found = getattr(history, f"{prefix}_{key}")
            if found is not None:
                yield f"{prefix}_{key}", found


def _check_stated(said: Said, name: str, least: float, why: str, slack: float = DIGITS) -> None:
    stated = getattr(said.report, name)
    if stated is None or stated < least - max(slack * least, LEAST * (slack > DIGITS)):
        raise UnderstatedError(
            f"{said.whose} states {name} = {stated}, and {why} {least:.6g} at δ ="
            f" {said.report.delta:g}. Don't rely on it."
        )


def _asked_twice(
    said: Said, figures: list[Figure], second: Callable[[Term], float] | None
) -> Iterator[Finding]:
    """The same figures by another accountant."""
    if second is None:
        yield left_open("dp-accounting was not asked", said.name)
        return
    shown = []
    for figure in figures:
        value = figure.value(second)
        _check_stated(said, figure.name, value, "dp-accounting comes to", SECOND)
        if figure.terms:
            shown.append(f"{figure.name.removeprefix('epsilon_').replace('_', ' ')} {value:.4g}")
    found = ", ".join(shown) or "nothing to compute"
    yield holds(f"dp-accounting comes to no more: {found}", said.name)


def _figures(report: BudgetReport) -> str:
    """What a report states, in words."""
    text = (
        f"ε spent {upper(report.epsilon_spent)}, allocated {upper(report.epsilon_allocated)},"
        f" committed {upper(report.epsilon_committed)} of {upper(report.budget)} at δ ="
        f" {report.delta:g}"
    )
    spent, allocated = report.epsilon_alone_spent, report.epsilon_alone_allocated
    committed, limit = report.epsilon_alone_committed, report.budget_alone
    if spent is None or allocated is None or committed is None or limit is None:
        return text
    return (
        f"{text}; alone, spent {upper(spent)}, allocated {upper(allocated)}, committed"
        f" {upper(committed)} of {upper(limit)}"
    )


def _rule(history: History) -> str:
    adaptive = ", by a Rényi filter at one order" if history.is_adaptive else ""
    return f"by the rule {history.terms.rule.name!r}{adaptive}"


def _claims(report: BudgetReport) -> Iterator[Finding]:
    """What no file can show of a site."""
    yield word(
        f"that its records are those of one population of {report.declared_size} units, counted by"
        f" {report.unit}, with no other ledger; that each step was sampled and noised as its row"
        " says; and the assumptions that its report names",
        report.site,
    )
    if report.simulated:
        yield word("that anybody was there at all: the site is simulated", report.site)
