"""Begin a job at an earlier adapter: continue it, or merge it into its base.

Privacy
    The adapter at which a job begins is public, and the same for all sites. Every gradient is taken
    at values that follow from it, so an adapter that a site trained on its own records without
    privacy is refused (law 16). For any other adapter the proposer gives their word that it was
    made of public data, or released by those who paid for it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedpriv.adapter_facts import read_facts
from fedpriv.base_model import FACTS
from fedpriv.errors import ModelError
from fedpriv.models.base import Base
from fedpriv.models.config import ModelSection
from fedpriv.models.lora import attach_lora
from fedpriv.models.stored import digests_of_use
from fedpriv.plain_training.adapter import put_tensors
from fedpriv.stored_adapter import StoredAdapter, find_adapter


def begun(base: Base, settings: ModelSection) -> Base:
    """Return the base of a job with its first adapter, merged into it or yet to be put on.

    Raises:
        ConfigError: as for `find_adapter`.
        ModelError: the adapter is for another base, or can't be merged into this one.
    """
    assert settings.begin is not None
    stored = find_adapter(settings.begin)
    _check_base(settings, stored, base)
    base = replace(base, begin_digest=stored.digest)
    if settings.begin_as == "merged":
        return _merged(base, settings, stored)
    return replace(base, begin=partial(_put, stored.weights))


def _put(weights: Path, model: Any) -> None:
    try:
        put_tensors(model, weights)
    except ModelError as error:
        raise ModelError(f"model.begin: {weights}: {error}.") from None


def _merged(base: Base, settings: ModelSection, stored: StoredAdapter) -> Base:
    model: Any = attach_lora(base, stored.lora, settings.task, seed=0)
    try:
        put_tensors(model, stored.weights)
        every = base.model.named_parameters(remove_duplicate=False)
        held = Counter(parameter.data_ptr() for _, parameter in every)
        for name, layer in model.named_modules():
            # The layer beside which LoRA goes, or that a layer trained as a whole replaces.
            before = getattr(layer, "base_layer", getattr(layer, "original_module", None))
            own = [] if before is None else [held[one.data_ptr()] for one in before.parameters()]
            if any(holders > 1 for holders in own):
                raise ModelError(f"{name} shares its weights with another layer")
        plain = model.merge_and_unload(safe_merge=True)
    except (ModelError, ValueError) as error:
        raise ModelError(f"model.begin: {settings.begin!r} can't be merged: {error}.") from None
    plain.requires_grad_(False)
    return replace(base, model=plain.eval())


def _check_base(settings: ModelSection, stored: StoredAdapter, base: Base) -> None:
    """Compare the base with what fedpriv wrote about an adapter.

    Others are known by shapes alone.
    """
    folder = stored.weights.parent
    if not (folder / FACTS).exists():
        return
    proposal = read_facts(folder).proposal
    other, why = proposal.base_digest, ""
    if other not in digests_of_use(base.digest) and base.digest not in digests_of_use(other):
        why = f"is of another base model, {other}; {settings.name!r} is {base.digest}"
    elif proposal.model.begin_as == "merged":
        why = "is of a base into which another adapter was merged: export that run with --merge"
    elif proposal.model.labels != settings.labels:
        why = f"has other labels than model.labels: {', '.join(proposal.model.labels)}"
    if why:
        raise ModelError(f"model.begin: {settings.begin!r} {why}.")
