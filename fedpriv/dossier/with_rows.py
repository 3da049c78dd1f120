"""Compare a site's report with the rows of its ledger. Both must give the same figures."""

from __future__ import annotations

from collections.abc import Iterator

from fedpriv.dossier.findings import Finding, holds, word
from fedpriv.dossier.sentences import check_sentences
from fedpriv.dossier.statement import DIGITS, Statement
from fedpriv.dossier.sums import epsilon_of, figures_of
from fedpriv.errors import DossierError, ForkedError, UnderstatedError
from fedpriv.privacy.ledger.chain import Row
from fedpriv.privacy.ledger.history import History
from fedpriv.privacy.ledger.ledger import read_history
from fedpriv.privacy.ledger.life import life_with
from fedpriv.report import budget
from fedpriv.report.budget import figure_names
from fedpriv.report.ledger_export import check_within
from fedpriv.report.lifetime import in_words

_TERMS = (
    *("dataset_id", "unit", "max_records_per_unit", "delta", "declared_size", "budget"),
    *("budget_alone", "private", "simulated", "relation"),
)


def check_with_rows(said: Statement, rows: list[Row]) -> Iterator[Finding]:
    """Compare all that a report states with what the rows of its ledger add up to.

    Raises:
        DossierError, LedgerError: as in `fedpriv.dossier.check_site.check_site`.
    """
    report, history = said.report, _history(said, rows)
    newer = len(rows) - report.ledger_rows
    more = f", and {newer} newer ones" if newer else ""
    yield holds(
        f"{report.ledger_rows} rows of the ledger, each with the hash of the one before, up to the"
        f" head that the report names{more}"
    )
    _check_terms(said, history)
    yield from check_sentences(said, history)
    yield from _check_plan(said, history)
    _check_events(said, history)
    _check_life(said, history)
    for claim in history.terms.claims:
        for figure in figure_names(claim.alone):
            said.check_stated(figure, getattr(history, figure), "its rows come to")
    rule = history.terms.rule.name
    yield holds(f"{said.figures_in_words()}: as its rows come to, by the rule {rule!r}")
    figures = figures_of(history)
    for one in figures:
        ours, found = one.value(epsilon_of), getattr(history, one.name)
        if abs(ours - found) > DIGITS * max(1.0, found):
            raise DossierError(
                f"{said.whose}: {one.name} is {found} by the ledger's own code and {ours} by its"
                " events. That is a fault of fedpriv: please report it."
            )
    if not figures:
        yield word("what a lost copy of the ledger took: one number, which the site stated")
        return
    yield holds("our accountant comes to the same from the events alone")
    yield from said.asked_again(figures)


def _history(said: Statement, rows: list[Row]) -> History:
    """Add up the rows up to the report's head. Check that newer rows follow from them, too."""
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
    whole, history = read_history(rows, path), read_history(rows[: report.ledger_rows], path)
    check_within(whole, path)
    check_within(history, path)
    job = said.facts.job
    stated, found = len(history.slots(job)), len(whole.slots(job))
    if found > stated:
        raise UnderstatedError(
            f"{said.whose} is older than its ledger's rows, which have {found} steps of job {job!r}"
            f" where it has {stated}. Ask the site for its newest report."
        )
    if history.is_over:
        raise DossierError(f"{said.whose} claims nothing: {history.guarantee}.")
    return history


def _check_terms(said: Statement, history: History) -> None:
    terms = {field: getattr(history.terms, field) for field in _TERMS}
    for field, found in (terms | {"rule": history.terms.rule.name}).items():
        stated = getattr(said.report, field)
        if stated != found:
            raise DossierError(
                f"{said.whose} states {field} = {stated}, and its ledger {found}. One of them is"
                " not the site's."
            )


def _check_plan(said: Statement, history: History) -> Iterator[Finding]:
    """Check that the site committed to the plan of the proposal."""
    account, proposal = history.accounts.get(said.facts.job), said.facts.proposal
    if account is None:
        if said.site.rounds or said.report.events:
            raise UnderstatedError(
                f"{said.whose}: its ledger has no plan for job {said.facts.job!r}, of which the"
                f" coordinator had replies in {said.site.rounds} rounds."
            )
        yield holds("no row of its ledger is of this job")
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
        **({} if shared is None else {"noise_multiplier": shared.noise_multiplier}),
    }
    for field, value in asked.items():
        if getattr(plan, field) != value:
            raise DossierError(
                f"{said.whose}: its ledger's plan for this job has {field} ="
                f" {getattr(plan, field)}, and the proposal in the dossier {value}. The proposal is"
                " not the one that the site accepted."
            )
    yield holds(
        "the ledger committed to this very proposal, by its digest, before the job's first step"
    )
    for one in history.approvals.get(said.facts.job, ()):
        yield word(
            f"that {one.get('name', 'a person')}, of whom the ledger has the keyed digest"
            f" {one['person']}, approved the job; the reason given is {one['reason']!r}"
        )


def _check_events(said: Statement, history: History) -> None:
    """Check that the report's events are the reserved slots, with at least all answered steps."""
    report, job = said.report, said.facts.job
    account = history.accounts.get(job)
    slots = [slot for slot, _ in history.slots(job)]
    found = () if account is None else budget.events_of(account.plan, slots)
    if report.events != found:
        counts = [sum(event.count for event in events) for events in (report.events, found)]
        raise UnderstatedError(
            f"{said.whose} lists {counts[0]} steps, and its ledger reserved {counts[1]}, or others:"
            " events are missing, or were changed."
        )
    said.check_answered(len(slots))


def _check_life(said: Statement, history: History) -> None:
    """Check that the report's share of the lifetime budget for its job is what the rows show."""
    stated, account = said.report.life, history.accounts.get(said.facts.job)
    if stated is None:  # an older report, or a ledger of one plan
        return
    if account is not None:
        takes = history.used_by([account.plan.job])
        found = life_with(history.terms, history.used, account.plan, takes)
        pairs = ((stated.taken, found.taken), (stated.job, found.job))
        near = all(abs(one - other) <= DIGITS * max(1.0, other) for one, other in pairs)
        if near and abs(stated.more - found.more) <= 1:  # one may fit by a last digit
            return
    raise UnderstatedError(
        f"{said.whose} says of its budget for life: {in_words(stated)} Its rows come to something"
        " else."
    )
