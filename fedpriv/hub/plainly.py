"""Load a model that was written, by transformers and peft alone, as its card says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedpriv.environment import without_hub_code
from fedpriv.models.base import quiet
from fedpriv.models.config import ModelSection

_PLAINLY: dict[str, Any] = {
    "dtype": "float32",
    "use_safetensors": True,
    "trust_remote_code": False,
}


@without_hub_code()
def load_merged(folder: Path, settings: ModelSection) -> Any:
    """Load a model of transformers' own, in float32."""
    with quiet():
        model = _auto(settings).from_pretrained(folder, **_PLAINLY)
    return model.eval()


@without_hub_code()
def load_adapter(folder: Path, base: str, settings: ModelSection) -> Any:
    """Load an adapter on its base, in float32; the weights are rounded as the run had them."""
    from peft import PeftModel

    from fedpriv.models.quantised import round_weights

    options = dict(_PLAINLY)
    with quiet():
        if settings.pooling == "mean":
            from fedpriv.models.pooled import MeanPooledClassifier

            labels = len(settings.labels)
            model: Any = MeanPooledClassifier.from_encoder(
                base, labels, output_loading_info=True, **options
            )[0]
        else:
            if settings.task == "classification":
                options |= {"num_labels": len(settings.labels), "ignore_mismatched_sizes": True}
            model = _auto(settings).from_pretrained(base, **options)
    if settings.quantize is not None:
        round_weights(model, settings.quantize)
    return PeftModel.from_pretrained(model, folder).eval()


def _auto(settings: ModelSection) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    if settings.task == "classification":
        return AutoModelForSequenceClassification
    return AutoModelForCausalLM
