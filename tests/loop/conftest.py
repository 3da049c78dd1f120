"""Models and records for loops on one site."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

WORDS = ("fever", "cough", "pain", "chest", "heart", "lungs", "clear", "normal", "denies")
SETTINGS = {
    "noise_multiplier": 1.0,
    "sample_rate": 0.3,
    "delta": 1e-3,
    "size": 51,  # as it is declared; there are 40, and no sample has 0.3 × 51
    "steps": 3,
    "clip_norm": 0.002,
    "max_length": 64,
    "max_records_per_unit": 1,
}


@pytest.fixture
def settings() -> dict[str, Any]:
    """Of a step, but for what it is of."""
    return dict(SETTINGS)


@pytest.fixture
def notes() -> list[dict[str, Any]]:
    """Forty notes of different lengths, two of each patient."""
    return [
        {"text": " ".join(WORDS[(i * k) % 9] for k in range(1, 2 + i % 7)) + f" {i}", "mrn": i // 2}
        for i in range(40)
    ]


@pytest.fixture
def lora(model_folder: Callable[..., Any]) -> Callable[..., Any]:
    """A factory of small models with an adapter that is off its start."""

    def make(kind: str = "llama", dropout: float = 0.0, dtype: str = "float32") -> Any:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        from tests.small_models import TARGETS

        base = AutoModelForCausalLM.from_pretrained(model_folder(kind), dtype=dtype)
        torch.manual_seed(1)
        config = LoraConfig(
            r=2,
            lora_alpha=4,
            target_modules=list(TARGETS[kind][:2]),
            lora_dropout=dropout,
            task_type="CAUSAL_LM",
        )
        model = get_peft_model(base, config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter) * 0.05)
        return model

    return make


@pytest.fixture
def new_accelerator() -> Iterator[None]:
    """A process in which nobody has used accelerate yet, and which it leaves so."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)
