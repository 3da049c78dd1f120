"""Keep what a trial of a public model found on this machine, for the next start.

A trial depends on a model's files, public settings and random tokens, so what it found is public,
too. That it was made has to be public as well: no trial is kept that is made because of what
records hold, such as their lengths. A result is filed under all that it depends on: for another
file, setting, version or processor there is a new trial.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedpriv import __version__
from fedpriv.files import canonical_json, sha256, write_json

_MEMORY: dict[str, Any] | None = None  # by file name, in a process that writes no files
_SERVED = 0  # sites that keep in memory alone
FOLDER = "FEDPRIV_CACHE"  # names another folder than the user's; empty keeps nothing
MOST = 1_000  # trials, of some hundred bytes each; the oldest are forgotten
_LIBRARIES = ("torch", "transformers", "peft", "numpy")
# Settings of the libraries that these compute with begin so.
_SETTINGS = ("ATEN_", "CUBLAS_", "CUDNN_", "DNNL_", "MKL_", "NVIDIA_", "OMP_", "ONEDNN_")
_OF_A_PROCESSOR = (b"model name", b"flags", b"Features", b"CPU part")


def kept(of: dict[str, Any] | None, find: Callable[[], Any]) -> Any:
    """Return the value that `find` gave earlier for the same inputs, or gives now.

    A file that can't be read or written counts as missing: the trial is made again.

    Args:
        of: all that the value depends on beside what `_machine` names, as JSON. None keeps nothing.
        find: makes the trial and returns JSON. An error is raised, and not kept.
    """
    folder = _folder()
    if of is None or folder is None:
        return find()
    name = f"{sha256(canonical_json({**of, **_machine()})).rpartition(':')[2]}.json"
    file = folder / name
    if _MEMORY is not None and name in _MEMORY:
        return _MEMORY[name]
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        return json.loads(file.read_text(encoding="utf-8"))["found"]
    found = find()
    if _MEMORY is not None:
        if len(_MEMORY) < MOST:
            _MEMORY[name] = found
        return found
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(file, {**of, **_machine(), "found": found})
        for old in sorted(folder.glob("*.json"), key=lambda old: old.stat().st_mtime)[:-MOST]:
            old.unlink()
    return found


@contextmanager
def in_memory_alone() -> Iterator[None]:
    """Keep what is found in this context in memory alone.

    A server can make a site try whatever it likes. Whether a file could be written depends on the
    disk, and so on the records; the time of the next trial would tell (laws 18 and 19).
    """
    global _MEMORY, _SERVED
    _SERVED += 1  # the last of several sites in one process ends it
    if _MEMORY is None:
        _MEMORY = {}
    try:
        yield
    finally:
        _SERVED -= 1
        if not _SERVED:
            _MEMORY = None


def _folder() -> Path | None:
    if FOLDER in os.environ:
        return Path(os.environ[FOLDER]) if os.environ[FOLDER] else None
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedpriv"
    except RuntimeError:  # a user without a home
        return None


@cache
def _machine() -> dict[str, str]:
    import torch

    built = {"fedpriv": __version__} | {name: version(name) for name in _LIBRARIES}
    asked = {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)}
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    used = torch.backends.cpu.get_cpu_capability()
    return {**built, **asked, "processor": f"{_processor()} {used} {gpu}"}


def _processor() -> str:
    """Return a digest of the processor's name and of its instructions."""
    with suppress(OSError):
        first = Path("/proc/cpuinfo").read_bytes().partition(b"\n\n")[0].splitlines()
        return sha256(b"\n".join(line for line in first if line.startswith(_OF_A_PROCESSOR)))
    return ""
