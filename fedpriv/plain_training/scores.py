"""How good a model is on records: loss, accuracy, area under the curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from fedpriv.data.batch import Batch, buckets
from fedpriv.data.encode import Example
from fedpriv.models.vector import Vector
from fedpriv.private_training.record_loss import correct_tokens, record_losses, token_losses
from fedpriv.private_training.worker import Worker

BATCH = 32
Logits = Callable[[Batch], torch.Tensor]  # (B, T, V), or (B, classes) of a classifier


@dataclass(frozen=True)
class Scores:
    """How good a model is.

    Attributes:
        eval_loss: mean over the target tokens, or over the records of a classifier.
        eval_accuracy: next tokens or records that the model has right, as a share.
        eval_auc: area under the ROC curve of the second label; two labels only, and both in the
            records.
        eval_hardest: the loss on the records that were worst for the base model, where asked for.
    """

    eval_loss: float
    eval_accuracy: float
    eval_auc: float | None = None
    eval_hardest: float | None = None

    def as_dict(self) -> dict[str, float]:
        """The scores there are, by name."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def score(worker: Worker, examples: Sequence[Example], parameters: Vector) -> Scores:
    """The scores of a model with these trained values (P,) on records, at least one.

    Privacy:
        As confidential as the records and the values: of a site's own records, or with values
        that were not released, it never leaves the site.
    """
    worker.vector.write(parameters)
    return score_answers(worker, examples, lambda batch: logits_of(worker, batch))


@torch.inference_mode()
def score_answers(worker: Worker, examples: Sequence[Example], answer: Logits) -> Scores:
    """The scores of whatever answers batches with logits, on records, at least one.

    Logarithms of probabilities are logits, too.

    Privacy:
        As that of `score`.
    """
    total, right, count = 0.0, 0, 0
    ranked: list[torch.Tensor] = []
    truth: list[torch.Tensor] = []
    for length, members in buckets(examples, worker.recipe.model.max_length).items():
        for start in range(0, len(members), BATCH):
            batch = worker.batch([examples[i] for i in members[start : start + BATCH]], length)
            logits = answer(batch)
            if batch.labels.ndim == 1:
                loss = torch.nn.functional.cross_entropy(logits, batch.labels, reduction="sum")
                total, count = total + loss.item(), count + len(batch)
                right += int((logits.argmax(-1) == batch.labels).sum())
                ranked.append((logits[:, -1] - logits[:, 0]).cpu())
                truth.append(batch.labels.cpu())
            else:
                losses, counted = token_losses(logits, batch.labels)
                total, count = total + losses.sum().item(), count + int(counted.sum())
                right += int(correct_tokens(logits, batch.labels))
    binary = len(worker.recipe.model.labels) == 2
    auc = area_under_curve(torch.cat(ranked), torch.cat(truth)) if binary else None
    return Scores(total / count, right / count, auc)


@torch.inference_mode()
def losses_of(worker: Worker, examples: Sequence[Example], parameters: Vector) -> torch.Tensor:
    """The loss of each record (N,), float64, of a model with these trained values (P,).

    Privacy:
        As that of `score`.
    """
    worker.vector.write(parameters)
    found = torch.zeros(len(examples), dtype=torch.float64)
    for length, members in buckets(examples, worker.recipe.model.max_length).items():
        for start in range(0, len(members), BATCH):
            part = members[start : start + BATCH]
            batch = worker.batch([examples[index] for index in part], length)
            found[part] = record_losses(worker.model, batch).double().cpu()
    return found


def logits_of(worker: Worker, batch: Batch) -> torch.Tensor:
    """What the model answers with the values that were last written into it, in float32."""
    told = worker.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
    found: torch.Tensor = told.logits.float()
    return found


def area_under_curve(scores: torch.Tensor, truth: torch.Tensor) -> float | None:
    """P(score of a positive > score of a negative), ties half; None with one class only.

    The Mann-Whitney statistic (Hanley & McNeil 1982).
    """
    positive = (truth == 1).numpy()
    n_positive, n = int(positive.sum()), positive.size
    if n_positive in (0, n):
        return None
    from scipy.stats import rankdata  # its import takes longer than all of `import fedpriv`

    ranks = rankdata(scores.double().numpy())[positive].sum()
    return float((ranks - n_positive * (n_positive + 1) / 2) / (n_positive * (n - n_positive)))
