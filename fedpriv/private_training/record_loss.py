"""One loss per record, each a function of that record alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from fedpriv.data.batch import Batch

IGNORED = -100
# Logits at a time. On a CPU they stay in its cache: 6 times faster than the whole tensor.
CELLS = {"cpu": 2**18, "other": 2**26}


def record_losses(model: Any, batch: Batch) -> Tensor:
    """Compute the loss of each record, (B,).

    A language model's loss is the mean over the record's own target tokens (the batch mean of
    `outputs.loss` would scale a record by the lengths of the others); a record without targets
    has loss 0. A classifier's is its cross-entropy.
    """
    logits, labels = _logits(model, batch), batch.labels
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels, reduction="none")
    losses, counted = token_losses(logits, labels)
    return losses.sum(1) / counted.sum(1).clamp_min(1)


@torch.no_grad()
def record_scores(model: Any, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Compute loss and accuracy of each record (B,), float64, and whether it has targets at all.

    A language model's accuracy is the share of the record's target tokens that are right; a
    classifier's is 1 or 0. The loss is that of `record_losses`.
    """
    losses, counted, right = record_sums(_logits(model, batch), batch.labels)
    each = counted.clamp_min(1)
    return (losses / each).double(), right / each.double(), counted > 0


def record_sums(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute of each record (B,) the sum of its losses, its number of targets, and of right ones.

    A target is right if it is the likeliest. A classifier has one target for each record.
    """
    if labels.ndim == 1:
        losses = F.cross_entropy(logits, labels, reduction="none")
        return losses, torch.ones_like(labels), (logits.argmax(-1) == labels).long()
    each, counted = token_losses(logits, labels)
    right = logits.argmax(-1) == next_tokens(labels)  # never where there is no target
    return each.sum(1), counted.sum(1), right.sum(1)


def _logits(model: Any, batch: Batch) -> Tensor:
    found: Tensor = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    return found


def token_losses(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the loss at each position (B, T), and a mask of the positions that count.

    Args:
        logits: (B, T, V); those of position t predict the token at t + 1.
        labels: (B, T), -100 where nothing is to be predicted.
    """
    targets = next_tokens(labels)
    flat = logits.flatten(0, 1)
    losses: Tensor = _CrossEntropy.apply(flat, targets.flatten())  # type: ignore[no-untyped-call]
    return losses.view(targets.shape), targets != IGNORED


class _CrossEntropy(torch.autograd.Function):
    """-log softmax(logits)[target] of each row (N, V), 0 where the target is IGNORED.

    The logits are the largest tensor of a step, and the only one of their size: their gradient
    is written over them, some rows at a time. Should a model need its logits again, autograd
    refuses.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(logits, targets)
        rows = _rows_at_once(logits)
        parts = zip(torch.split(logits, rows), torch.split(targets, rows), strict=True)
        losses = [
            F.cross_entropy(_wide(part), target, reduction="none", ignore_index=IGNORED)
            for part, target in parts
        ]
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        logits, targets = ctx.saved_tensors
        rows = _rows_at_once(logits)
        weights = outputs[0].masked_fill(targets == IGNORED, 0.0).unsqueeze(1)
        columns = targets.clamp_min(0).unsqueeze(1)
        scratch = torch.empty_like(_wide(logits[:rows]))
        parts = (torch.split(whole, rows) for whole in (logits, weights, columns))
        for part, weight, column in zip(*parts, strict=True):
            change = torch.softmax(_wide(part), 1, out=scratch[: len(part)])
            change.scatter_add_(1, column, torch.full_like(weight, -1.0))  # p - 1, before rounding
            part.copy_(change.mul_(weight))
        return logits, None


def _rows_at_once(logits: Tensor) -> int:
    cells = CELLS.get(logits.device.type, CELLS["other"])
    return max(1, cells // logits.shape[1])


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def next_tokens(labels: Tensor) -> Tensor:
    """Return the target of each position (B, T): the labels moved one left, none at the end.

    Moving the labels, not the logits, spares copies of the largest tensor of the step.
    """
    return F.pad(labels[:, 1:], (0, 1), value=IGNORED)
