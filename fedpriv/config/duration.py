"""A duration, as a person writes it."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator


def seconds(duration: str) -> float:
    """Return the seconds of a duration such as ``"90s"``, ``"10m"`` or ``"2h"``.

    Raises:
        ValueError: it is not a number followed by s, m or h.
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh])", duration)
    if match is None or float(match[1]) == 0:
        raise ValueError("expected a positive number followed by s, m or h, such as 10m")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def _checked(duration: str) -> str:
    seconds(duration)
    return duration


Duration = Annotated[str, AfterValidator(_checked)]
