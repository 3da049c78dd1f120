"""One loss per record, each a function of that record alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from fedpriv.data.batch import Batch

IGNORED = -100


def record_losses(model: Any, batch: Batch) -> Tensor:
    """The loss of each record, (B,).

    A language model's loss is the mean over the record's own target tokens (the batch mean of
    `outputs.loss` would scale a record by the lengths of the others); a record without targets
    has loss 0. A classifier's is its cross-entropy.
    """
    logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    if batch.labels.ndim == 1:
        return F.cross_entropy(logits, batch.labels, reduction="none")
    losses, counted = token_losses(logits, batch.labels)
    return losses.sum(1) / counted.sum(1).clamp_min(1)


def token_losses(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The loss at each position (B, T), and a mask of the positions that count.

    Args:
        logits: (B, T, V); those of position t predict the token at t + 1.
        labels: (B, T), -100 where nothing is to be predicted.
    """
    targets = next_tokens(labels)
    losses = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED
    )
    return losses.view(targets.shape), targets != IGNORED


def next_tokens(labels: Tensor) -> Tensor:
    """The target of each position (B, T): the labels moved one to the left, none at the end.

    Moving the labels, not the logits, spares copies of the largest tensor of the step.
    """
    return F.pad(labels[:, 1:], (0, 1), value=IGNORED)


@torch.no_grad()
def correct_tokens(logits: Tensor, labels: Tensor) -> Tensor:
    """How many next tokens the model has right, over the whole batch."""
    return (logits.argmax(-1) == next_tokens(labels)).sum()
