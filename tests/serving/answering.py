"""What the adapters of a site model answer together, computed of each by itself: the oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpriv.models.vector import Vector
from fedpriv.private_training.worker import Worker

KINDS: dict[str, Any] = {"alone": "alone", "personal": "personal", "federated": "federated"}
MakeSiteModel = Callable[..., "Made"]


@dataclass(frozen=True)
class Made:
    """A site model, and what it was made of."""

    folder: Path
    worker: Worker
    weights: Mapping[str, float]
    values: Mapping[str, Vector]
    adapters: Mapping[str, Path]

    @torch.no_grad()
    def mean(self, **batch: Tensor) -> Tensor:
        """The logarithm of the weighted mean of the probabilities, in float64."""
        total: Any = 0.0
        for name, weight in self.weights.items():
            self.worker.vector.write(self.values[name])
            logits = self.worker.model(**batch).logits.double()
            total = total + weight * logits.softmax(-1)
        return total.log()  # type: ignore[no-any-return]
