"""How long a question for messages is held open, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fedpriv_server import long_poll
from fedpriv_server.long_poll import LongPoll

LONG = 1e3  # seconds
PATIENCE = 1.0  # seconds after which a question counts as held


@pytest.fixture(autouse=True)
def holding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_poll, "HOLD", LONG)
    monkeypatch.setattr(long_poll, "LONGEST_HOLD", LONG)


async def stays() -> None:
    await asyncio.Event().wait()


def waited(
    end: Callable[[LongPoll], None], gone: Callable[[], Awaitable[None]] = stays, nodes: int = 1
) -> None:
    """Node 0 of so many asks; it had no message, and then something happens."""
    questions = LongPoll()

    async def ask() -> None:
        for node in range(nodes):
            questions.visit(node)
            questions.answer(node)
        waiting = asyncio.create_task(questions.wait(0, gone))
        await asyncio.sleep(0)
        end(questions)
        await asyncio.wait_for(waiting, PATIENCE)

    asyncio.run(ask())


def nothing(questions: LongPoll) -> None:
    """Nothing happens."""


def test_a_message_ends_it() -> None:
    waited(lambda questions: questions.ring(0))


def test_a_message_to_another_does_not() -> None:
    with pytest.raises(TimeoutError):
        waited(lambda questions: questions.ring(1), nodes=2)


def test_whoever_hangs_up_ends_it() -> None:
    async def hangs_up() -> None:
        """Gone at once."""

    waited(nothing, hangs_up)


def test_the_end_of_the_server_ends_it() -> None:
    waited(LongPoll.close)


def test_it_is_held_longer_where_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_poll, "HOLD", 0.0)
    monkeypatch.setattr(long_poll, "QUESTIONS", 10.0)  # in a second
    waited(nothing)  # for a tenth of a second
    with pytest.raises(TimeoutError):
        waited(nothing, nodes=100)
    monkeypatch.setattr(long_poll, "LONGEST_HOLD", 0.0)
    waited(nothing, nodes=100)
