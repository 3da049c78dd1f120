"""`[personal]`: how a site trains by itself."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fedpriv.config.personal import FEW, OwnTraining, PersonalSection


def test_without_validation_records_there_is_no_rate_to_choose() -> None:
    with pytest.raises(ValidationError, match="rates: expected one"):
        PersonalSection(validation=0)
    assert PersonalSection(validation=0, rates=(1e-3,)).validation == 0


def test_a_site_of_few_records_keeps_none_apart_unless_it_is_told() -> None:
    assert PersonalSection().share(FEW - 1) == 0
    assert PersonalSection().share(FEW) == 0.2
    assert PersonalSection(validation=0.5).share(3) == 0.5
    assert PersonalSection(validation=0, rates=(1e-3,)).share(10_000) == 0


def test_where_nothing_says_when_to_stop_it_makes_passes_by_its_task_at_the_first_rate() -> None:
    settings = PersonalSection(rates=(3e-3, 1e-2))
    of_text = settings.beginning("personal", "causal-lm", stops=False)
    assert of_text == OwnTraining((3e-3,), 8, 16, 3)
    assert settings.beginning("alone", "causal-lm", stops=False).epochs == 32
    assert settings.beginning("personal", "classification", stops=False).epochs == 2
    assert settings.beginning("alone", "classification", stops=False).epochs == 8


def test_where_validation_records_say_it_passes_are_a_limit() -> None:
    settings = PersonalSection(rates=(3e-3, 1e-2))
    for kind in ("personal", "alone"):
        found = settings.beginning(kind, "classification", stops=True)
        assert found == OwnTraining((3e-3, 1e-2), 8, 50, 3)


@pytest.mark.parametrize(
    ("alone", "stops", "expected"), [(None, True, 7), (None, False, 7), (20, True, 20)]
)
def test_a_model_that_begins_without_the_adapter_may_have_passes_of_its_own(
    alone: int | None, stops: bool, expected: int
) -> None:
    settings = PersonalSection(epochs=7, epochs_alone=alone)
    assert settings.beginning("personal", "causal-lm", stops=stops).epochs == 7
    assert settings.beginning("alone", "causal-lm", stops=stops).epochs == expected
