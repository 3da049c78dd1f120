from __future__ import annotations

import pytest

from fedpriv.config.duration import seconds


@pytest.mark.parametrize(("text", "value"), [("30s", 30), ("10m", 600), ("1.5h", 5400)])
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["0s", "10", "m", "-3s", "3 m", ""])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="such as 10m"):
        seconds(text)
