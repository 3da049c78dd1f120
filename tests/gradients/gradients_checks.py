"""What the tests of per-record gradients share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fedpriv.data.batch import Batch
from fedpriv.gradients.engine import gradients_of
from fedpriv.private_training.record_loss import record_losses


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


def per_record(worker: Any, batch: Batch) -> torch.Tensor:
    return gradients_of(worker.gradients, lambda model: record_losses(model, batch), len(batch))


def loop(worker: Any, batch: Batch) -> torch.Tensor:
    """One record at a time, by plain autograd on the untouched model."""
    with untouched(worker):
        return _loop(worker, batch)


@contextmanager
def untouched(worker: Any) -> Iterator[None]:
    """The model as it was before an engine was attached to it."""
    gradients = worker.gradients
    gradients.detach()
    yield
    if not isinstance(gradients, Again):
        worker.gradients = Again(worker, type(gradients))


class Again:
    """Attaches an engine at first use."""

    def __init__(self, worker: Any, kind: Any) -> None:
        self._worker, self._kind = worker, kind

    def detach(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if self._worker.gradients is self:
            self._worker.gradients = self._kind(self._worker.model)
        return getattr(self._worker.gradients, name)


def _loop(worker: Any, batch: Batch) -> torch.Tensor:
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
