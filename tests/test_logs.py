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
