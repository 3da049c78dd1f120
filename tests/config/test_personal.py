"""`[personal]`: how a site trains by itself."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fedpriv.config.personal import PersonalSection


def test_without_validation_records_there_is_no_rate_to_choose() -> None:
    with pytest.raises(ValidationError, match="rates: expected one"):
        PersonalSection(validation=0)
    assert PersonalSection(validation=0, rates=(1e-3,)).validation == 0


@pytest.mark.parametrize(("alone", "expected"), [(None, 7), (20, 20)])
def test_a_model_that_begins_without_the_adapter_may_have_passes_of_its_own(
    alone: int | None, expected: int
) -> None:
    settings = PersonalSection(epochs=7, epochs_alone=alone)
    assert settings.beginning("personal") == settings
    assert settings.beginning("alone").epochs == expected
