"""Records of random tokens, to try on them what records must not be tried on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedpriv.data.batch import Batch
from fedpriv.training.record_loss import IGNORED
from fedpriv.training.worker import Worker


def random_batch(worker: Worker, mask: Tensor, *, seed: int) -> Batch:
    """One record for each row of a mask (B, T), with tokens where it is 1.

    Args:
        seed: public; the same one gives the same records.

    Privacy:
        Made of public settings alone.
    """
    embeddings: Any = worker.base.model.get_input_embeddings()
    vocabulary, padding = len(embeddings.weight), worker.base.tokenizer.pad_token_id
    ids = torch.randint(vocabulary, mask.shape, generator=torch.Generator().manual_seed(seed))
    ids = torch.where(ids == padding, (ids + 1) % vocabulary, ids)
    ids = torch.where(mask == 1, ids, padding)
    if worker.recipe.model.task == "classification":
        labels = torch.arange(len(mask)) % 2
    else:
        labels = torch.where(mask == 1, ids, IGNORED)
    return Batch(ids, mask, labels).to(worker.device)
