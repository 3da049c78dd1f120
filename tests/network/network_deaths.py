"""When a fault strikes, and what a process dies of."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUND = 1  # slot, counted from 0, in which a fault strikes


def strikes(marker: Path) -> bool:
    """Whether it is this process's turn; there is only one turn."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def die(marker: Path) -> None:
    """kill -9 of this process."""
    if strikes(marker):
        os.kill(os.getpid(), signal.SIGKILL)


def around(
    owner: Any, name: str, before: Callable[..., None] | None, after: Callable[..., None] | None
) -> None:
    """Do something before or after each call of a function."""
    real = getattr(owner, name)

    def faulty(*args: Any, **options: Any) -> Any:
        if before is not None:
            before(*args, **options)
        result = real(*args, **options)
        if after is not None:
            after(*args, **options)
        return result

    setattr(owner, name, faulty)
