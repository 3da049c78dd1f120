"""What the tests of per-record gradients share."""

from __future__ import annotations

from typing import Any

import torch

from fedpriv.data.batch import Batch
from fedpriv.training.record_loss import record_losses


def random_batch(worker: Any, lengths: list[int], width: int = 20, seed: int = 0) -> Batch:
    """Records of the given lengths, padded on the right to `width`."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 250, (len(lengths), width), generator=generator)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    ids = ids * mask  # the padding token is 0
    if worker.recipe.model.task == "classification":
        labels = torch.randint(0, 3, (len(lengths),), generator=generator)
    else:
        labels = torch.where(mask == 1, ids, -100)
        labels[:, 0] = -100  # nothing comes before the first token
    return Batch(ids, mask, labels)


def disturb(worker: Any) -> None:
    """Move the adapter off its start, where lora_B is 0 and hides half of the gradient."""
    generator = torch.Generator().manual_seed(7)
    noise = torch.randn(worker.vector.size, generator=generator) * 0.1
    worker.vector.write(worker.vector.read() + noise.numpy())


def rows_of(worker: Any, batch: Batch) -> torch.Tensor:
    rows = worker.gradients.rows(lambda model: record_losses(model, batch), len(batch))
    return torch.stack([worker.gradients.natural(row) for row in rows])


def loop(worker: Any, batch: Batch) -> torch.Tensor:
    """One record at a time, by plain autograd on the untouched model."""
    gradients = worker._gradients
    if gradients is not None:
        gradients.detach()
        worker._gradients = None
    trained = [p for p in worker.model.parameters() if p.requires_grad]
    found = []
    for i in range(len(batch)):
        one = Batch(batch.input_ids[i : i + 1], batch.attention_mask[i : i + 1],
                    batch.labels[i : i + 1])  # fmt: skip
        loss = record_losses(worker.model, one).sum()
        parts = torch.autograd.grad(loss, trained, allow_unused=True)
        found.append(
            torch.cat(
                [
                    torch.zeros(p.numel(), dtype=p.dtype) if g is None else g.reshape(-1)
                    for p, g in zip(trained, parts, strict=True)
                ]
            )
        )
    return torch.stack(found)
