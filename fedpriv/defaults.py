"""Settings that a federation file leaves out: what did best for a model of that size.

Source: the tables of docs/results.md, each with its command.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Defaults:
    """A row of the table.

    Attributes:
        parameters: of the base model, at most; None has no limit.
        epsilon: of the job, at least; the first row of a size serves all below, too.
        lr: of adamw.
        basis: what it rests on.
    """

    parameters: float | None
    epsilon: float
    clip_norm: float
    sample_rate: float
    r: int
    alpha: float
    lr: float
    basis: str


_MTSAMPLES = "clinical notes, 64 clinics"
_SST2 = "SST-2, a sentence encoder"
_LARGER = "clinical notes, 64 clinics, SmolLM2 of 135 M"
_PUBLISHED = "others' published rates, not measured here"
TABLE = (  # ascending in size, and for each size in ε
    Defaults(10e6, 1.0, 0.1, 0.2, 2, 4.0, 1.5e-2, _MTSAMPLES),
    Defaults(50e6, 6.7, 10.0, 0.05, 16, 16.0, 5e-3, _SST2),
    Defaults(300e6, 4.0, 0.1, 0.1, 2, 4.0, 1e-2, _LARGER),
    Defaults(None, 4.0, 1.0, 0.05, 16, 16.0, 1e-3, _PUBLISHED),
)
ANY_SIZE = TABLE[-1]  # of a model whose size nobody knows: a section that is made in Python
# Where each setting stands in a federation file.
KEYS = {
    "clip_norm": "privacy",
    "sample_rate": "privacy",
    "r": "lora",
    "alpha": "lora",
    "lr": "optimizer",
}


def rows_for(epsilon: float) -> list[Defaults]:
    """The rows for a job of that ε, one for each size of a model, ascending."""
    found: dict[float | None, Defaults] = {}
    for row in TABLE:
        if row.parameters not in found or row.epsilon <= epsilon:
            found[row.parameters] = row
    return list(found.values())


def defaults_for(parameters: float, epsilon: float) -> Defaults:
    """The row for a base model of so many parameters and a job of that ε."""
    rows = rows_for(epsilon)
    return next(row for row in rows if row.parameters is None or parameters <= row.parameters)
