"""How long a question for messages is held open, and what ends it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable

import pytest

from fedpriv_server import long_poll
from fedpriv_server.long_poll import LongPoll

LONG = 1e3  # seconds


class Clock(selectors.DefaultSelector):
    """Time that passes where a loop would wait for it, and only there."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)

    def loop(self) -> asyncio.AbstractEventLoop:
        made = asyncio.SelectorEventLoop(self)
        made.time = lambda: self.now  # type: ignore[method-assign]
        return made


@pytest.fixture(autouse=True)
def holding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_poll, "HOLD", LONG)
    monkeypatch.setattr(long_poll, "LONGEST_HOLD", LONG)


async def stays() -> None:
    await asyncio.Event().wait()


def held(
    end: Callable[[LongPoll], None], gone: Callable[[], Awaitable[None]] = stays, nodes: int = 1
) -> float:
    """Seconds for which node 0 of so many is not answered: no message, then something happens."""
    questions, clock = LongPoll(), Clock()

    async def ask() -> None:
        for node in range(nodes):
            questions.visit(node)
            questions.answer(node)
        waiting = asyncio.create_task(questions.wait(0, gone))
        await asyncio.sleep(0)
        end(questions)
        await waiting

    with asyncio.Runner(loop_factory=clock.loop) as runner:
        runner.run(ask())
    return clock.now


def nothing(questions: LongPoll) -> None:
    """Nothing happens."""


def test_a_message_ends_it() -> None:
    assert held(lambda questions: questions.ring(0)) == 0


def test_a_message_to_another_does_not() -> None:
    assert held(lambda questions: questions.ring(1), nodes=2) == LONG


def test_whoever_hangs_up_ends_it() -> None:
    async def hangs_up() -> None:
        """Gone at once."""

    assert held(nothing, hangs_up) == 0


def test_the_end_of_the_server_ends_it() -> None:
    assert held(LongPoll.close) == 0


def test_it_is_held_longer_where_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_poll, "HOLD", 0.0)
    monkeypatch.setattr(long_poll, "QUESTIONS", 8.0)  # in a second
    assert (held(nothing), held(nothing, nodes=100)) == (0.125, 12.5)
    monkeypatch.setattr(long_poll, "LONGEST_HOLD", 0.0)
    assert held(nothing, nodes=100) == 0
