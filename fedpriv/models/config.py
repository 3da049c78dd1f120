"""`[model]` and `[lora]`: what is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedpriv.config.task import Task
from fedpriv.defaults import ANY_SIZE
from fedpriv.section import Section

Bits = Literal["8bit", "4bit"]  # of a quantised weight
Layer = Annotated[str, Field(max_length=512)]  # its name, or its path in the model
Label = Annotated[str, Field(max_length=256)]
MAX_LAYERS, MAX_LABELS = 4_096, 10_000  # that anybody lists; a job is sent to every site
MAX_PATH = 4_096  # of Linux
Layers = Annotated[tuple[Layer, ...], Field(max_length=MAX_LAYERS)]
HUB_NAME = r"(?!.*\.(jsonl?|csv|tsv|parquet|arrow|gz)$)[\w.-]+/[\w.-]+"  # and no file's


def check_distinct(names: Sequence[str], key: str) -> None:
    """Check that no name of a class comes twice: one of its outputs would never be learned.

    Raises:
        ValueError: one does.
    """
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{key}: {twice!r} comes twice; name each class once")


class ModelSection(Section):
    """The base model and its task."""

    name: str = Field(
        "embedded",
        min_length=1,
        max_length=MAX_PATH,
        description="The base model: embedded (the one in the package), a folder, or the name of"
        " one at a hub.",
    )
    task: Task = Field(
        "causal-lm",
        description="What is learned: to continue text (causal-lm), or to give a text one of"
        " `labels` (classification).",
    )
    labels: tuple[Label, ...] = Field(
        (),
        max_length=MAX_LABELS,
        description="Classification only: the names of the classes, at least two. They are typed"
        " and never discovered from data.",
    )
    max_length: int = Field(
        128,
        ge=2,
        le=131_072,
        description="Tokens in a window; a longer text is several windows, or is cut.",
    )
    pooling: Literal["own", "mean"] = Field(
        "own",
        description="Classification only: the model's own head (own), or a linear layer on the"
        " mean of the token vectors (mean).",
    )
    quantize: Bits | None = Field(
        None,
        description="Keep the frozen weights of linear layers in 8 bits (8bit) or in 4 (4bit, NF4),"
        " for less memory. Without it, in full. Needs `pip install 'fedpriv[quantized]'` at every"
        " site and at the server ([models](models.md#frozen-weights-in-8-or-4-bits)).",
    )

    @model_validator(mode="after")
    def _labels_belong_to_classification(self) -> ModelSection:
        if self.task == "classification" and len(set(self.labels)) < 2:
            raise ValueError("classification needs labels: at least two distinct names")
        check_distinct(self.labels, "labels")
        if self.task == "causal-lm" and self.labels:
            raise ValueError("labels belong to task = 'classification'")
        if self.task == "causal-lm" and self.pooling != "own":
            raise ValueError("pooling belongs to task = 'classification'")
        return self


class LoraSection(Section):
    """The adapter that is trained: LoRA, as in peft."""

    r: int = Field(ANY_SIZE.r, ge=1, le=1024, description="Rank of the adapter's matrices.")
    alpha: float = Field(
        ANY_SIZE.alpha,
        gt=0,
        description="The adapter's product is scaled by alpha / r. Where a file has r and no"
        " alpha, alpha is chosen so that alpha / r is that of the table.",
    )
    target_modules: Literal["auto", "all-linear"] | Layers = Field(
        "all-linear",
        description="The layers that get an adapter: every linear layer but the output"
        " (all-linear), the attention projections that peft names for this architecture (auto), or"
        " a list of names.",
    )
    frozen_a: bool = Field(
        False,
        description="Train only lora_B, so that the mean of several adapters is exact, and an"
        " update about half as long.",
    )
    modules_to_save: Layers = Field(
        (),
        description="Layers that are trained whole, such as lm_head. A classifier's head always"
        " is.",
    )
