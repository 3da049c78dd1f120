"""Logs say what went wrong and where, never what a record holds."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from typing import Any

import pytest

from fedpriv import logs
from fedpriv.logs import JsonFormatter, PacedHandler, PlainFormatter


def _record() -> logging.LogRecord:
    try:
        {}["Mrs Miller, born 1961"]
    except KeyError:
        return logging.LogRecord(
            "fedpriv_client",
            logging.ERROR,
            __file__,
            1,
            "Failed: %s",
            ("KeyError",),
            sys.exc_info(),
        )


@pytest.mark.parametrize("formatter", [PlainFormatter(), JsonFormatter()])
def test_the_text_of_an_exception_is_left_out(formatter: Any) -> None:
    text = formatter.format(_record())
    assert "Miller" not in text
    assert "Failed: KeyError" in text
    assert "test_logs.py" in text


def test_a_line_of_json_is_an_object() -> None:
    entry = json.loads(JsonFormatter().format(_record()))
    assert entry["level"] == "error"
    assert entry["logger"] == "fedpriv_client"
    assert entry["trace"].endswith("KeyError")


@pytest.mark.parametrize("formatter", [PlainFormatter(), JsonFormatter()])
def test_what_another_machine_sent_makes_no_line_of_its_own(formatter: Any) -> None:
    sent = "x.\n2026-01-01T00:00:00 INFO Connected.\x1b[2J\u2028\r" + "y" * 5000
    record = logging.LogRecord("fedpriv", logging.INFO, __file__, 1, "Site: %s", (sent,), None)
    text = formatter.format(record)
    assert text.isprintable()
    assert len(text) < 1200


@pytest.mark.parametrize("formatter", [PlainFormatter(), JsonFormatter()])
def test_whatever_is_sent_a_paced_log_grows_by_so_many_bytes_a_day(formatter: Any) -> None:
    """Or a server fills a disk with lines, of which each costs it one refused message."""
    stream, now = io.StringIO(), [0.0]
    handler = PacedHandler(stream, burst=5_000, pace=10.0, clock=lambda: now[0])
    handler.setFormatter(formatter)
    sent = ["short", "y" * 900, "\U0001f4a5" * 5_000, "\x1b" * 5_000]
    for number in range(1_000):
        now[0] += 1
        text = f"{number}: {sent[number % 4]}"
        handler.handle(logging.LogRecord("fedpriv", logging.ERROR, __file__, 1, text, (), None))
    written = stream.getvalue()
    assert 10_000 < len(written.encode()) <= 5_000 + 10 * 1_000
    assert "lines were left out" in written
    lines = written.count("\n")
    told = sum(int(found) for found in re.findall(r"(\d+) lines were left out", written))
    assert lines < 400 < told < 1_000


def test_what_a_site_logs_is_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    before = logging.getLogger().handlers[:]
    try:
        logs.configure(as_json=False, paced=True)
        [handler] = logging.getLogger().handlers
        assert type(handler) is PacedHandler
    finally:
        logging.getLogger().handlers[:] = before


def test_a_trace_is_not_longer_than_somebody_reads() -> None:
    def deeper(left: int) -> None:
        if left:
            deeper(left - 1)
        raise RuntimeError

    with pytest.raises(RuntimeError) as found:
        deeper(400)
    assert logs.discreet(found.value).count("\n") == 50
