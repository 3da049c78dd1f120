"""What is shown of a controller's choices is what the rounds say."""

from __future__ import annotations

from typing import Any

import pytest

from fedpriv.report.choices import SHOWN, choices
from fedpriv.report.rundir import Round


def rounds(*parts: dict[str, Any]) -> list[Round]:
    plain = {"bytes_up": 0, "bytes_down": 0, "seconds": 1.0, "sites": {}}
    return [
        Round.model_validate({"round": number, **plain, **part})
        for number, part in enumerate(parts, start=1)
    ]


def test_where_nothing_was_chosen_there_is_nothing_to_show() -> None:
    assert not choices(rounds({}, {}))


@pytest.mark.parametrize("count", [1, 5, 100])
def test_decisions_begin_with_the_first_round_and_end_with_the_last(count: int) -> None:
    decided = (
        {
            "controller": {
                "clip_norms": [1.0 + n, 2.0, 4.0],
                "weights": [0.3, 0.3, 0.4],
                "share": None,  # of an earlier version
                "rate": 1.0,
            }
        }
        for n in range(count)
    )
    found = choices(rounds(*decided))
    assert found.groups == 3
    first, last = found.decisions[0], found.decisions[-1]
    assert (first.round, last.round) == (1, count)
    assert (first.least, first.middle, first.most) == (1, 1, 1)
    assert (last.least, last.most) == (1, count)
    assert len(found.decisions) <= SHOWN + 1
