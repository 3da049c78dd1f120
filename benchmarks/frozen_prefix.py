"""Compute the frozen lower layers of a model once for each record, for benchmarks on public data.

With adapters in the last layer alone, nearly all of a step is the forward pass of layers that never
change. Their output for a record is kept, so that studies of many runs on the same records take a
fifth of the time. Losses differ by rounding alone: a record's values are those from the batch in
which it came first.

No code of a site knows this file, because it keeps values of records in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from fedpriv.private_training.worker import Worker

MOST = 6 * 2**30  # bytes
Kept = dict[bytes, torch.Tensor]
_kept: dict[str, Kept] = {}  # by base, for all workers that have it


class Prefix:
    """Keep the output of the first layers, by the tokens of a record.

    Args:
        model: the model with its adapter. Layers below the first that trains are replaced.
        kept: what was computed before.
    """

    def __init__(self, model: nn.Module, kept: Kept) -> None:
        layers = _layers(model)
        trains = [any(p.requires_grad for p in layer.parameters()) for layer in layers]
        self.count = trains.index(True)
        self._kept = kept
        self._bytes = sum(row.nbytes for row in kept.values())
        self._ids = torch.empty(0)
        if not self.count:
            return
        embedding = next(m for m in model.modules() if isinstance(m, nn.Embedding))
        self._embed, self._layers = (
            embedding.forward,
            [layers[i].forward for i in range(self.count)],
        )
        embedding.forward = self._embedded  # type: ignore[method-assign]
        layers[0].forward = self._through  # type: ignore[method-assign]
        for layer in list(layers)[1 : self.count]:
            layer.forward = lambda hidden, *_, **__: hidden

    def _embedded(self, ids: torch.Tensor) -> torch.Tensor:
        self._ids = ids
        return self._embed(ids)

    def _through(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        keys = [row.numpy().tobytes() for row in self._ids.detach().cpu()]
        rows = [self._kept.get(key) for key in keys]
        missing = [place for place, row in enumerate(rows) if row is None]
        if missing:
            args, kwargs = (_rows(of, missing, len(keys)) for of in (args, kwargs))
            made = hidden[missing]
            with torch.no_grad():
                for forward in self._layers:
                    made = forward(made, *args, **kwargs)
                    made = made[0] if isinstance(made, tuple) else made
            for place, row in zip(missing, made, strict=True):
                rows[place] = row
                self._keep(keys[place], row)
        return torch.stack(rows)

    def _keep(self, key: bytes, row: torch.Tensor) -> None:
        if key not in self._kept and self._bytes < MOST:
            self._kept[key] = row.detach().clone()
            self._bytes += row.nbytes


def _rows(of: Any, places: Sequence[int], count: int) -> Any:
    """Return, in nested containers, these rows of tensors that have one for each record."""
    if isinstance(of, torch.Tensor):
        return of[places] if count > 1 and of.dim() > 1 and len(of) == count else of
    if isinstance(of, tuple):
        return tuple(_rows(one, places, count) for one in of)
    if isinstance(of, dict):
        return {key: _rows(one, places, count) for key, one in of.items()}
    return of


def _layers(model: nn.Module) -> nn.ModuleList:
    """Return the list of a model's blocks, which is its longest list."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len)


def remember(worker: Worker) -> None:
    """Compute the frozen layers of a worker's model once for each record from now on."""
    if "prefix" not in worker.public:
        kept = _kept.setdefault(worker.base.digest, {})
        worker.public["prefix"] = Prefix(worker.model, kept)
