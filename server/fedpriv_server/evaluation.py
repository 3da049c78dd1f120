"""Loss and accuracy on public or coordinator-owned records."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.config.job import JobConfig
from fedpriv.data.encode import Example
from fedpriv.data.population import load_examples
from fedpriv.data.spec import DataSpec
from fedpriv.models.vector import Vector
from fedpriv.plain_training.scores import Scores, losses_of, score
from fedpriv.privacy.mechanism.privatised import Privatised, require_privatised
from fedpriv.private_training.worker import Worker
from fedpriv_server.own_records import spec_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def evaluation_records(
    config: JobConfig, tokenizer: PreTrainedTokenizerBase, folder: Path | None = None
) -> tuple[list[Example], list[Example]]:
    """The examples to report on, and those to choose settings by: of another file, or a share.

    Args:
        folder: has a cache while they are read; by default it is where temporary files are.

    Raises:
        DataError: as `load_examples`.
    """
    wanted = config.evaluation
    share = wanted.tuning_share
    parts = [
        _examples(config, path, key, wanted.limit, tokenizer, folder, share)
        for key, path in wanted.files().items()
    ]
    reported, apart = parts[0]
    return reported, parts[1][0] if len(parts) > 1 else apart


def controller_records(
    config: JobConfig, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> list[Example]:
    """The examples by whose loss a controller is rewarded; none without any.

    Raises:
        DataError: as `load_examples`.
    """
    section = config.controller
    if section is None or section.data is None:
        return []
    key = "controller.data"
    return _examples(config, section.data, key, section.records, tokenizer, folder)[0]


def _examples(
    config: JobConfig,
    path: Path,
    key: str,
    limit: int | None,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path | None,
    share: float = 0.0,
) -> tuple[list[Example], list[Example]]:
    spec = evaluation_spec(config)
    with tempfile.TemporaryDirectory(dir=folder, prefix="cache-") as cache:
        return load_examples(
            path,
            spec,
            tokenizer,
            cache_dir=Path(cache),
            key=key,
            limit=limit,
            tuning_share=share,
        )


def evaluation_spec(config: JobConfig) -> DataSpec:
    """How public records are read: as those of the sites, each by itself."""
    return replace(spec_of(config), unit="record")


def evaluate(worker: Worker, examples: Sequence[Example], vector: Privatised[Vector]) -> Scores:
    """Score the model with `vector` on public examples.

    Raises:
        RawValueError: the vector is raw.

    Privacy:
        Never called with private records: their loss would be a release of its own.
    """
    return score(worker, examples, require_privatised(vector, "vector"))


def hardest_of(
    worker: Worker, examples: Sequence[Example], share: float, vector: Privatised[Vector]
) -> list[Example]:
    """The share of public examples that has the largest losses with `vector`, none at a share of 0.

    Raises:
        RawValueError: the vector is raw.
    """
    values = require_privatised(vector, "vector")
    if not share:
        return []
    losses = losses_of(worker, examples, values)
    worst = losses.argsort(descending=True)[: math.ceil(share * len(examples))]
    return [examples[i] for i in sorted(worst.tolist())]


def scores(
    worker: Worker,
    vector: Privatised[Vector],
    reported: Sequence[Example],
    tuning: Sequence[Example],
    hardest: Sequence[Example] = (),
) -> dict[str, float]:
    """The scores on the examples that are reported, and the loss on those to choose settings by.

    Args:
        hardest: of those that are reported, see `hardest_of`.

    Raises:
        RawValueError: the vector is raw.
    """
    found = evaluate(worker, reported, vector).as_dict()
    if hardest:
        found["eval_hardest"] = evaluate(worker, hardest, vector).eval_loss
    if tuning:
        found["tuning_loss"] = evaluate(worker, tuning, vector).eval_loss
    return found
