"""A reply that can't be used costs its site a slot, and the others nothing."""

from __future__ import annotations

import pytest

from tests.network.network_faults import UNUSABLE
from tests.network.network_federation import ROUNDS, Federation

pytestmark = pytest.mark.slow


def test_a_bad_update_is_not_used(federation: Federation) -> None:
    """A job with one of each kind, round by round, between two that are sound."""
    rounds = len(UNUSABLE) + 2
    federation.only(2, needed=1)
    federation.change(federation.file, f"rounds = {ROUNDS}", f"rounds = {rounds}")
    for index in range(2):
        old, new = f"max_steps = {ROUNDS}", f"max_steps = {rounds}"
        federation.change(federation.site_file(index), old, new)
    server = federation.server()
    federation.client(0, "unusable")
    federation.client(1)
    federation.finish(server, rounds=rounds)
    assert federation.states(0) == ["ok", *["unusable"] * len(UNUSABLE), "ok"]
    assert federation.states(1) == ["ok"] * rounds
    assert server.text.count("site-0: unusable") == len(UNUSABLE)
    assert federation.totals(0) == federation.totals(1)
    assert federation.totals(0)[3] == rounds
