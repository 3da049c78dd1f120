"""Models that somebody loaded: what is kept of them, and weights in 8 or 4 bits as numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from fedpriv.errors import ConfigError, NotPrivateError
from fedpriv.loop.arguments import PrivateConfig
from fedpriv.loop.step import PrivateStep
from fedpriv.loop.trainer import PrivateTrainer
from fedpriv.models.vector import TrainableVector

Make = Callable[..., Any]
LORA = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
WAYS: dict[str, dict[str, Any]] = {
    "4bit": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "double": {
        "load_in_4bit": True,
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": torch.bfloat16,
    },
    "8bit": {"load_in_8bit": True},
}
IDS = torch.arange(5, 15)[None]
WIDE = {"hidden_size": 64, "intermediate_size": 128}  # with bfloat16 products, rows of whole blocks


@pytest.fixture
def loaded(model_folder: Make) -> Make:
    """A factory of small models that bitsandbytes quantised while they were loaded."""

    def make(way: str, prepared: bool = True) -> Any:
        config = BitsAndBytesConfig(**WAYS[way])
        model: Any = AutoModelForCausalLM.from_pretrained(
            model_folder("llama", **WIDE), quantization_config=config, dtype=torch.float32
        )
        model = prepare_model_for_kbit_training(model) if prepared else model
        return get_peft_model(model, LORA)

    return make


@pytest.fixture
def step(byte_tokenizer: Any, notes: Any, settings: dict[str, Any]) -> Iterator[Make]:
    """A factory of steps, which are closed when the test is over."""
    made: list[PrivateStep] = []

    def make(model: Any, **changes: Any) -> PrivateStep:
        made.append(PrivateStep(model, byte_tokenizer, notes, **{**settings, **changes}))
        return made[-1]

    yield make
    for one in made:
        one.close()


@torch.no_grad()
def logits(model: Any) -> Any:
    return model.eval()(input_ids=IDS).logits


def kinds(model: Any) -> list[tuple[str, type]]:
    return [(name, type(module)) for name, module in model.named_modules()]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prepared", [False, True])
def test_a_step_with_a_quantised_base(loaded: Make, step: Make, way: str, prepared: bool) -> None:
    before = logits(loaded(way, prepared))  # of another: some CPUs reorder codes to generate
    model = loaded(way, prepared)
    found = kinds(model)
    made = step(model)
    assert not any(kind.__module__.startswith("bitsandbytes") for _, kind in kinds(model))
    assert made._worker.recipe.compute.dtype == ("mixed" if way == "double" else "float32")
    assert made._worker.recipe.compute.gradient_checkpointing == prepared
    made.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    made.close()
    assert kinds(model) == found
    assert model.config.quantization_config is not None
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("way", ["4bit", "8bit"])
def test_weights_are_the_numbers_that_the_codes_stand_for(
    loaded: Make, step: Make, way: str
) -> None:
    """So no activation is rounded: it is the model in full whose weights were rounded once."""
    model = loaded(way)
    full = loaded(way)
    whole = full.get_base_model().dequantize()
    made = step(model)
    by_numbers = logits(model)
    off = float((by_numbers - logits(whole)).abs().max())
    assert off <= 1e-5 * float(by_numbers.abs().max())
    made.close()


def test_what_cannot_be_read_as_numbers_is_refused(loaded: Make, step: Make) -> None:
    model = loaded("4bit")
    with pytest.raises(ConfigError, match="engine: knows neither quantised weights"):
        step(model, engine="opacus")
    layer = model.get_base_model().model.layers[0].self_attn.q_proj.base_layer
    layer.weight.quant_state.packing_format_for_cpu = True
    before = kinds(model)
    with pytest.raises(ConfigError, match="model: has generated on this CPU"):
        step(model)
    assert kinds(model) == before


def test_what_others_quantised_is_refused(lora: Make, step: Make) -> None:
    model = lora()
    model.config.quantization_config = {"quant_method": "gptq"}
    with pytest.raises(NotPrivateError, match=r"is quantised.*or with a BitsAndBytesConfig"):
        step(model)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["4bit", "8bit"])
def test_a_trainer_loads_a_named_base_in_fewer_bits(
    model_folder: Make, byte_tokenizer: Any, notes: Any, tmp_path: Path, way: str
) -> None:
    args = PrivateConfig(
        output_dir=str(tmp_path / "out"),
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="steps",
        save_steps=1,
        noise_multiplier=1.0,
        delta=1e-3,
        size=50,
        max_steps=2,
        max_length=64,
        learning_rate=1e-2,
        gradient_checkpointing=True,
    )
    made = PrivateTrainer(
        str(model_folder("llama")),
        args,
        notes,
        processing_class=byte_tokenizer,
        peft_config=LORA,
        quantization_config=BitsAndBytesConfig(**WAYS[way]),
    )
    before = TrainableVector(made.model).read()
    made.train()
    made.save_model(str(tmp_path / "adapter"))
    made.private.close()
    trained = TrainableVector(made.model).read()
    assert (trained != before).any()
    base = AutoModelForCausalLM.from_pretrained(model_folder("llama"))
    again = PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True)
    assert (TrainableVector(again).read() == trained).all()
    assert (tmp_path / "out/checkpoint-2").is_dir()
