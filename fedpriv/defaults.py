"""Defaults for a federation file: the settings that did best for a model's task and size.

Source: docs/results/defaults.md, which says what each row rests on.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedpriv.privacy.usual import clip_norm_of


@dataclass(frozen=True)
class Defaults:
    """A row of the table.

    Attributes:
        labels: whether the model is a classifier.
        parameters: the most parameters of the base model; None has no limit.
        epsilon: the least ε of the job. The first row of a size also serves every smaller ε.
        lr: the learning rate of adamw.
        basis: the evidence for the row.
    """

    labels: bool
    parameters: float | None
    epsilon: float
    sample_rate: float
    r: int
    alpha: float
    lr: float
    basis: str

    @property
    def clip_norm(self) -> float:
        """Return C, which depends on the task alone."""
        return clip_norm_of(self.labels)


_MTSAMPLES = "clinical notes, 64 clinics"
_DEPARTMENTS = "departments of clinical notes, three hospitals"
_SST2 = "SST-2, a sentence encoder"
_LARGER = "clinical notes, 64 clinics, SmolLM2 of 135 M"
_PUBLISHED = "others' published rates, not measured here"
TABLE = (  # for each task ascending in size, and for each size in ε
    Defaults(False, 10e6, 1.0, 0.2, 2, 4.0, 1.5e-2, _MTSAMPLES),
    Defaults(False, 300e6, 4.0, 0.1, 2, 4.0, 1e-2, _LARGER),
    Defaults(False, None, 4.0, 0.05, 16, 16.0, 1e-3, _PUBLISHED),  # for sections made in Python
    Defaults(True, 10e6, 8.0, 0.2, 2, 4.0, 5e-3, _DEPARTMENTS),
    Defaults(True, 50e6, 6.7, 0.05, 16, 16.0, 5e-3, _SST2),
    Defaults(True, None, 4.0, 0.05, 16, 16.0, 1e-3, _PUBLISHED),
)
# Where each setting stands in a federation file.
KEYS = {
    "clip_norm": "privacy",
    "sample_rate": "privacy",
    "r": "lora",
    "alpha": "lora",
    "lr": "optimizer",
}


def rows_for(epsilon: float) -> list[Defaults]:
    """Return the rows for a job of this ε, in order: one for each task and size of a model."""
    found: dict[tuple[bool, float | None], Defaults] = {}
    for row in TABLE:
        if (row.labels, row.parameters) not in found or row.epsilon <= epsilon:
            found[row.labels, row.parameters] = row
    return list(found.values())


def defaults_for(labels: bool, parameters: float, epsilon: float) -> Defaults:
    """Return the row for a base model with this number of parameters and a job of this ε."""
    rows = [row for row in rows_for(epsilon) if row.labels == labels]
    return next(row for row in rows if row.parameters is None or parameters <= row.parameters)
