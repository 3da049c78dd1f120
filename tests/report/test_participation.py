"""Who took part in which rounds: every round is in it once."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fedpriv.report.participation import participation
from fedpriv.report.rundir import Round, RunDirectory

STATUSES = ["ok", "ok", "ok", "no reply", "absent", "refused: paused", None]


def directory(statuses: list[str | None]) -> RunDirectory:
    rounds = [
        Round(
            round=number,
            bytes_up=0,
            bytes_down=0,
            seconds=1.0,
            sites={"other": {"status": "ok"}}  # type: ignore[dict-item]
            | ({} if status is None else {"site": {"status": status}}),
        )
        for number, status in enumerate(statuses, start=1)
    ]
    run: Any = None
    return RunDirectory(run, rounds, [])


@given(st.lists(st.sampled_from(STATUSES), min_size=1, max_size=400))
def test_every_round_is_counted_once(statuses: list[str | None]) -> None:
    found = {one.site: one for one in participation(directory(statuses))}
    if not any(statuses):
        assert set(found) == {"other"}
        return
    site = found["site"]
    assert site.took_part == statuses.count("ok")
    assert {name for name, _ in site.missed} == {s or "not asked" for s in statuses} - {"ok"}


def test_missed_rounds_are_named_with_what_happened() -> None:
    [_, site] = participation(directory(["ok", "no reply", "no reply", None, "ok", "absent"]))
    assert site.missed == (("no reply", "2–3"), ("not asked", "4"), ("absent", "6"))
