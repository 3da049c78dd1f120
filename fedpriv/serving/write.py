"""Write a site model: base, adapters, tokenizer, and a card that says it has to stay.

Privacy
    Some of the adapters were trained on a site's own records without noise, so the folder is as
    confidential as these. It is for its owner alone (law 16).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedpriv.base_model import CONFIG, WEIGHTS
from fedpriv.base_model import FACTS as FACTS_OF_ADAPTER
from fedpriv.errors import ConfigError
from fedpriv.files import replacing_folder, write_atomic
from fedpriv.models.base import Base, load_base
from fedpriv.models.digest import find_base, stored_type
from fedpriv.models.lora import trained_whole
from fedpriv.models.quantised import unpack
from fedpriv.personal.own_adapter import WARNING
from fedpriv.plain_training.adapter import CARD, read_facts
from fedpriv.private_training.worker import ModelRecipe
from fedpriv.serving.config import SiteModelConfig
from fedpriv.serving.folder import BASE, FACTS, SiteModelFacts, digests, place_of
from fedpriv.serving.model import SiteModelForCausalLM, SiteModelForSequenceClassification
from fedpriv.serving.trial import check_answers


def write_site_model(
    folder: Path,
    recipe: ModelRecipe,
    adapters: Mapping[str, Path],
    weights: Mapping[str, float],
    *,
    site: str,
    job: str,
) -> Path:
    """Write the folder, in the place of an earlier one, and check that it answers as it should.

    It is there as a whole or not at all, for its owner alone.

    Args:
        recipe: of the model that the adapters were trained on.
        adapters: name → folder of the adapter, as `write_adapter` makes it.
        weights: name → share of the probabilities, of those that answer; their sum is 1.

    Raises:
        ConfigError: an adapter is of another base, or the weights are none.
        ModelError: the base can't be loaded, or transformers computes something else of it with
            several adapters at once.
        OSError: there is no room, or the disk fails.
    """
    whole = trained_whole(recipe.lora)
    base = load_base(recipe.model.begun(), seed=recipe.seed, whole=whole)
    unpack(base.model)
    for path in adapters.values():
        expected = read_facts(path).proposal.base_digest
        if expected != base.digest:
            raise ConfigError(
                f"is of another base model than {recipe.model.name!r}, which is {base.digest} here",
                file=path,
                value=expected,
                fix="Put the base of the job back, or name an adapter of this base.",
            )
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
    """Write the base in the format of its files, where that loses nothing."""
    model: Any = base.model
    model = model.encoder if recipe.model.pooling == "mean" else model
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    kind: torch.dtype = getattr(torch, stored_type(find_base(base.source)))
    halved = {name: value.to(kind) for name, value in model.state_dict().items()}
    if all(torch.equal(halved[name].float(), value) for name, value in model.state_dict().items()):
        model = model.to(kind)
    model.config.use_cache = True  # training needs none; who generates does
    model.save_pretrained(folder)
    model.float()
    for name, value in model.named_buffers():  # such as frequencies, which have no file
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

```python
import fedpriv.serving  # so that transformers knows site models
from transformers import AutoTokenizer

folder = "."  # where this card is
tokenizer = AutoTokenizer.from_pretrained(folder)
model = fedpriv.serving.load_site_model(folder)
```

A server of transformers' own on this machine alone: `fedpriv-client serve-model .`.
"""
