"""`[personal]`: how a site trains by itself."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fedpriv.config.personal import FEW, OwnKind, OwnTraining, PersonalSection, Task


def test_without_validation_records_there_is_no_rate_to_choose() -> None:
    with pytest.raises(ValidationError, match="rates: expected one"):
        PersonalSection(validation=0)
    assert PersonalSection(validation=0, rates=(1e-3,)).validation == 0


def test_a_site_of_few_records_keeps_none_apart_unless_it_is_told() -> None:
    assert PersonalSection().share(FEW - 1) == 0
    assert PersonalSection().share(FEW) == 0.2
    assert PersonalSection(validation=0.5).share(3) == 0.5
    assert PersonalSection(validation=0, rates=(1e-3,)).share(10_000) == 0


@pytest.mark.parametrize(
    ("task", "examples", "personal", "alone"),
    [
        ("causal-lm", 1, 96, 144),
        ("causal-lm", 16, 24, 36),
        ("causal-lm", 64, 12, 18),
        ("classification", 16, 2, 16),
        ("classification", 64, 1, 8),
        ("classification", 400, 1, 3),
    ],
)
def test_where_nothing_says_when_to_stop_more_examples_take_fewer_passes(
    task: Task, examples: int, personal: int, alone: int
) -> None:
    settings = PersonalSection(rates=(3e-3, 1e-2))
    found = settings.beginning("personal", task, examples=examples, stops=False)
    assert found == OwnTraining((3e-3,), 8, personal, 3)
    assert settings.beginning("alone", task, examples=examples, stops=False).epochs == alone


def test_where_validation_records_say_it_passes_are_a_limit() -> None:
    settings = PersonalSection(rates=(3e-3, 1e-2))
    kinds: tuple[OwnKind, ...] = ("personal", "alone")
    for kind in kinds:
        found = settings.beginning(kind, "classification", examples=500, stops=True)
        assert found == OwnTraining((3e-3, 1e-2), 8, 50, 3)


@pytest.mark.parametrize(
    ("alone", "stops", "expected"), [(None, True, 7), (None, False, 7), (20, True, 20)]
)
def test_a_model_that_begins_without_the_adapter_may_have_passes_of_its_own(
    alone: int | None, stops: bool, expected: int
) -> None:
    settings = PersonalSection(epochs=7, epochs_alone=alone)
    assert settings.beginning("personal", "causal-lm", examples=16, stops=stops).epochs == 7
    assert settings.beginning("alone", "causal-lm", examples=16, stops=stops).epochs == expected
