"""`[model]` and `[lora]`: what is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedpriv.config.task import Task
from fedpriv.section import Section

Bits = Literal["8bit", "4bit"]  # bits of a quantised weight
Layer = Annotated[str, Field(max_length=512)]  # its name, or its path in the model
Label = Annotated[str, Field(max_length=256)]
MAX_LAYERS, MAX_LABELS = 4_096, 10_000  # limits of lists: a job is sent to every site
MAX_PATH = 4_096  # Linux's limit
Place = Annotated[str, Field(min_length=1, max_length=MAX_PATH)]  # a folder, or a name at a hub
Layers = Annotated[tuple[Layer, ...], Field(max_length=MAX_LAYERS)]
HEADS = ("classifier", "score")  # a classifier's heads, which peft trains whole
HUB_NAME = r"(?!.*\.(jsonl?|csv|tsv|parquet|arrow|gz)$)[\w.-]+/[\w.-]+"  # no file's name


def check_distinct(names: Sequence[str], key: str) -> None:
    """Check that no name of a class comes twice: one of its outputs would never be learned.

    Raises:
        ValueError: one comes twice.
    """
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{key}: {twice!r} comes twice; name each class once")


class ModelSection(Section):
    """The base model and its task."""

    name: Place = Field(
        "embedded",
        description="The base model: embedded (part of the package), a folder, or a name at a hub.",
    )
    task: Task = Field(
        "causal-lm",
        description="Continue text (causal-lm), or give a text one of `labels` (classification).",
    )
    labels: tuple[Label, ...] = Field(
        (),
        max_length=MAX_LABELS,
        description="Classification: names of at least two classes. Never read from the data.",
    )
    max_length: int = Field(
        128,
        ge=2,
        le=131_072,
        description="Tokens in a window. Longer texts become several windows, or are cut.",
    )
    pooling: Literal["own", "mean"] = Field(
        "own",
        description="Classification: the model's own head (own), or a linear layer on the mean"
        " token vector (mean).",
    )
    begin: Place | None = Field(
        None,
        description="Public or paid-for LoRA adapter of peft to start from: a folder or hub name"
        " ([models](models.md#beginning-at-an-adapter)).",
    )
    begin_as: Literal["continued", "merged"] = Field(
        "continued",
        description="Train that adapter further (continued), or merge it into the base and train"
        " a new one (merged).",
    )
    quantize: Bits | None = Field(
        None,
        description="Keep frozen linear layers in 8 bits or 4 bits (NF4) to save memory. Sites"
        " and server need `pip install 'fedpriv[quantized]'`"
        " ([models](models.md#frozen-weights-in-8-or-4-bits)).",
    )

    @model_validator(mode="after")
    def _belongs_together(self) -> ModelSection:
        if self.task == "classification" and len(set(self.labels)) < 2:
            raise ValueError("classification needs labels: at least two distinct names")
        check_distinct(self.labels, "labels")
        if self.task == "causal-lm" and self.labels:
            raise ValueError("labels belong to task = 'classification'")
        if self.task == "causal-lm" and self.pooling != "own":
            raise ValueError("pooling belongs to task = 'classification'")
        if self.begin_as == "merged" and (self.begin is None or self.quantize is not None):
            raise ValueError("begin_as: 'merged' needs begin, and weights in full (no quantize)")
        return self

    def begun(self) -> ModelSection:
        """Return the model for an adapter that exists: only a merged adapter is part of it."""
        return self if self.begin_as == "merged" else self.model_copy(update={"begin": None})


class LoraSection(Section):
    """The LoRA adapter to train, as in peft."""

    r: int = Field(16, ge=1, le=1024, description="Rank of the adapter's matrices.")
    alpha: float = Field(
        16.0,
        gt=0,
        description="The adapter's product is scaled by alpha / r. If only r is set, alpha keeps"
        " the table's ratio.",
    )
    target_modules: Literal["auto", "all-linear"] | Layers = Field(
        "all-linear",
        description="Layers with an adapter: all linear ones but the output (all-linear), the"
        " attention projections that peft names (auto), or those listed.",
    )
    frozen_a: bool = Field(
        False,
        description="Train only lora_B: the mean of adapters is exact, and updates are about"
        " half as long.",
    )
    modules_to_save: Layers = Field(
        (), description="Layers to train whole, such as lm_head. A classifier's head always is."
    )
