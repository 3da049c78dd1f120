"""What the adapters of a site model answer together, computed of each by itself: the oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin, LlamaConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

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


class Alone(PreTrainedModel, GenerationMixin):
    """The oracle as a model that transformers generates with: each token anew, without a cache."""

    config_class = LlamaConfig

    def __init__(self, made: Made) -> None:
        super().__init__(made.worker.model.config)
        self.made, self.nothing = made, torch.nn.Parameter(torch.zeros(1))

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> dict[str, Any]:
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> CausalLMOutput:
        logits = self.made.mean(input_ids=input_ids, attention_mask=attention_mask).float()
        return CausalLMOutput(logits=logits)


def texts(count: int = 2, length: int = 9) -> Tensor:
    """Random token ids (count, length)."""
    return torch.randint(3, 259, (count, length), generator=torch.Generator().manual_seed(0))
