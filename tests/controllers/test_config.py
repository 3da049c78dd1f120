"""Which settings of `[controller]` go together."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from fedpriv.controllers.config import ControllerSection

TABLES: dict[str, dict[str, Any]] = {
    "fixed": {"clip_norms": {"a": 1.0}},
    "quantile": {"target": 0.7},
}


@pytest.mark.parametrize("name", ["normalise", *TABLES])
@pytest.mark.parametrize("table", TABLES)
def test_only_the_settings_of_the_one_that_is_chosen_may_be_there(name: str, table: str) -> None:
    section = {"name": name, table: TABLES[table]}
    if name == table:
        chosen = getattr(ControllerSection.model_validate(section), name)
        assert TABLES[name].items() <= chosen.model_dump().items()
        return
    with pytest.raises(ValidationError, match=f"{table}: belongs to name = '{table}'"):
        ControllerSection.model_validate(section)


def test_without_more_it_is_fixed_by_adapters() -> None:
    section = ControllerSection()
    assert (section.name, section.groups) == ("fixed", "adapters")
