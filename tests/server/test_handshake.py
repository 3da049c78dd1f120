"""Handshakes that fail are told of, without filling the log."""

from __future__ import annotations

import ssl

import pytest

from fedpriv_server import connections


def test_a_reason_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    connections.watch(context)
    now = 0.0
    monkeypatch.setattr(connections.time, "monotonic", lambda: now)
    for second in range(100):
        now = float(second)
        said = ssl.MemoryBIO()
        said.write(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(ssl.SSLError):
            context.wrap_bio(said, ssl.MemoryBIO(), server_side=True).do_handshake()
    refused = "TLS connections are refused: http request."
    assert [record.getMessage() for record in caplog.records] == [refused, refused]
