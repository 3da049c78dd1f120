"""Who counts as there."""

from __future__ import annotations

from fedpriv_server.long_poll import Presence


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_who_waits_is_there_however_long() -> None:
    clock = Clock()
    presence = Presence(10.0, clock)
    with presence.waiting(1):
        clock.now += 1000
        assert presence.is_there(1)
    assert presence.is_there(1)  # its last word was just now
    clock.now += 10
    assert not presence.is_there(1)


def test_who_was_never_heard_of_is_not_there() -> None:
    assert not Presence().is_there(1)


def test_who_says_goodbye_is_gone_at_once() -> None:
    presence = Presence()
    presence.heard(1)
    presence.forget(1)
    assert not presence.is_there(1)


def test_two_requests_of_one_node_are_both_counted() -> None:
    clock = Clock()
    presence = Presence(10.0, clock)
    with presence.waiting(1):
        with presence.waiting(1):
            pass
        clock.now += 60
        assert presence.is_there(1)
