"""Show what is being done to people who watch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def is_watched(console: Console) -> bool:
    """Tell whether somebody would see a moving bar: on a terminal, or in a notebook."""
    return console.is_terminal or console.is_jupyter


@contextmanager
def shown_on(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done until it is done, and yield a function that shows the next step.

    If nobody watches, each step is a line.
    """
    if not is_watched(console):
        yield partial(console.print, markup=False, soft_wrap=True)
        return
    with console.status(what) as status:
        yield status.update


def telling(what: str) -> AbstractContextManager[object]:
    """Show on standard error what is being done until it is done, to people who watch."""
    from rich.console import Console

    return shown_on(Console(stderr=True), what)
