"""A classifier on the mean of an encoder's token vectors, as sentence encoders are trained."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput


class MeanPooledClassifier(PreTrainedModel):  # type: ignore[no-untyped-call]
    """An encoder, the mean over the tokens that count, and one linear layer.

    A record's mean is over its own tokens, whatever it is padded to.

    Source:
        Reimers & Gurevych, "Sentence-BERT", EMNLP 2019, section 3.
    """

    config_class = PretrainedConfig
    base_model_prefix = "encoder"
    _supports_sdpa = True  # it attends to nothing itself

    def __init__(self, encoder: PreTrainedModel, labels: int) -> None:
        super().__init__(encoder.config)
        self.encoder = encoder
        self._supports_sdpa = encoder._supports_sdpa
        if getattr(encoder, "pooler", None) is not None:
            encoder.pooler = None  # type: ignore[assignment]  # of the first token; it would be computed and thrown away
        width: int = encoder.config.hidden_size
        self.classifier = nn.Linear(width, labels, dtype=encoder.dtype)

    @classmethod
    def from_encoder(cls, source: str, num_labels: int, **options: Any) -> tuple[Self, set[str]]:
        """Make a classifier from a stored encoder and a new head. Return also the names drawn anew.

        Raises:
            OSError, ValueError, KeyError: as `AutoModel.from_pretrained`.
        """
        encoder, loaded = AutoModel.from_pretrained(source, **options)
        made = cls(encoder, num_labels)
        kept = {name for name, _ in made.named_parameters()}
        new = {f"encoder.{name}" for name in loaded["missing_keys"]} | {
            name for name in kept if name.startswith("classifier.")
        }
        return made, new & kept

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> SequenceClassifierOutput:
        """Return logits, (B, labels); without a mask all tokens count."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        counts = mask.unsqueeze(2).to(hidden.dtype)  # (B, T, 1)
        mean = (hidden * counts).sum(1) / counts.sum(1).clamp_min(1)
        return SequenceClassifierOutput(logits=self.classifier(mean))
