"""Which columns records have, where nobody says."""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset

from fedpriv.data.in_memory import columns_of
from fedpriv.errors import DataError

TEXT: dict[str, Any] = {"text": "secret"}
PAIR: dict[str, Any] = {"prompt": "secret", "completion": "secret"}


@pytest.mark.parametrize("row", [TEXT, PAIR, {**TEXT, "label": 1}, {"messages": []}])
def test_the_formats_of_trl_are_known(row: dict[str, Any]) -> None:
    expected = {field: field for field in row}
    assert columns_of([row, {**row, "mrn": 7}]) == columns_of(Dataset.from_list([row])) == expected


def test_tools_that_no_template_would_be_given_are_refused() -> None:
    """trl renders them; without them a model learns calls of tools that nobody described."""
    row: dict[str, Any] = {"messages": [], "tools": []}
    for rows in ([row], Dataset.from_dict({"messages": [[]], "chat_template_kwargs": [{"a": 1}]})):
        with pytest.raises(DataError, match="beside messages, and no template gets them"):
            columns_of(rows)


@pytest.mark.parametrize("odd", [0, 20, 39])
def test_no_row_decides_how_others_are_read(odd: int) -> None:
    rows = [TEXT] * 40
    rows[odd] = {**TEXT, **PAIR}
    with pytest.raises(DataError, match=r"row \d+ is in another format") as found:
        columns_of(rows)
    assert "secret" not in str(found.value)


@pytest.mark.parametrize("rows", [[], [{"remark": "secret"}], [TEXT, {"remark": "secret"}]])
def test_records_in_no_format_are_refused(rows: list[dict[str, Any]]) -> None:
    with pytest.raises(DataError) as found:
        columns_of(rows)
    assert "secret" not in str(found.value)
