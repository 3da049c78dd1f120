"""Adapters as people have them: made and written by peft itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def model_on(base: Path, task: str = "causal-lm") -> Any:
    """A model of transformers' own, as a federation loads it."""
    import transformers

    if task == "causal-lm":
        return transformers.AutoModelForCausalLM.from_pretrained(base).eval()
    factory = transformers.AutoModelForSequenceClassification
    model = factory.from_pretrained(base, num_labels=2, ignore_mismatched_sizes=True)
    return model.eval()


def write_peft_adapter(
    folder: Path, base: Path, task: str = "causal-lm", scale: float = 0.3, **settings: Any
) -> Any:
    """Write an adapter on a base into a folder, and return the model that it makes.

    Args:
        scale: of its values, all of which are drawn: a new adapter of peft's changes nothing.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    kind = "CAUSAL_LM" if task == "causal-lm" else "SEQ_CLS"
    given = {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.1}
    config = LoraConfig(task_type=kind, **given | settings)
    model: Any = get_peft_model(model_on(base, task), config)
    drawn = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += scale * torch.randn(parameter.shape, generator=drawn)
    model.save_pretrained(folder, save_embedding_layers=False)
    return model.eval()
