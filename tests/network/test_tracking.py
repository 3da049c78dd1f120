"""A server over the network tells a tool of every round."""

from __future__ import annotations

import pytest

from tests.network.network_federation import ROUNDS, Federation

pytestmark = pytest.mark.nightly


def test_every_round_is_in_the_tool_once(federation: Federation) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    federation.only(2, needed=2)
    federation.change(
        federation.file, "[evaluation]", "[tracking]\ntensorboard = true\n[evaluation]"
    )
    server = federation.server()
    federation.client(0)
    federation.client(1)
    federation.finish(server)
    found = EventAccumulator(str(federation.out / "tracking" / "tensorboard"))
    found.Reload()
    said = {row["round"]: row for row in federation.metrics()}
    for name in ("site-0", "site-1"):
        spent = found.Scalars(f"sites/{name}/epsilon_spent")
        assert [point.step for point in spent] == list(range(1, ROUNDS + 1))
        for point in spent:
            assert point.value == pytest.approx(said[point.step]["sites"][name]["epsilon_spent"])
    scored = [number for number, row in said.items() if row["eval_loss"] is not None]
    assert [point.step for point in found.Scalars("eval_loss")] == [0, *scored]
