"""How many examples a property is tried with."""

from __future__ import annotations

import hypothesis

_USUAL = 100  # examples, where a test says nothing
_LEAST = 3


def examples(full: int) -> int:
    """So many in the slow run, and of a property that takes long a fifth in the default suite."""
    return max(_LEAST, full * hypothesis.settings.default.max_examples // _USUAL)
