"""Show an object in one line, for people in a Python session."""

from __future__ import annotations

from collections.abc import Sized
from pathlib import Path
from typing import Any

LONGEST = 200  # characters
_LONGEST_VALUE = 40


def one_line(self: Any) -> str:
    """Return an object's name and fields, for its `__repr__`. Of large values it shows the size."""
    shown = ", ".join(f"{name}={_told(value)}" for name, value in vars(self).items())
    text = f"{type(self).__name__}({shown})"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 2]}…)"


def _told(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if value is None or isinstance(value, int | str | Path):
        text = str(value) if isinstance(value, Path) else repr(value)
        return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
    kind = type(value).__name__
    return f"<{kind} of {len(value)}>" if isinstance(value, Sized) else f"<{kind}>"
