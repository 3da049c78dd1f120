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
    """The loss of each next token (B, T−1), and a mask of those that count.

    Args:
        logits: (B, T, V); those of position t predict the token at t + 1.
        labels: (B, T), -100 where nothing is to be predicted.
    """
    targets = labels[:, 1:]
    predicted = logits[:, :-1]
    losses = F.cross_entropy(
        predicted.reshape(-1, predicted.shape[-1]),
        targets.reshape(-1),
        reduction="none",
        ignore_index=IGNORED,
    )
    return losses.view(targets.shape), targets != IGNORED


@torch.no_grad()
def correct_tokens(logits: Tensor, labels: Tensor) -> Tensor:
    """How many next tokens the model has right, over the whole batch."""
    return (logits[:, :-1].argmax(-1) == labels[:, 1:]).sum()
