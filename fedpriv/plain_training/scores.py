"""How good a model is on records: loss, accuracy, area under the curve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.data.batch import Batch, buckets
from fedpriv.data.encode import Example
from fedpriv.models.vector import Vector
from fedpriv.private_training.record_loss import record_sums
from fedpriv.private_training.unit_sum import chunks
from fedpriv.private_training.worker import Worker

BATCH = 32
Numbers = NDArray[np.float64]
Logits = Callable[[Batch], torch.Tensor]  # (B, T, V), or (B, classes) of a classifier
Answers = Callable[[Batch], Iterable[tuple[str, torch.Tensor]]]  # of several models, by name


@dataclass(frozen=True)
class Scores:
    """Hold how good a model is.

    Attributes:
        eval_loss: mean over the target tokens, or over the records of a classifier.
        eval_accuracy: share of next tokens or records that the model has right.
        eval_auc: area under the ROC curve of the second label. Only with two labels that both occur
            in the records.
    """

    eval_loss: float
    eval_accuracy: float
    eval_auc: float | None = None

    def as_dict(self) -> dict[str, float]:
        """Return the scores that were computed, by name."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, eq=False)
class Scored:
    """Hold scores with the figures that they are made of.

    Attributes:
        losses: sum of each record's losses, (N,) float64.
        targets: number of each record's losses, (N,) float64.
    """

    scores: Scores
    losses: Numbers
    targets: Numbers

    @property
    def means(self) -> Numbers:
        """Return the mean of each record's losses, (N,)."""
        return self.losses / np.maximum(1, self.targets)


def score(worker: Worker, examples: Sequence[Example], parameters: Vector) -> Scores:
    """Score a model with these trained values (P,) on records, at least one.

    Privacy:
        As confidential as the records and the values. With a site's own records, or with values
        that were not released, it never leaves the site.
    """
    return scored(worker, examples, parameters).scores


def scored(worker: Worker, examples: Sequence[Example], parameters: Vector) -> Scored:
    """Score a model as `score` does, and return the figures of each record, too."""
    worker.vector.write(parameters)
    return score_each(worker, examples, lambda batch: [("", logits_of(worker, batch))])[""]


@torch.inference_mode()
def score_each(
    worker: Worker, examples: Sequence[Example], answers: Answers, *, at_once: int = BATCH
) -> dict[str, Scored]:
    """Score several models that answer the same batches, by their names.

    Args:
        examples: at least one.
        at_once: records of a batch.

    Privacy:
        As for `score`.
    """
    binary = len(worker.recipe.model.labels) == 2
    figures: dict[str, torch.Tensor] = {}  # losses, targets, right ones, ranks: (4, N)
    for length, members in buckets(examples, worker.recipe.model.max_length).items():
        for part in chunks(members, at_once):
            batch = worker.batch([examples[i] for i in part], length)
            for name, logits in answers(batch):
                ranks = logits[:, -1] - logits[:, 0] if binary else torch.zeros(len(part))
                found = [*record_sums(logits, batch.labels), ranks]
                rows = figures.setdefault(name, torch.zeros(4, len(examples), dtype=torch.float64))
                rows[:, part] = torch.stack([one.double().cpu() for one in found])
    truth = torch.tensor([example.labels for example in examples]) if binary else None
    return {name: _scored(rows, truth) for name, rows in figures.items()}


def _scored(figures: torch.Tensor, truth: torch.Tensor | None) -> Scored:
    losses, targets, right, ranks = figures
    count = float(targets.sum())
    auc = None if truth is None else area_under_curve(ranks, truth)
    scores = Scores(float(losses.sum()) / count, float(right.sum()) / count, auc)
    return Scored(scores, losses.numpy(), targets.numpy())


def one_label(examples: Sequence[Example], labels: Sequence[str]) -> list[str]:
    """Note where all of a classifier's records have one label, so that scores say little."""
    found = {example.labels for example in examples if isinstance(example.labels, int)}
    if len(found) != 1:
        return []
    return [
        f"All of these records have the label {labels[found.pop()]!r}: there is no AUC, and"
        " accuracy says little. Take more records, or a file with all labels, not sorted by them."
    ]


def logits_of(worker: Worker, batch: Batch) -> torch.Tensor:
    """Return the model's answer in float32, with the values that were last written into it."""
    told = worker.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
    return told.logits.float()  # type: ignore[no-any-return]


def area_under_curve(scores: torch.Tensor, truth: torch.Tensor) -> float | None:
    """Return P(score of a positive > score of a negative), ties as half. None with one class only.

    It is the Mann-Whitney statistic (Hanley & McNeil 1982).
    """
    positive = (truth == 1).numpy()
    n_positive, n = int(positive.sum()), positive.size
    if n_positive in (0, n):
        return None
    from scipy.stats import rankdata  # its import takes longer than all of `import fedpriv`

    ranks = rankdata(scores.double().numpy())[positive].sum()
    return float((ranks - n_positive * (n_positive + 1) / 2) / (n_positive * (n - n_positive)))
