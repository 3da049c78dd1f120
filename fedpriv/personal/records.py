"""A site's records as examples for itself alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fedpriv.data.encode import Example, encode_record
from fedpriv.data.held_out import VALIDATION, is_apart
from fedpriv.data.read import UNIT
from fedpriv.data.spec import DataSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def own_examples(
    records: Iterable[Mapping[str, Any]],
    spec: DataSpec,
    tokenizer: PreTrainedTokenizerBase,
    *,
    validation: float = 0.0,
) -> tuple[list[Example], list[Example]]:
    """The examples of a site's records, at most `spec.max_records_per_unit` of each unit.

    Args:
        records: rows of `read_labelled`.
        validation: share of the units to keep apart.

    Returns:
        The examples to learn from, and those of the units that were kept apart.

    Raises:
        DataError: the tokenizer has no usable chat template.

    Privacy:
        Private throughout, the counts too. Nothing of it leaves.
    """
    parts: tuple[list[Example], list[Example]] = [], []
    held: Counter[object] = Counter()
    for row, record in enumerate(records, 1):
        owner = row if spec.unit == "record" else record[UNIT]
        examples = encode_record(record, spec, tokenizer, row=row, source="")
        examples = examples[: spec.max_records_per_unit - held[owner]]
        held[owner] += len(examples)
        parts[is_apart(record, spec.unit, validation, VALIDATION)].extend(examples)
    return parts
