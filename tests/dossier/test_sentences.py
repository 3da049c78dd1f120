"""What a report says in sentences follows from values, or somebody is told that it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.dossier.facts import FACTS, PAGE
from fedpriv.dossier.package import pack, read
from fedpriv.dossier.sentences import basis_of
from fedpriv.errors import DossierError, UnderstatedError
from fedpriv.privacy.ledger.administration import grow, state_distinct
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.rules import RULES, RdpRule, SumRule
from fedpriv.report import budget
from fedpriv.report.words import GROWN, ONE_RUN, SECURE_SUM, Basis, words
from tests.dossier.made_runs import (
    COORDINATOR,
    HASH,
    LOOKS,
    SHARED,
    Made,
    make_run,
    new_run,
    proposal,
    texts,
    with_page,
    without_rows,
)

FREE: dict[str, Any] = {
    "guarantee": "everything, for ever, whatever anybody does",
    "accountant": "checked by a notary",
    "timing": "covered: replies leave at public times",
    "numerics": "exact: nothing is rounded",
    "trust_model": "nobody has to be trusted with anything",
    "assumptions": (),
}
PLAIN: dict[str, Any] = {
    "rule": "plan",
    "strict": False,
    "max_colluding": None,
    "lost_sums": False,
    "distinct": (),
    "grown": False,
    "one_run": True,
}
FOLLOWS = "follows from its rows and the proposal"


@given(
    basis=st.builds(
        Basis,
        rule=st.sampled_from(list(RULES)),
        strict=st.booleans(),
        max_colluding=st.none() | st.integers(0, 5),
        lost_sums=st.booleans(),
        distinct=st.lists(
            st.tuples(st.text("ab1", min_size=1), st.text("Xy ", min_size=1)), max_size=2
        ).map(tuple),
        grown=st.booleans(),
        one_run=st.booleans(),
    )
)
def test_sentences_say_what_they_follow_from(basis: Basis) -> None:
    said = budget.BudgetReport.model_construct(
        rule=basis.rule, max_colluding=basis.max_colluding, **words(basis)
    )
    assert basis_of(said) == (basis, ())


def test_what_is_derived_is_ticked_and_what_rests_on_people_is_not(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    made.export()
    assert sum(FOLLOWS in text for text in texts(made)) == 2
    assert sum("that no other run used these records" in t for t in texts(made, "word")) == 2
    without_rows(made)
    made.export()
    assert not any(FOLLOWS in text for text in texts(made))
    assert sum("says of other jobs of its ledger" in text for text in texts(made, "word")) == 2


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("field", FREE)
def test_a_sentence_of_ones_own_is_refused(tmp_path: Path, field: str, rows: bool) -> None:
    made = make_run(tmp_path)
    made.sign("north", **{field: FREE[field]})
    if not rows:
        without_rows(made)
    with pytest.raises(DossierError, match=f"says of its {field} what no report of such a ledger"):
        made.export()


@pytest.mark.parametrize("field", FREE)
def test_words_of_another_version_are_marked_and_not_ticked(tmp_path: Path, field: str) -> None:
    made = make_run(tmp_path)
    made.sign("north", **{field: FREE[field] or ("Nobody is curious.",)})
    info = json.loads((made.run / "run.json").read_text())
    info["software"]["fedpriv"]["digest"] = HASH
    (made.run / "run.json").write_text(json.dumps(info))
    made.export()
    found = texts(made, "word")
    assert sum(f"says of {field}: in words of another version" in text for text in found) == 1
    assert sum(FOLLOWS in text for text in texts(made)) == 1  # of the other site
    if field in ("timing", "numerics", "assumptions"):
        assert b"(in words of another version, not derived)" in read(made.out).files[PAGE]


def test_strict_numerics_are_those_of_the_proposal_where_rows_are_missing(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    without_rows(made)
    made.sign("north", **words(Basis(**{**PLAIN, "strict": True})))
    with pytest.raises(DossierError, match="numerics are strict, and the job's proposal has other"):
        made.export()


def test_that_later_jobs_are_strict_is_somebodys_word(tmp_path: Path) -> None:
    privacy = proposal().privacy.model_copy(update={"numerics": "strict"})
    asked = proposal(privacy=privacy)
    for rule, believed in ((SumRule(1e-6), 2), (RULES["plan"](), 0)):
        made = new_run(tmp_path / rule.name, rule=rule, asked=asked)
        made.export()
        assert sum(FOLLOWS in text for text in texts(made)) == 2
        found = texts(made, "word")
        assert sum("other jobs of its ledger are computed strictly" in t for t in found) == believed


def test_a_secure_sum_without_its_second_claim_is_refused(tmp_path: Path) -> None:
    made = make_run(tmp_path, asked=proposal(shared=SHARED), rule=SumRule(1e-6))
    without_rows(made)
    figures = dict.fromkeys(
        [f"epsilon_alone_{key}" for key in ("spent", "allocated", "committed")]
        + ["budget_alone", "max_colluding"]
    )
    made.sign("north", **figures, **words(Basis(**{**PLAIN, "rule": "sum"})))
    with pytest.raises(UnderstatedError, match="what holds without trust in the others is missing"):
        made.export()


def test_without_rows_a_secure_sum_has_the_noise_of_its_proposal(tmp_path: Path) -> None:
    made = make_run(tmp_path, asked=proposal(shared=SHARED))
    without_rows(made)
    [event] = made.report("north").events
    made.sign("north", events=(event.model_copy(update={"noise_multiplier": 3.0}),))
    with pytest.raises(DossierError, match="is not the one that the site accepted"):
        made.export()


def test_a_plan_of_a_secure_sum_has_the_noise_of_its_proposal(tmp_path: Path) -> None:
    more = SHARED.model_copy(update={"noise_multiplier": 3.0})  # than the sites' plans have
    made = new_run(tmp_path, asked=proposal(shared=more))
    with pytest.raises(DossierError, match=r"has noise_multiplier = 2\.0, and the"):
        made.export()


def test_a_trust_that_a_report_alone_states_is_that_of_its_proposal(tmp_path: Path) -> None:
    made = make_run(tmp_path, asked=proposal(shared=SHARED))
    without_rows(made)
    made.sign("north", max_colluding=2, trust_model=budget.trust_model(2))
    with pytest.raises(UnderstatedError, match="if 2 sites collude"):
        made.export()


def with_ledger(tmp_path: Path, change: Any) -> Made:
    """A run after whose job something happened to a ledger, which its report does not say."""
    made = make_run(tmp_path, rule=RdpRule(8))
    before = words(basis_of(made.report("north"))[0])
    with Ledger.open(made.ledger("north")) as ledger:
        change(ledger)
    made.report_on("north")
    made.sign("north", **before)
    return made


def test_a_report_names_what_its_rows_have(tmp_path: Path) -> None:
    for name, change, refusal in (
        (
            "size",
            lambda ledger: grow(ledger, 300, 1e-5),
            "nothing of a size or delta that changed",
        ),
        (
            "people",
            lambda one: state_distinct(one, "b" * 32, "A. B."),
            "nothing of what A. B.",
        ),
    ):
        made = with_ledger(tmp_path / name, change)
        with pytest.raises(DossierError, match=refusal):
            made.export()
        made.report_on("north")
        found = made.export()
        if name == "people":
            assert sum("A. B. says so" in one.text and one.kind == "word" for one in found) == 1


def test_a_report_names_nothing_that_its_rows_have_not(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    made.sign("north", assumptions=(*made.report("north").assumptions[:-1], GROWN, ONE_RUN))
    with pytest.raises(DossierError, match="something of a size or delta that changed"):
        made.export()


def test_a_ledger_of_the_network_is_not_of_one_run(tmp_path: Path) -> None:
    made = make_run(tmp_path, engine="network")
    made.export()
    made.sign("north", assumptions=(*made.report("north").assumptions, ONE_RUN))
    with pytest.raises(DossierError, match="is of one run, and no ledger of the network is"):
        made.export()


@pytest.mark.parametrize("rows", [True, False])
def test_what_is_protected_is_the_unit_of_the_proposal(tmp_path: Path, rows: bool) -> None:
    """All claims begin with the unit, and a site takes part in no job that has another."""
    privacy = proposal().privacy.model_copy(update={"unit": "patient"})
    made = new_run(tmp_path, asked=proposal(privacy=privacy))
    if not rows:
        without_rows(made)
    with pytest.raises(
        DossierError, match=r"1 records of one record are a unit.* has 1 of one patient"
    ):
        made.export()


def test_a_secure_sum_names_its_assumption(tmp_path: Path) -> None:
    made = make_run(tmp_path, asked=proposal(shared=SHARED))
    kept = tuple(text for text in made.report("north").assumptions if text != SECURE_SUM)
    assert len(kept) == len(made.report("north").assumptions) - 1
    made.sign("north", assumptions=kept)
    with pytest.raises(DossierError, match="says of its assumptions"):
        made.export()


def altered(made: Made, change: Any) -> None:
    """Let the coordinator state other facts, on a page that shows them."""
    files = dict(read(made.out).files)
    facts = json.loads(files[FACTS])
    change(facts)
    files[FACTS] = json.dumps(facts).encode()
    made.out.write_bytes(pack(with_page(files, made.out), COORDINATOR))


LOOK = {
    "round": 3,
    "found": {
        "status": "ok",
        "counted": 2,
        "steps": 1,
        "share": 0.1,
        "sites": {"north": {"status": "ok"}, "south": {"status": "ok"}},
    },
}


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"rounds": 7}, "counts 7 rounds, but there can be at most 4"),
        ({"task": "classification"}, "its task is classification, and its proposal's causal-lm"),
        ({"looks": [LOOK, LOOK, LOOK]}, "counts 3 looks, but there can be at most 2"),
        ({"counted": 9}, "is said to be of 9 sites"),
        ({"steps": 5}, "5 steps"),
        ({"share": 1.0}, "a share of 1"),
        ({}, ""),
    ],
)
def test_counts_are_those_that_were_proposed_and_answered(
    tmp_path: Path, change: dict[str, Any], refusal: str
) -> None:
    made = make_run(tmp_path, asked=proposal(evaluation=LOOKS))
    made.export()

    def state(facts: dict[str, Any]) -> None:
        looks = [{**LOOK, "found": {**LOOK["found"], **change}}]  # type: ignore[dict-item]
        if change.keys() & {"rounds", "task"}:
            facts.update(change)
        else:
            facts["evaluation"]["looks"] = change.get("looks", looks)

    altered(made, state)
    if refusal:
        with pytest.raises(DossierError, match=refusal):
            made.verify()
    else:
        made.verify()
