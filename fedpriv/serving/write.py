"""Write a site model: base, adapters, tokenizer, and a card that says that it has to stay.

Privacy
    Some of the adapters were trained on a site's own records without noise, so the folder is as
    confidential as the records. It is for its owner alone (law 16).
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutput

from fedpriv.adapter_facts import read_facts
from fedpriv.base_model import CONFIG, WEIGHTS
from fedpriv.base_model import FACTS as FACTS_OF_ADAPTER
from fedpriv.errors import ConfigError, ModelError
from fedpriv.files import replacing_folder, write_atomic
from fedpriv.models.base import Base, first_line, load_base
from fedpriv.models.digest import find_base, stored_type
from fedpriv.models.lora import attach_lora, trained_whole
from fedpriv.models.quantised import unpack
from fedpriv.models.trial import AS_IT_IS, Trial
from fedpriv.personal.own_adapter import WARNING
from fedpriv.plain_training.adapter import CARD, read_into
from fedpriv.private_training.worker import ModelRecipe
from fedpriv.serving import load_site_model
from fedpriv.serving.config import SiteModelConfig
from fedpriv.serving.folder import BASE, FACTS, SiteModelFacts, digests, place_of
from fedpriv.serving.model import (
    SiteModel,
    SiteModelForCausalLM,
    SiteModelForSequenceClassification,
)


def write_site_model(
    folder: Path,
    recipe: ModelRecipe,
    adapters: Mapping[str, Path],
    weights: Mapping[str, float],
    *,
    site: str,
    job: str,
) -> Path:
    """Write the folder, in place of an earlier one, and check that the model answers as it should.

    It is written as a whole or not at all, for its owner alone.

    Args:
        recipe: recipe of the model that the adapters were trained on.
        adapters: name → folder of the adapter, as `write_adapter` makes it.
        weights: name → share of the probabilities, for the adapters that answer. The sum is 1.

    Raises:
        ConfigError: an adapter is for another base, or the weights can't be used.
        ModelError: the base can't be loaded, or transformers computes another answer with several
            adapters at once.
        OSError: there is no room, or the disk fails.
    """
    whole = trained_whole(recipe.lora)
    base = load_base(recipe.model.begun(), seed=recipe.seed, whole=whole)
    unpack(base.model)
    for path in adapters.values():
        expected = read_facts(path).proposal.base_digest
        if expected != base.digest:
            other = f"another base model than {recipe.model.name!r}, which is {base.digest} here"
            fix = "Put the base of the job back, or name an adapter of this base."
            raise ConfigError(f"is of {other}", file=path, value=expected, fix=fix)
    with replacing_folder(folder) as made:
        for name, path in adapters.items():
            (made / name).mkdir()
            for file in (CONFIG, FACTS_OF_ADAPTER, WEIGHTS):  # a coordinator may send anything else
                shutil.copyfile(path / file, made / name / file)
        _write_base(made / BASE, base, recipe)
        base.tokenizer.save_pretrained(made)
        _write_config(made, base, recipe, weights)
        (made / CARD).write_text(_card(site, job, weights), encoding="utf-8")
        facts = SiteModelFacts(site=site, job=job, place=place_of(folder), files=digests(made))
        write_atomic(made / FACTS, facts.model_dump_json(indent=2) + "\n")
        check_answers(made, base, recipe)
    return folder


def _write_base(folder: Path, base: Base, recipe: ModelRecipe) -> None:
    """Write the base in the number format of its files, where that loses nothing."""
    model: Any = base.model
    model = model.encoder if recipe.model.pooling == "mean" else model
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    kind: torch.dtype = getattr(torch, stored_type(find_base(base.source)))
    halved = {name: value.to(kind) for name, value in model.state_dict().items()}
    if all(torch.equal(halved[name].float(), value) for name, value in model.state_dict().items()):
        model = model.to(kind)
    model.config.use_cache = True  # training needs none, but generation does
    model.save_pretrained(folder)
    model.float()
    for name, value in model.named_buffers():  # such as frequencies, which are in no file
        value.copy_(buffers[name])


def _write_config(
    folder: Path, base: Base, recipe: ModelRecipe, weights: Mapping[str, float]
) -> None:
    task, model = recipe.model, base.model
    made, names = SiteModelForCausalLM.__name__, dict[str, Any]()
    if task.task == "classification":
        made = SiteModelForSequenceClassification.__name__
        names["id2label"] = dict(enumerate(task.labels))
        names["label2id"] = {label: index for index, label in enumerate(task.labels)}
    settings = SiteModelConfig(
        base=model.config.to_diff_dict() | {"model_type": model.config.model_type},
        weights=weights,
        pooling=task.pooling,
        architectures=[made],
        dtype="float32",
        **names,
    )
    settings.to_json_file(folder / "config.json")


def _card(site: str, job: str, weights: Mapping[str, float]) -> str:
    shares = "\n".join(f"- `{name}`: {weight:.2f}" for name, weight in weights.items())
    return f"""---
library_name: fedpriv
tags: [fedpriv, not-to-leave-this-house]
---

# Site model of {site}

**{WARNING[0].upper()}{WARNING[1:]}.** Records can be read out
of a model that was trained on them.

Several adapters on one base model answer each token together, by the weighted mean of their
probabilities (job `{job}`):

{shares}

A server on this machine alone: `fedpriv-client serve-model .`. From Python:
`fedpriv.load_site_model(".")`.
"""


class OneAdapter(nn.Module):
    """Make a site model answer as one of its adapters alone.

    Args:
        index: the adapter's position.
        halves: read a text in two halves, the second with what the cache keeps of the first.
    """

    def __init__(self, model: SiteModel, index: int, *, halves: bool) -> None:
        super().__init__()
        self.model, self.index, self.halves = model, index, halves

    def forward(self, input_ids: Tensor, **_: Any) -> CausalLMOutput:
        """Give the logits of that adapter, (B, T, V) or (B, labels)."""
        given: dict[str, Any] = {"use_cache": True} if self.halves else {}
        found, model = [], cast(Any, self.model)  # nn.Module types it as a tensor
        for part in torch.tensor_split(input_ids, 2, dim=1) if self.halves else [input_ids]:
            told = model.rows(input_ids=part, **given)
            found.append(told.logits[self.index :: len(model.names)])
            if self.halves:
                given["cache"] = model.cache_of(told)
        return CausalLMOutput(logits=torch.cat(found, dim=1) if self.halves else found[0])


def check_answers(folder: Path, base: Base, recipe: ModelRecipe) -> None:
    """Check that several adapters at once answer as each does alone, with a cache and without.

    Args:
        base: the base of `recipe`, in float32. It is changed.

    Raises:
        ModelError: they answer differently.
    """
    kind = base.model.config.model_type
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the folder is not yet where it will be
            made = load_site_model(folder)
    except ValueError as error:  # the configuration of an adapter asks for something unknown
        raise ModelError(f"model.name: a {kind} can't answer so: {first_line(error)}.") from None
    model = attach_lora(base, recipe.lora, recipe.model.task, seed=recipe.seed)
    for index, name in enumerate(made.names):
        read_into(model, folder / name, read_facts(folder / name))
        trial = Trial(model, base.tokenizer, recipe.model.max_length, AS_IT_IS)
        ways = (False, True) if made.can_generate() else (False,)
        try:
            off = max(trial.other_off_by(OneAdapter(made, index, halves=halves)) for halves in ways)
        except Exception as error:  # an architecture may fail in any way
            why = f"{type(error).__name__}: {first_line(error)}"
        else:
            why = f"the logits of {name!r} are off by {off:.0f} times what rounding explains"
            if off <= 1:
                continue
        raise ModelError(
            f"model.name: a {kind} does not compute several adapters at once as"
            f" it computes one: {why}. Keep one adapter: fedpriv-client personalise --single."
        )
