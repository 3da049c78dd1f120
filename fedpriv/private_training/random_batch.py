"""Records of random tokens, to try on them what records must not be tried on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedpriv.data.batch import Batch
from fedpriv.models.trial import around, ordinary_tokens
from fedpriv.private_training.record_loss import IGNORED
from fedpriv.private_training.worker import Worker


def random_batch(worker: Worker, mask: Tensor, *, seed: int) -> Batch:
    """Make one record for each row of a mask (B, T), with tokens where it is 1.

    Args:
        seed: public; the same one gives the same records.

    Privacy:
        Made of public settings alone.
    """
    tokenizer: Any = worker.base.tokenizer
    tokens = ordinary_tokens(worker.base.model, tokenizer)
    drawn = torch.randint(len(tokens), mask.shape, generator=torch.Generator().manual_seed(seed))
    ids = tokens[drawn]
    for last in around(tokenizer)[1][-1:]:  # by which some models find a text's end
        ids[torch.arange(len(ids)), mask.sum(1) - 1] = last
    ids = torch.where(mask == 1, ids, tokenizer.pad_token_id)
    if worker.recipe.model.task == "classification":
        labels = torch.arange(len(mask)) % 2
    else:
        labels = torch.where(mask == 1, ids, IGNORED)
    return Batch(ids, mask, labels).to(worker.device)
