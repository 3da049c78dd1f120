"""Waiting for states instead of times, so that no test depends on how fast a machine is."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom

CEILING = 900.0  # seconds; less than a test may take, so that what hangs says what it waits for
_OWN_PORTS = range(20_000, 32_000)  # below those that the kernel gives to whoever asks for any

# `fedpriv`, which stands still when a round is kept until a file of that number is there.
_HELD = """
import signal, sys, time
from pathlib import Path
from fedpriv.cli import main
from fedpriv.environment import set_environment

set_environment()
from fedpriv_server.run_directory import RunDirectory

signal.signal(signal.SIGINT, signal.default_int_handler)
folder, rounds, save = Path(sys.argv[1]), sys.argv[2].split(","), RunDirectory.save

def hold(self, metrics, *others):
    save(self, metrics, *others)
    while (number := str(metrics["round"])) in rounds and not (folder / number).exists():
        time.sleep(0.05)

RunDirectory.save = hold
sys.argv[:3] = ["fedpriv"]
main()
"""


def wait_until(condition: Callable[[], object], told: Callable[[], object] = lambda: "") -> None:
    """Wait until a condition holds.

    Args:
        told: what to say if it never does.
    """
    deadline = time.monotonic() + CEILING
    while not condition():
        assert time.monotonic() < deadline, f"not within {CEILING} s: {told()}"
        time.sleep(0.02)


def free_port() -> int:
    """A port of this machine that nobody else is given before it is used."""
    while True:
        with socket.socket() as found:
            try:
                found.bind(("127.0.0.1", port := SystemRandom().choice(_OWN_PORTS)))
            except OSError:
                continue
            return port


def held_fedpriv(folder: Path, *rounds: int) -> list[str]:
    """The command `fedpriv` that waits after each of these rounds, until its number is a file.

    So a test meets the run in its midst, however slow either is.
    """
    return [sys.executable, "-c", _HELD, str(folder), ",".join(map(str, rounds))]
