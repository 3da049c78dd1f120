"""Which sites share a row of a table."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedpriv.report.alike import MOST_ALIKE, rows_of, said_together


@given(st.lists(st.integers(0, 3), max_size=40))
def test_every_site_is_in_one_row_with_its_like_alone(figures: list[int]) -> None:
    rows = rows_of(range(len(figures)), figures.__getitem__)
    assert sorted(site for row in rows for site in row) == list(range(len(figures)))
    for row in rows:
        assert len({figures[site] for site in row}) == 1
        assert len(row) == 1 or len(row) == figures.count(figures[row[0]]) > MOST_ALIKE
    together = {figures[row[0]] for row in rows if len(row) > 1}
    assert together == {one for one in figures if figures.count(one) > MOST_ALIKE}


def test_few_are_named() -> None:
    assert said_together(["north"]) == "north"
    assert said_together(["north", "south"]) == "each of 2"
