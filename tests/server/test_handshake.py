"""Handshakes that fail are told of, without filling the log."""

from __future__ import annotations

import pytest

from fedpriv_server.connections import PAUSE, Refusals


def test_a_flood_is_a_line_a_minute_with_its_count(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    refused = Refusals(clock=lambda: now)
    for index in range(1000):
        now = PAUSE * index / 400  # two minutes and a half
        refused("HTTP_REQUEST")
    refused("UNKNOWN_CA")
    assert [record.getMessage() for record in caplog.records] == [
        "1 TLS connections were refused: http request.",
        "400 TLS connections were refused: http request.",
        "400 TLS connections were refused: http request.",
        "1 TLS connections were refused: unknown ca.",
    ]
