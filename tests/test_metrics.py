"""Figures for Prometheus: what is given and no more, to this machine alone."""

from __future__ import annotations

import socket
from urllib.request import urlopen

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fedpriv.errors import ConfigError
from fedpriv.metrics import HOST, Figure, metrics_service, registry_of
from tests.waiting import free_port

ROUND = Figure("some_round", "Rounds.")
SITES = Figure("some_sites", "Sites.", ("site",))
PAID = Figure("some_paid_total", "Slots.", (), True)
GIVEN = {ROUND: [((), 3.0)], SITES: [(("a",), 1.0), (("b",), 0.0)], PAID: [((), 7.0)]}
SAMPLES = {
    ("some_round", ""): 3.0,
    ("some_sites", "a"): 1.0,
    ("some_sites", "b"): 0.0,
    ("some_paid_total", ""): 7.0,
}


def samples(text: str) -> dict[tuple[str, str], float]:
    """What an exposition says: name and value of the label → value."""
    return {
        (one.name, "".join(one.labels.values())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_the_figures_that_are_given_are_served_and_nothing_of_the_machine() -> None:
    text = generate_latest(registry_of(lambda: GIVEN)).decode()
    assert samples(text) == SAMPLES
    assert "process_" not in text and "python_" not in text and "_created" not in text


def test_they_are_served_while_the_context_lasts_and_only_to_this_machine() -> None:
    port = free_port()
    with metrics_service(port, "site.metrics_port", lambda: GIVEN):
        with urlopen(f"http://{HOST}:{port}/metrics") as answer:
            assert samples(answer.read().decode()) == SAMPLES
        with socket.socket() as other:  # were it bound to all addresses, this would be in use
            other.bind(("127.0.0.2", port))
    with socket.socket() as free:
        assert free.connect_ex((HOST, port)) != 0


def test_without_a_port_nothing_is_asked_for() -> None:
    with metrics_service(None, "site.metrics_port", lambda: pytest.fail("looked")):
        pass


def test_a_port_that_is_in_use_is_named() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        refused = pytest.raises(ConfigError, match=rf"site\.metrics_port: can't .* \(got {port}\)")
        with refused, metrics_service(port, "site.metrics_port", lambda: GIVEN):
            pass
