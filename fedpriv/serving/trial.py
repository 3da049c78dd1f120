"""Hold a site model against its adapters, each by itself, before anybody is answered."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutput

from fedpriv.errors import ModelError
from fedpriv.models.base import Base, first_line
from fedpriv.models.lora import attach_lora
from fedpriv.models.trial import AS_IT_IS, Trial
from fedpriv.plain_training.adapter import read_facts, read_into
from fedpriv.private_training.worker import ModelRecipe
from fedpriv.serving import load_site_model
from fedpriv.serving.model import SiteModel


class OneAdapter(nn.Module):
    """A site model that answers as one of its adapters alone.

    Args:
        index: the adapter's place.
        halves: read a text in two halves, the second with what the cache keeps of the first.
    """

    def __init__(self, model: SiteModel, index: int, *, halves: bool) -> None:
        super().__init__()
        self.model, self.index, self.halves = model, index, halves

    def forward(self, input_ids: Tensor, **_: Any) -> CausalLMOutput:
        """Give the logits of that adapter, (B, T, V) or (B, labels)."""
        parts: list[Tensor] = [input_ids]
        given: dict[str, Any] = {}
        if self.halves:
            parts, given = list(torch.tensor_split(input_ids, 2, dim=1)), {"use_cache": True}
        found, model = [], cast(Any, self.model)  # nn.Module takes it for a tensor
        for part in parts:
            told = model.rows(input_ids=part, **given)
            found.append(told.logits[self.index :: len(model.names)])
            if self.halves:
                given["cache"] = model.cache_of(told)
        return CausalLMOutput(logits=torch.cat(found, dim=1) if self.halves else found[0])


def check_answers(folder: Path, base: Base, recipe: ModelRecipe) -> None:
    """Check that several adapters at once answer as each by itself, with a cache and without.

    Args:
        base: the base of `recipe`, in float32; it is changed.

    Raises:
        ModelError: they answer otherwise.
    """
    kind = base.model.config.model_type
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is not where it will be
            made = load_site_model(folder)
    except ValueError as error:  # of what the configuration of an adapter asks for
        raise ModelError(f"model.name: a {kind} can't answer so: {first_line(error)}.") from None
    model = attach_lora(base, recipe.lora, recipe.model.task, seed=recipe.seed)
    for index, name in enumerate(made.names):
        read_into(model, folder / name, read_facts(folder / name))
        trial = Trial(model, base.tokenizer, recipe.model.max_length, AS_IT_IS)
        ways = (False, True) if made.can_generate() else (False,)
        try:
            off = max(trial.other_off_by(OneAdapter(made, index, halves=halves)) for halves in ways)
        except Exception as error:  # whatever an architecture trips over
            why = f"{type(error).__name__}: {first_line(error)}"
        else:
            why = f"the logits of {name!r} are off by {off:.0f} times what rounding explains"
            if off <= 1:
                continue
        raise ModelError(
            f"model.name: a {kind} does not compute several adapters at once as"
            f" it computes one: {why}. Keep one adapter: fedpriv-client personalise --single."
        )
