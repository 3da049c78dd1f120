"""Define how records become examples, by public settings only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedpriv.config.task import Task
    from fedpriv.models.config import ModelSection


@dataclass(frozen=True)
class DataSpec:
    """The public settings of preparation; nothing here may be learned from records.

    Args:
        columns: field (text, label, prompt, completion, messages) → column of the files.
        task: what the model is trained for.
        labels: class names, in the order of the model's outputs; empty for causal-lm.
        max_length: most tokens of an example.
        unit: ``record``, or the id column whose rows are protected together.
        max_records_per_unit: most examples a unit may hold.
    """

    columns: Mapping[str, str]
    task: Task
    labels: tuple[str, ...]
    max_length: int
    unit: str
    max_records_per_unit: int

    @classmethod
    def of(
        cls,
        columns: Mapping[str, str],
        model: ModelSection,
        *,
        unit: str = "record",
        max_records_per_unit: int,
    ) -> DataSpec:
        """Return the preparation for a model of a job."""
        return cls(columns, model.task, model.labels, model.max_length, unit, max_records_per_unit)
