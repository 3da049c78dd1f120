"""Whether somebody watches."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def is_watched(console: Console) -> bool:
    """Whether a bar that moves would be seen: on a terminal, or in a notebook."""
    return console.is_terminal or console.is_jupyter
