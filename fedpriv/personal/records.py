"""A site's records as examples for itself alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedpriv.config.personal import PersonalSection
from fedpriv.data.encode import Example, encode_record
from fedpriv.data.held_out import VALIDATION, OwnRecords, drawn_for
from fedpriv.data.read import UNIT
from fedpriv.data.spec import DataSpec
from fedpriv.errors import DataError

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

LEAST = 2  # units of a side


def to_train_on(
    own: OwnRecords, spec: DataSpec, tokenizer: PreTrainedTokenizerBase, settings: PersonalSection
) -> tuple[list[Example], list[Example]]:
    """The examples that a site's own training learns from, and those that it stops by, if any.

    Args:
        settings: how large a share of the units it stops by.

    Raises:
        DataError: there are none of one of the two, though there should be.
    """
    units = {drawn_for(record, spec.unit, VALIDATION) for record in own.training}
    share = settings.share(len(units - {1.0}))
    parts = own_examples(own.training, spec, tokenizer, apart=share)
    if not parts[0] or (share and not parts[1]):
        raise DataError(
            f"leaves {len(parts[0])} examples to train on and {len(parts[1])} to stop by",
            key="personal.validation",
            value=share,
            fix="Choose another share. At least one unit is needed for each.",
        )
    return parts


def to_test_on(
    records: datasets.Dataset, spec: DataSpec, tokenizer: PreTrainedTokenizerBase, *, key: str
) -> list[Example]:
    """The examples of held-out records.

    Args:
        key: the setting that names them, for the message.

    Raises:
        DataError: there are none.
    """
    examples, _ = own_examples(records, spec, tokenizer)
    if not examples:
        raise DataError(
            "holds nothing to test on: no held-out record has a token to predict",
            key=key,
            fix="Choose a larger share, or name another file.",
        )
    return examples


def own_examples(
    records: Iterable[Mapping[str, Any]],
    spec: DataSpec,
    tokenizer: PreTrainedTokenizerBase,
    *,
    apart: float = 0.0,
    purpose: str = VALIDATION,
) -> tuple[list[Example], list[Example]]:
    """The examples of a site's records, at most `spec.max_records_per_unit` of each unit.

    Args:
        records: rows of `read_labelled`.
        apart: share of the units to keep apart for a purpose, and of a small site's so many that
            each side has at least `LEAST` units, or half of all.

    Returns:
        The examples of the others, and those of the units that were kept apart.

    Raises:
        DataError: the tokenizer has no usable chat template.

    Privacy:
        Private throughout, the counts too. Nothing of it leaves.
    """
    parts: tuple[list[Example], list[Example]] = [], []
    held: Counter[object] = Counter()
    records = list(records)
    drawn = [drawn_for(record, spec.unit, purpose) if apart else 1.0 for record in records]
    limit = _limit(drawn, apart)
    for row, (record, number) in enumerate(zip(records, drawn, strict=True), 1):
        owner = row if spec.unit == "record" else record[UNIT]
        examples = encode_record(record, spec, tokenizer, row=row, source="")
        examples = examples[: spec.max_records_per_unit - held[owner]]
        held[owner] += len(examples)
        parts[number < limit].extend(examples)
    return parts


def _limit(drawn: Sequence[float], share: float) -> float:
    """Below which numbers units are kept apart: the share, but where that leaves too few of either.

    Other records decide it, then. For a site's own use that is no matter (law 16).

    Args:
        drawn: of each record; records of one unit have the same one, and those without any 1.
    """
    units = sorted(number for number in set(drawn) if number < 1)
    least = min(LEAST, len(units) // 2)
    if not least:
        return share
    return min(max(share, units[least]), units[-least])
