"""Logs say what went wrong and where, never what a record holds."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from fedpriv.logs import JsonFormatter, PlainFormatter


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
