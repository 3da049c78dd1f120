"""What a machine has too little of, in one sentence before a run begins."""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path

from fedpriv import cores
from fedpriv.doctor.memory import available
from fedpriv.errors import ConfigError

_PROCESSORS = Path("/proc/cpuinfo")


def scarcity(needed: int) -> str | None:
    """Say in one sentence what makes a run slow here or may end it; None where nothing does.

    It reads what the system says of itself and imports no torch, so that it can be said first.

    Args:
        needed: bytes of memory that the run takes at its peak.
    """
    found, free = [], needed
    with suppress(ConfigError):
        free = available()
    if free < needed:
        found.append(
            f"only {free / 1e9:.1f} GB of memory are free, and the run takes {needed / 1e9:.1f} GB,"
            " so the system may end it"
        )
    if cores.usable() == 1:
        found.append("it has one core to give, and the run takes about twice as long as on two")
    if not _has_avx2():
        found.append("its processor has no AVX2, which fast arithmetic needs")
    return f"This machine is small for it: {'; '.join(found)}." if found else None


def _has_avx2() -> bool:
    """Tell whether the processor has what PyTorch's fast loops need; true if it can't be told.

    Only x86 has these instructions under this name.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    try:
        lines = _PROCESSORS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return True
    flags = next((line for line in lines if line.startswith("flags")), None)
    return flags is None or "avx2" in flags.split()
