"""Kinds of values that tables of files and bodies of messages have in common."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


def _has_a_port(address: str) -> str:
    if int(address.rpartition(":")[2]) > MAX_PORT:
        raise ValueError(f"expected a port of at most {MAX_PORT}")
    return address


MAX_PORT = 65535
HOST_PORT = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}"
ADDRESS_OR_AUTO = rf"^(auto|{HOST_PORT})$"
Address = Annotated[
    str,
    Field(pattern=rf"^{HOST_PORT}$"),
    AfterValidator(_has_a_port),
]
Port = Annotated[int, Field(ge=1, le=MAX_PORT)]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Wire = Literal["float32", "bf16", "int8"]
Share = Annotated[float, Field(gt=0, lt=1)]
METRICS = (
    "The port at which this machine, and no other, is told public figures of the process in the"
    " format of Prometheus. Without it, nobody is."
)
MAX_JOB_STEPS = 100_000
MAX_SEED = 2**63 - 1


def seconds(duration: str) -> float:
    """Seconds of a duration such as ``"90s"``, ``"10m"`` or ``"2h"``.

    Raises:
        ValueError: it is not a number followed by s, m or h.
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh])", duration)
    if match is None or float(match[1]) == 0:
        raise ValueError("expected a positive number followed by s, m or h, such as 10m")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]
