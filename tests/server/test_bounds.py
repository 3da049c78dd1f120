"""A signed request counts once, and is forgotten when it would be too old anyway."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedpriv_server.bounds import Replays


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 5)), max_size=30))
def test_each_key_and_time_counts_once(requests: list[tuple[bytes, int]]) -> None:
    replays = Replays(300.0, clock=lambda: 0.0)
    first = [request for request in requests if replays.is_first(request[0], str(request[1]))]
    assert len(first) == len(set(first))
    assert set(first) == set(requests)


def test_nothing_is_kept_beyond_the_window() -> None:
    now = 0.0
    replays = Replays(300.0, clock=lambda: now)
    for second in range(1000):
        now = float(second)
        assert replays.is_first(b"a", str(second))
        assert not replays.is_first(b"a", str(max(0, second - 300)))
    assert len(replays._seen) <= 301
