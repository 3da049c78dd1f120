"""How a dossier answers clauses of other texts: row by row, what is computed and what is said.

The texts are paraphrased, not quoted, and only clauses that a dossier says something about are
here. It answers none of them in full: who keeps a trusted research environment, or is responsible
under the GDPR, has to do more than a computation can show.

Source:
    SATRE, Standard Architecture for Trusted Research Environments, specification 2.0.1 (2026), its
    numbers and degrees of importance; Regulation (EU) 2016/679 (GDPR); NIST SP 800-226, "Guidelines
    for Evaluating Differential Privacy Guarantees" (2025), by subject, as it numbers no demands.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from fedpriv.dossier.facts import ANSWERS, AUDIT, FACTS, Contents
from fedpriv.report.figures import upper
from fedpriv.section import Section

SATRE, GDPR, NIST = "SATRE 2.0.1", "GDPR", "NIST SP 800-226"
REPORTS, LEDGERS, MANIFEST = "sites/*/budget.json", "sites/*/ledger.json", "manifest.json"


class Clause(Section):
    """A row of the table.

    Attributes:
        asks: in our own words.
        computed: what holds by computation from this file; empty where nothing does.
        word: what only somebody's word says; empty where nothing is left to it.
        shown_in: files of the dossier.
    """

    text: str
    clause: str
    asks: str
    computed: str = ""
    word: str = ""
    shown_in: tuple[str, ...] = Field(min_length=1)


def clauses_of(contents: Contents) -> Iterator[Clause]:
    """All rows, in the order of the texts."""
    yield from _satre(contents)
    yield from _gdpr(contents)
    yield from _nist(contents)


def _satre(contents: Contents) -> Iterator[Clause]:
    ledgers = _ledgers(contents)
    yield Clause(
        text=SATRE,
        clause="3.1.16, recommended",
        asks="Where models are trained on sensitive data, a plan for what is made of them is agreed"
        " before the project begins: which kinds of model, and on what conditions they may leave.",
        computed=f"The proposal names model, method, steps and budget.{_bound(contents)}",
        word="A proposal is no such plan; that one was agreed, and what it says of use and of"
        " withdrawal, is not in this file.",
        shown_in=(FACTS, *ledgers),
    )
    yield Clause(
        text=SATRE,
        clause="3.3.02, recommended",
        asks="Outputs are the least that is needed to share results.",
        computed=f"The output is the adapter: {len(contents.facts.adapter)} files, each by its"
        " digest.",
        word="That nothing else was taken out, and that less would not do.",
        shown_in=(FACTS,),
    )
    yield Clause(
        text=SATRE,
        clause="3.3.03, recommended",
        asks="Which outputs a project will have is settled at its beginning.",
        computed=_bound(contents).strip(),
        word="That nobody meant to take out more than the proposal says.",
        shown_in=(FACTS, *ledgers),
    )
    yield Clause(
        text=SATRE,
        clause="3.3.04, mandatory",
        asks="There is a documented process by which outputs are checked for what they disclose.",
        computed="One step of such a process can be repeated by anybody: fedpriv verify on this"
        " file, and its exit code.",
        word="The process itself, and that all outputs go through it, is the environment's own.",
        shown_in=(MANIFEST,),
    )
    yield Clause(
        text=SATRE,
        clause="3.3.06, recommended",
        asks="Whoever checks outputs decides on a statistical basis.",
        computed=f"An upper bound on what one {_unit(contents)} changes in all that its site let"
        f" out: {_largest(contents)}, computed anew from {_basis(contents)}.",
        word="Whether that ε is small enough is for people to decide.",
        shown_in=(REPORTS, *ledgers, ANSWERS),
    )
    yield Clause(
        text=SATRE,
        clause="3.3.07, mandatory",
        asks="There is a policy for outputs that nobody can check by hand. Model weights are named:"
        " whether they may leave, and which technical controls come before that.",
        computed="The controls that are on record: a budget fixed before the first step, a sample"
        " rate, a clip norm and a noise multiplier for each step, refusal of what would overrun the"
        f" budget, and the ε they come to. {_audited(contents)}",
        word="That the site's process computed as its rows say; that the adapter is made of what"
        " was released. The policy itself is not in this file.",
        shown_in=(REPORTS, *ledgers, *_audit_file(contents)),
    )
    yield Clause(
        text=SATRE,
        clause="3.3.08, optional",
        asks="Checks of common outputs are automated in part, with people deciding.",
        computed="fedpriv verify checks this file without a network and says what it can't check.",
        word="That a person looks at what it says, and decides.",
        shown_in=(MANIFEST,),
    )
    yield Clause(
        text=SATRE,
        clause="3.3.09, optional",
        asks="A machine-readable record of the criteria that were applied to outputs, with their"
        " parameters and the versions of tools, is kept and tied to the outputs it is about.",
        computed="This file is one: JSON, signed as a whole, tied to the adapter by digests, with"
        " every parameter that ε depends on and the versions and digests of the code.",
        word="That it is kept, and for how long. Versions and digests are what the coordinator's"
        " process had; each site runs its own.",
        shown_in=(MANIFEST, FACTS, REPORTS),
    )
    yield Clause(
        text=SATRE,
        clause="5.6.01, mandatory in a federation",
        asks="All members of a federation handle outputs by one agreed approach.",
        computed="Every site reports by the same method of accounting, and states its own budget,"
        f" rule and δ.{_bound(contents)}",
        word="That the members agreed on these budgets, and on what else they need to.",
        shown_in=(FACTS, REPORTS, *ledgers),
    )


def _gdpr(contents: Contents) -> Iterator[Clause]:
    ledgers = _ledgers(contents)
    yield Clause(
        text=GDPR,
        clause="Article 5(1)(c)",
        asks="Personal data are limited to what the purpose needs.",
        computed="What left a site for this job is counted: so many private steps, no more.",
        word="That nothing else left it, and that the records that were used are needed.",
        shown_in=(REPORTS, *ledgers),
    )
    yield Clause(
        text=GDPR,
        clause="Article 5(2)",
        asks="Whoever is responsible can demonstrate that the principles are kept.",
        computed="What this file shows of one measure, anybody can check again.",
        word="Most principles are beyond any computation: lawfulness, purpose, storage.",
        shown_in=(MANIFEST, ANSWERS),
    )
    yield Clause(
        text=GDPR,
        clause="Article 25(1)",
        asks="Technical and organisational measures that carry out the principles are in place when"
        " the means are chosen and while data are processed.",
        computed="The budget was fixed before the first step, and every step paid for before it was"
        " released: the order and the hashes of the ledger's rows."
        if contents.rows
        else "The events of each report cost no more than it states.",
        word="Whether the measure suits the risk is a judgement that is not made here.",
        shown_in=(REPORTS, *ledgers),
    )
    yield Clause(
        text=GDPR,
        clause="Article 32(1)(d)",
        asks="The effectiveness of measures is tested, assessed and evaluated regularly.",
        computed="" if contents.audit is None else _audited(contents),
        word="This run was not audited. That measures are tested in another way, and regularly."
        if contents.audit is None
        else "That the audit ran with this code and these settings, and is repeated regularly.",
        shown_in=(FACTS, *_audit_file(contents)),
    )
    yield Clause(
        text=GDPR,
        clause="Recital 26",
        asks="Data are anonymous if nobody can be identified by means that are reasonably likely to"
        " be used, such as singling out.",
        computed="ε and δ bound what the adapter can tell of any one unit, whatever else is known.",
        word="Whether the adapter is anonymous in the sense of the law: this file does not say so.",
        shown_in=(ANSWERS,),
    )


def _nist(contents: Contents) -> Iterator[Clause]:
    ledgers = _ledgers(contents)
    yield Clause(
        text=NIST,
        clause="Privacy parameters",
        asks="A guarantee states ε and δ, and which kind of differential privacy it is.",
        computed=f"(ε, δ) for adding or removing one unit: {_largest(contents)}.",
        shown_in=(REPORTS, ANSWERS),
    )
    yield Clause(
        text=NIST,
        clause="Unit of privacy",
        asks="It is clear what is protected: a record, or all that belongs to a person.",
        computed=f"The unit is stated and signed: one {_unit(contents)}.",
        word="That people are told apart by it in the records; a person in several sites is"
        " protected by the sums of ε and δ.",
        shown_in=(REPORTS, ANSWERS),
    )
    yield Clause(
        text=NIST,
        clause="Many releases",
        asks="What all releases come to together is bounded.",
        computed="Each ledger adds up all that its population paid, over all jobs, by a rule that"
        f" was fixed when it was made: checked against {_basis(contents)}.",
        word="That the population has no other ledger.",
        shown_in=(REPORTS, *ledgers),
    )
    yield Clause(
        text=NIST,
        clause="Trust and threat model",
        asks="It is said who has to be trusted with what.",
        computed="Each claim names its own trust; where sites add their noise together, the figure"
        " that needs none is computed and bounded, too.",
        word="Where a claim counts on others: that no more of them collude than it says.",
        shown_in=(REPORTS, ANSWERS),
    )
    yield Clause(
        text=NIST,
        clause="Arithmetic and side channels",
        asks="Computers round, and take time: a guarantee on paper may not hold for the program.",
        word="On timing and on rounding there are assumptions; each report names both as they"
        " are at its site, and whether timing is covered.",
        shown_in=(REPORTS, ANSWERS),
    )
    yield Clause(
        text=NIST,
        clause="Usefulness",
        asks="What privacy costs in accuracy is known.",
        computed=_looks(contents),
        word="The scores themselves, and that all but those of looks are on records that are public"
        " or the coordinator's own: nobody else has seen the records.",
        shown_in=(FACTS,),
    )


def _ledgers(contents: Contents) -> tuple[str, ...]:
    return (LEDGERS,) if contents.rows else ()


def _audit_file(contents: Contents) -> tuple[str, ...]:
    return () if contents.audit is None else (AUDIT,)


def _bound(contents: Contents) -> str:
    """What the rows of ledgers show of the proposal."""
    if not contents.rows:
        return ""
    of = "each site" if len(contents.rows) == len(contents.reports) else ", ".join(contents.rows)
    return f" The ledger of {of} committed to the proposal, by its digest, before the first step."


def _basis(contents: Contents) -> str:
    """From what ε was computed."""
    if len(contents.rows) == len(contents.reports):
        return "the rows of each ledger"
    if not contents.rows:
        return "the events in each report"
    return "the rows of each ledger that is here, and else the events in the report"


def _unit(contents: Contents) -> str:
    units = sorted({report.unit for report in contents.reports.values()})
    return " or ".join("record" if unit == "record" else f"value of {unit}" for unit in units)


def _largest(contents: Contents) -> str:
    """The largest ε of each claim."""
    reports = contents.reports.values()
    if not reports:
        return "no site has reported"
    text = f"ε of at most {upper(max(report.epsilon_committed for report in reports))}"
    alone = [r.epsilon_alone_committed for r in reports if r.epsilon_alone_committed is not None]
    return f"{text}, and alone {upper(max(alone))}" if alone else text


def _audited(contents: Contents) -> str:
    if contents.audit is None:
        return "No audit of this run is here."
    return "What attacks achieved against this run is here, as a lower bound on ε beside the upper."


def _looks(contents: Contents) -> str:
    steps = contents.facts.evaluation.steps
    if not steps:
        return "No step of the plan was for a score: what scores cost in ε is nothing."
    return (
        f"Scores on the sites' own records took {steps} of {contents.facts.proposal.steps} steps,"
        " which are in ε."
    )
