"""Real processes of the real commands, with a fault in them where a test wants one.

They are forked from a process that has imported what is heavy, so that starting one takes no
seconds. A fault is a name of `faults.py`; it strikes once, wherever its marker is not yet.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.waiting import CEILING

HEAVY = [  # what commands import
    "torch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.bert.modeling_bert",
    "transformers.models.llama.modeling_llama",
    "peft",
    "datasets.packaged_modules.generator.generator",
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "scipy.io",
    "sqlalchemy.dialects.sqlite",
    "fedpriv.cli",
    "fedpriv.methods.dp_lora",
    "fedpriv.models.pooled",
    "fedpriv.report.curves",
    "fedpriv_client.app",
    "fedpriv_client.cli",
    "fedpriv_client.serve",
    "fedpriv_client.settings",
    "fedpriv_server.cli",
    "fedpriv_server.lasting",
]
KILLED = -signal.SIGKILL  # exit code
_SETTINGS = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def forking() -> Any:
    """The context that processes are made in."""
    os.environ.update(_SETTINGS)
    from fedpriv.environment import set_environment

    set_environment()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(HEAVY)
    return context


class Command:
    """A running `fedpriv-server` or `fedpriv-client`.

    Args:
        namespace: of the network that it is in; default: the test's.
        folder: in which it works; default: the test's.
        environment: what is set there, beside what the test has.

    Attributes:
        log: what it writes.
    """

    def __init__(
        self,
        context: Any,
        arguments: list[str],
        log: Path,
        *,
        fault: str = "",
        marker: Path | None = None,
        namespace: Path | None = None,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        place = (folder or Path.cwd(), dict(environment or {}))
        self._process = context.Process(
            target=_run,
            args=(arguments, log, fault, str(marker or ""), namespace, *place),
            daemon=True,
        )
        self._process.start()

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    @property
    def code(self) -> int | None:
        """Its exit code; minus the signal that killed it; None while it runs."""
        code = self._process.exitcode
        return None if code is None else int(code)

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8") if self.log.exists() else ""

    def wait(self) -> int:
        """Wait for its end; gives its code."""
        self._process.join(CEILING)
        code = self.code
        assert code is not None, f"still running after {CEILING} s:\n{self.text}"
        return code

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.join()

    def signal(self, number: signal.Signals) -> None:
        """Ask it to end, by SIGTERM or SIGINT."""
        os.kill(self.pid, number)

    def suspend(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def _run(
    arguments: list[str],
    log: Path,
    fault: str,
    marker: str,
    namespace: Path | None,
    folder: Path,
    environment: dict[str, str],
) -> None:
    """In the new process: its output, its fault, its command."""
    os.chdir(folder)
    os.environ.update(environment)
    with log.open("a", encoding="utf-8") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)
    if namespace is not None:
        _enter(namespace)
    sys.argv = arguments
    import torch

    torch.set_num_threads(1)
    if fault:
        from tests.network import network_faults

        network_faults.plant(fault, Path(marker))
    match arguments[0]:
        case "fedpriv":
            from fedpriv.cli import main
        case "fedpriv-server":
            from fedpriv_server.cli import main
        case "fedpriv-client":
            from fedpriv_client.cli import main
    main()


def _enter(namespace: Path) -> None:
    """Be in another network; for the only thread there is yet, and those it will start."""
    libc, clone_newnet = ctypes.CDLL(None, use_errno=True), 0x40000000
    with namespace.open("rb") as stream:
        if libc.setns(stream.fileno(), clone_newnet):
            raise OSError(ctypes.get_errno(), "setns")
