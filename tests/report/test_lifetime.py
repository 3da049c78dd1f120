"""What a budget for life is in a person's words."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from fedpriv.privacy.ledger.history import History
from fedpriv.privacy.ledger.rules import RdpRule
from fedpriv.privacy.life import Life
from fedpriv.report.lifetime import for_one, in_words, life_in, right_at_most, terms_in
from tests.privacy.ledger.test_life import PLAN, terms


@pytest.mark.parametrize(
    ("epsilon", "right"),
    [(0.1, "52.5%"), (0.5, "62.3%"), (1, "73.2%"), (2, "88.1%"), (4, "98.3%"), (8, "99.97%")],
)
def test_guesses_are_those_of_the_privacy_officers_table(epsilon: float, right: str) -> None:
    assert right_at_most(epsilon, 0.0) == right


def test_a_guess_is_never_said_to_be_less_sure_than_it_may_be() -> None:
    assert right_at_most(12.0, 1e-5) == "99.9994%"
    assert right_at_most(1e6, 1e-5) == "100%"
    assert right_at_most(0.0, 0.5) == "75%"
    said = for_one("patient", 1e-5, {"by this job alone": 1.0, "by all": 2.0})
    assert "(one patient) are in the data is right in at most 73.2% by this job alone, and" in said


def test_words_are_of_what_a_job_takes_and_what_is_left() -> None:
    life = Life(taken=0.118, job=0.059, more=15)
    assert in_words(life) == (
        "It takes 5.9% of the budget for life. All jobs together have taken 11.8%, and 15 more like"
        " it fit."
    )
    assert "would take 5.9%" in in_words(life, asks=True)
    assert "no more like it fit" in in_words(life.model_copy(update={"more": 0}))
    assert "100 or more" in in_words(life.model_copy(update={"more": 100}))
    assert "does not fit" in in_words(life.model_copy(update={"more": -1}), asks=True)


def test_an_account_that_was_written_down_says_the_same() -> None:
    history = History("terms", terms(RdpRule(4, 3), alone=20.0).as_row())
    history.take("plan", PLAN.as_row())
    account = history.figures()
    assert asdict(terms_in(account)) == asdict(history.terms)
    assert life_in(account, PLAN).job == life_in(account, PLAN).taken
