"""The commands as processes of their own, without the seconds that their imports take.

They are forked from a process that has imported what is heavy. Where it is tested what a command
imports, or what a terminal's signals do, a test starts the program itself.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.network.network_processes import forking
from tests.waiting import CEILING


def command(
    *words: str,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """What a command prints and its exit code, as `subprocess.run` gives them.

    Args:
        words: the program's name and its arguments.
        folder: in which it works; default: the test's.
        environment: all of it; default: the test's.
    """
    with TemporaryDirectory() as temporary:
        outputs = Path(temporary, "out"), Path(temporary, "err")
        place = folder or Path.cwd(), dict(os.environ if environment is None else environment)
        process = forking().Process(target=_run, args=(words, *outputs, *place), daemon=True)
        process.start()
        process.join(CEILING)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(list(words), CEILING)
        texts = [path.read_text(encoding="utf-8") for path in outputs]
    return subprocess.CompletedProcess(list(words), process.exitcode, *texts)


def _run(
    words: tuple[str, ...], out: Path, err: Path, folder: Path, environment: dict[str, str]
) -> None:
    """In the new process: its place, its output, its command."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in ((1, out), (2, err)):
        with path.open("wb") as stream:
            os.dup2(stream.fileno(), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", 1)
    sys.argv = list(words)
    importlib.import_module(f"{words[0].replace('-', '_')}.cli").main()
