"""Who is sent a finished job's adapter, and what a server makes of the answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.privacy.config import PrivacySection
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.protocol import FAILED, Body, Handover, Proposal, Received, values_digest
from fedpriv.wire import Blocks
from fedpriv_server.owed import hand_over
from fedpriv_simulation.inline import InlineGrid

ANY = "sha256:" + "0" * 64
PROPOSAL = Proposal(
    job_id="job-1",
    method="dp-lora",
    steps=4,
    seed=0,
    fields=("text",),
    model=ModelSection(),
    lora=LoraSection(),
    privacy=PrivacySection(),
    base_digest=ANY,
    vector_digest=ANY,
)
VECTOR = np.linspace(-1, 1, 300, dtype=np.float32)


def handed(grid: InlineGrid, vector: Any, *sites: str, released: tuple[str, ...]) -> list[str]:
    names = {node: site for node, site in enumerate(sites, 2) if site in released}
    return hand_over(grid, names, PROPOSAL, vector)


def answering(answer: Callable[[], Body], seen: list[Message]) -> ClientApp:
    app = ClientApp()

    @app.query("adapter")
    def adapter(message: Message, context: Context) -> Message:
        seen.append(message)
        body = ConfigRecord({"body": answer().model_dump_json()})
        return Message(RecordDict({"fedpriv": body}), reply_to=message)

    return app


def test_who_released_something_gets_the_values_with_their_digest() -> None:
    seen: dict[str, list[Message]] = {"a": [], "b": []}
    apps = {node: answering(Received, seen[name]) for node, name in ((2, "a"), (3, "b"))}
    with InlineGrid(apps, 1) as grid:
        assert handed(grid, public(VECTOR), "a", "b", released=("a",)) == []
    assert (len(seen["a"]), len(seen["b"])) == (1, 0)
    [message] = seen["a"]
    body = Handover.parse(message.content["fedpriv"]["body"])
    assert (body.proposal, body.values_digest) == (PROPOSAL, values_digest(VECTOR))
    arrays = message.content.array_records["arrays"]
    found = Blocks(lambda name: arrays[name].data, arrays.keys(), VECTOR.size, "float32").vector()
    assert np.array_equal(found, VECTOR)


def fail() -> Body:
    raise ValueError


@pytest.mark.parametrize("answer", [lambda: FAILED, fail, lambda: PROPOSAL])
def test_who_says_something_else_is_named_and_the_job_is_finished(
    answer: Callable[[], Body], caplog: pytest.LogCaptureFixture
) -> None:
    apps = {2: answering(Received, []), 3: answering(answer, [])}
    with InlineGrid(apps, 1) as grid:
        assert handed(grid, public(VECTOR), "a", "b", released=("a", "b")) == ["b"]
    assert "Site b did not take the adapter" in caplog.text


def test_raw_values_are_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    seen: list[Message] = []
    with InlineGrid({2: answering(Received, seen)}, 1) as grid:
        assert handed(grid, VECTOR, "a", released=("a",)) == ["a"]
    assert not seen
    assert "was not handed over" in caplog.text


def test_nobody_there_is_no_fault() -> None:
    with InlineGrid({}, 1) as grid:
        assert handed(grid, public(VECTOR), "a", released=("a",)) == ["a"]
        assert handed(grid, public(VECTOR), "a", released=()) == []
