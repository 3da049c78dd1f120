"""`[personal]`: how a site trains by itself."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fedpriv.config.personal import MOST, OwnTraining, PersonalSection
from fedpriv.names import OwnKind


def test_by_default_rate_and_passes_are_chosen_by_the_sites_own_records() -> None:
    settings = PersonalSection()
    kinds: tuple[OwnKind, ...] = ("personal", "alone")
    assert settings.validation > 0
    for kind in kinds:
        assert settings.beginning(kind) == OwnTraining((1e-3, 3e-3, 1e-2), 8, MOST, 3)


@pytest.mark.parametrize(
    ("lines", "missing"), [({"epochs": 3}, "rates"), ({"rates": (1e-3,)}, "epochs")]
)
def test_where_nothing_is_left_out_rate_and_passes_have_to_be_said(
    lines: dict[str, object], missing: str
) -> None:
    with pytest.raises(ValidationError, match=f"{missing}: .* validation = 0"):
        PersonalSection.model_validate({"validation": 0, **lines})
    whole = PersonalSection(validation=0, rates=(1e-3,), epochs=3)
    assert whole.beginning("alone") == OwnTraining((1e-3,), 8, 3, 3)


@pytest.mark.parametrize(
    ("epochs", "alone", "expected"), [(7, None, (7, 7)), (7, 20, (7, 20)), (None, 20, (20, 20))]
)
def test_a_model_that_begins_without_the_adapter_may_have_passes_of_its_own(
    epochs: int | None, alone: int | None, expected: tuple[int, int]
) -> None:
    settings = PersonalSection(epochs=epochs, epochs_alone=alone)
    found = settings.beginning("personal").epochs, settings.beginning("alone").epochs
    assert found == expected
