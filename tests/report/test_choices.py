"""What is shown of the server's choices is what the rounds say."""

from __future__ import annotations

from typing import Any

from fedpriv.report.choices import choices
from fedpriv.report.rundir import Round


def rounds(*parts: dict[str, Any]) -> list[Round]:
    plain = {"bytes_up": 0, "bytes_down": 0, "seconds": 1.0, "sites": {}}
    return [
        Round.model_validate({"round": number, **plain, **part})
        for number, part in enumerate(parts, start=1)
    ]


def test_where_nothing_was_chosen_there_is_nothing_to_show() -> None:
    assert not choices(rounds({}, {}))
