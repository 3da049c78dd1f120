"""Types of values that both files and messages use."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME)]


def has_a_port(address: str) -> str:
    """Return the host:port; raise ValueError if its port is too large."""
    if int(address.rpartition(":")[2]) > MAX_PORT:
        raise ValueError(f"expected a port of at most {MAX_PORT}")
    return address


MAX_PORT = 65535
HOST_PORT = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}"
Address = Annotated[str, Field(pattern=rf"^{HOST_PORT}$"), AfterValidator(has_a_port)]
Port = Annotated[int, Field(ge=1, le=MAX_PORT)]
DIGEST = r"^sha256:[0-9a-f]{64}$"
Digest = Annotated[str, Field(pattern=DIGEST)]
Wire = Literal["float32", "bf16", "int8"]
OwnKind = Literal["alone", "again", "personal", "single"]  # what a site trains for itself
OWN_KINDS: tuple[OwnKind, ...] = get_args(OwnKind)
Share = Annotated[float, Field(gt=0, lt=1)]
Unit = Annotated[
    str,
    Field(
        min_length=1,
        max_length=256,
        description="What is protected: each record (record), or all records with the same value in"
        " the id column named here, such as a patient number.",
    ),
]
RecordsPerUnit = Annotated[
    int, Field(ge=1, description="Most records, or windows of a long text, per unit.")
]
METRICS = (
    "Port for the process's public figures in Prometheus format, open to this machine only."
    " Without it, none."
)
MAX_JOB_STEPS = 100_000
MAX_SEED = 2**63 - 1
