"""A reply that can't be used costs its site a slot, and the others nothing."""

from __future__ import annotations

import pytest
from network_federation import Federation

pytestmark = pytest.mark.slow

Totals = tuple[float, float, float, int]


@pytest.mark.parametrize(
    "fault",
    [
        "nan",
        "wrong-shape",
        "wrong-dtype",
        "oversized",
        "truncated",
        "stale",
    ],
)
def test_a_bad_update_is_not_used(federation: Federation, expected: Totals, fault: str) -> None:
    federation.only(2, needed=1)
    server = federation.server()
    federation.client(0, fault)
    federation.client(1)
    federation.finish(server)
    assert federation.states(0) == ["ok", "unusable", "ok"]
    assert federation.states(1) == ["ok"] * 3
    assert "site-0: unusable" in server.text
    assert federation.totals(0) == federation.totals(1) == expected
