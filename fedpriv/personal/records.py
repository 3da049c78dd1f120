"""Prepare a site's records as examples for the site alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpriv.config.personal import MANY, PersonalSection
from fedpriv.data.encode import Example, encode_record
from fedpriv.data.held_out import VALIDATION, OwnRecords, drawn_for
from fedpriv.data.read import UNIT
from fedpriv.data.spec import DataSpec
from fedpriv.errors import DataError

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class OwnParts:
    """The examples that a site's own training learns from, in parts with about as many units each.

    Attributes:
        parts: all examples. Each unit's examples are in one part.
        left_out: how many of the parts are left out, one at a time, to choose settings; 0 for none.
    """

    parts: tuple[list[Example], ...]
    left_out: int

    @property
    def everything(self) -> list[Example]:
        """Return all examples."""
        return [example for part in self.parts for example in part]

    def without(self, index: int) -> list[Example]:
        """Return all examples but those of one part."""
        parts = self.parts[:index] + self.parts[index + 1 :]
        return [example for part in parts for example in part]


def to_train_on(
    own: OwnRecords, spec: DataSpec, tokenizer: PreTrainedTokenizerBase, settings: PersonalSection
) -> OwnParts:
    """Return the examples that a site's own training learns from.

    Args:
        settings: how large a share of the units is left out at a time.

    Raises:
        DataError: there are no examples, or too few units to leave any out.
    """
    count = round(1 / settings.validation) if settings.validation else 1
    units = len({drawn_for(record, spec.unit, VALIDATION) for record in own.training} - {1.0})
    parts = own_examples(own.training, spec, tokenizer, parts=count)
    filled = tuple(part for part in parts if part)
    if len(filled) < min(count, 2):
        left = f"{len(filled)} of {count} parts, and choosing settings takes two"
        problem = f"leaves records with a token to predict in {left}"
        fix = "Such a site needs more units. Or set validation = 0, with one rate and epochs."
        key, value = "personal.validation", settings.validation
        raise DataError(problem, key=key, value=value, fix=fix)
    if count == 1:
        return OwnParts(filled, 0)
    return OwnParts(filled, 1 if units >= MANY else len(filled))


def to_test_on(
    records: datasets.Dataset, spec: DataSpec, tokenizer: PreTrainedTokenizerBase, *, key: str
) -> tuple[list[Example], list[int]]:
    """Return the examples of held-out records, and the unit of each.

    Args:
        key: the setting that names the records, for the message.

    Raises:
        DataError: there are no examples.
    """
    units: dict[object, list[Mapping[str, Any]]] = {}
    for row, record in enumerate(records):
        units.setdefault(row if spec.unit == "record" else record[UNIT], []).append(record)
    examples: list[Example] = []
    numbers: list[int] = []
    for number, unit in enumerate(units.values()):
        (found,) = own_examples(unit, spec, tokenizer)
        examples += found
        numbers += [number] * len(found)
    if not examples:
        problem = "holds nothing to test on: no held-out record has a token to predict"
        raise DataError(problem, key=key, fix="Choose a larger share, or name another file.")
    return examples, numbers


def own_examples(
    records: Iterable[Mapping[str, Any]],
    spec: DataSpec,
    tokenizer: PreTrainedTokenizerBase,
    *,
    parts: int = 1,
    purpose: str = VALIDATION,
) -> list[list[Example]]:
    """Return the examples of a site's records, at most `spec.max_records_per_unit` of each unit.

    Args:
        records: rows of `read_labelled`.
        parts: the number of parts to share out the units among, about equally.
        purpose: parts of different purposes are independent of each other.

    Returns:
        The examples of each part, all of a unit in one part. Other records decide which part, and
        for a site's own use that does not matter (law 16).

    Raises:
        DataError: the tokenizer has no usable chat template.

    Privacy:
        Private throughout, the counts too. Nothing of it leaves.
    """
    found: list[list[Example]] = [[] for _ in range(parts)]
    held: Counter[object] = Counter()
    records = list(records)
    drawn = [drawn_for(record, spec.unit, purpose) if parts > 1 else 1.0 for record in records]
    labels: dict[float, str] = {}  # each part gets about the same share of each label
    for record, number in zip(records, drawn, strict=True):
        labels.setdefault(number, str(record.get("label")))
    order = sorted(labels, key=lambda number: (labels[number], number))
    place = {number: rank % parts for rank, number in enumerate(order)}
    for row, (record, number) in enumerate(zip(records, drawn, strict=True), 1):
        owner = row if spec.unit == "record" else record[UNIT]
        examples = encode_record(record, spec, tokenizer, row=row, source="")
        examples = examples[: spec.max_records_per_unit - held[owner]]
        held[owner] += len(examples)
        found[place[number]].extend(examples)
    return found
