"""Loss and accuracy on public or coordinator-owned records."""

from __future__ import annotations

import logging
import math
import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.config.job import JobConfig
from fedpriv.config.sources import Source, where
from fedpriv.data.encode import Example, check_chat_template, encode_record
from fedpriv.data.identity import whole_record
from fedpriv.data.read import read_records
from fedpriv.data.spec import DataSpec
from fedpriv.errors import DataError
from fedpriv.models.vector import Vector
from fedpriv.plain_training.scores import Scores, one_label, score
from fedpriv.privacy.mechanism.privatised import Privatised, require_privatised
from fedpriv.private_training.worker import Worker
from fedpriv_server.own_records import spec_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)


def evaluation_records(
    config: JobConfig, tokenizer: PreTrainedTokenizerBase, folder: Path | None = None
) -> tuple[list[Example], list[Example]]:
    """Load the examples to report on, and those to choose settings by (another file, or a share).

    Args:
        folder: where a cache is kept during reading; by default, the folder for temporary files.

    Raises:
        DataError: as in `load_examples`.
    """
    wanted, spec = config.evaluation, evaluation_spec(config)
    (reported, apart), *others = (
        load_examples(path, spec, tokenizer, key, wanted.limit, folder, wanted.tuning_share)
        for key, path in wanted.files().items()
    )
    return reported, others[0][0] if others else apart


def load_examples(
    source: Source,
    spec: DataSpec,
    tokenizer: PreTrainedTokenizerBase,
    key: str,
    limit: int | None,
    folder: Path | None,
    tuning_share: float = 0.0,
) -> tuple[list[Example], list[Example]]:
    """Load public evaluation records as flat lists of examples; ``spec.unit`` plays no part.

    Args:
        key: the setting that names the records, for messages.
        limit: how many records to use, from the first on.
        folder: see `evaluation_records`.
        tuning_share: share of the records to set apart, drawn the same way every time.

    Returns:
        The examples to report on, and those of the records that were set apart.

    Raises:
        DataError: as in `read_records` and `encode_record`, or one of the wanted parts has no
            token to predict.
    """
    if "messages" in spec.columns:
        check_chat_template(tokenizer)
    reported: list[Example] = []
    tuning: list[Example] = []
    with tempfile.TemporaryDirectory(dir=folder, prefix="cache-") as cache:
        records = read_records(source, spec.columns, unit="record", cache_dir=Path(cache), key=key)
        if limit is not None:
            records = records.select(range(min(limit, len(records))))
        # A share of the public rows, by their numbers from 1, drawn with a generator of their own.
        rows, share = range(1, len(records) + 1), math.ceil(tuning_share * len(records))
        apart = set(random.Random(len(records)).sample(rows, share))
        first: dict[bytes, int] = {}  # copies of a text go where the first of them goes
        for row, record in enumerate(records, 1):
            examples = encode_record(record, spec, tokenizer, row=row, source=where(source))
            is_apart = first.setdefault(whole_record(record), row) in apart
            (tuning if is_apart else reported).extend(examples)
    if not reported or (tuning_share and not tuning):
        raise DataError(
            "has nothing to evaluate: no record has a token to predict",
            file=where(source),
            key=key,
            fix="Check the columns, and that the texts are not empty.",
        )
    for said in one_label(reported, spec.labels):
        log.warning("%s, the first %d records of %s: %s", key, len(rows), where(source), said)
    return reported, tuning


def evaluation_spec(config: JobConfig) -> DataSpec:
    """Return how public records are read: as the sites' records, but each a unit by itself."""
    return replace(spec_of(config), unit="record")


def evaluate(worker: Worker, examples: Sequence[Example], vector: Privatised[Vector]) -> Scores:
    """Score the model with `vector` on public examples.

    Raises:
        RawValueError: the vector is raw.

    Privacy:
        Never called with private records: their loss would be a release of its own.
    """
    return score(worker, examples, require_privatised(vector, "vector"))


def scores(
    worker: Worker,
    vector: Privatised[Vector],
    reported: Sequence[Example],
    tuning: Sequence[Example],
) -> dict[str, float]:
    """Return the scores on the reported examples, and the loss on those to choose settings by.

    Raises:
        RawValueError: the vector is raw.
    """
    found = evaluate(worker, reported, vector).as_dict()
    if tuning:
        found["tuning_loss"] = evaluate(worker, tuning, vector).eval_loss
    return found
