"""A run's model, loaded with its adapter for other uses than training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from fedpriv.base_model import is_lost
from fedpriv.data.config import DataSection
from fedpriv.errors import ConfigError, ModelError
from fedpriv.models.config import ModelSection
from fedpriv.names import OWN_KINDS
from fedpriv.plain_training.adapter import FACTS, AdapterFacts, read_facts, read_into
from fedpriv.report import budget
from fedpriv.report.rundir import Part

if TYPE_CHECKING:
    from peft import PeftModel

    from fedpriv.models.base import Base


class Used(Part):
    """What of a federation file is needed to load a run's model again, and to read for it."""

    model: ModelSection
    data: DataSection = DataSection()


class Settings(Part):
    """The federation file within run.json, and whether the run kept its claim."""

    config: Used
    private: bool


def settings_of(run: Path) -> Settings:
    """What a run was made by.

    Raises:
        ConfigError: run.json is malformed.
    """
    path = run / "run.json"
    try:
        return Settings.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise budget.malformed(error, path) from None


def refuse_own(folder: Path) -> None:
    """Refuse a folder that holds an adapter which may never leave its site (law 16).

    Raises:
        ConfigError: it was trained on a site's own records without privacy.
    """
    if not (folder / FACTS).exists():
        return
    facts = read_facts(folder)
    if facts.kind in OWN_KINDS:
        raise ConfigError(
            "was trained on a site's own records without privacy, and never leaves that site:"
            " records can be read out of it",
            file=folder / FACTS,
            key="kind",
            value=facts.kind,
            fix="What may be handed on is the adapter of the run itself. How good this one is,"
            " fedpriv-client evaluate says at the site.",
        )


def load(
    folder: Path, settings: ModelSection, facts: AdapterFacts, where: str | None = None
) -> tuple[Base, PeftModel]:
    """A run's model with its adapter, in float32 on the CPU, however it was trained.

    A base that was kept in fewer bits has the weights that it was computed with.

    Args:
        folder: of the adapter.
        settings: of the model, with a name by which it is found here.
        facts: of the adapter.
        where: folder or hub name of the base, where it is no longer where the run had it.

    Raises:
        ModelError: the base can't be loaded, or is another one than that of the run.
        ConfigError: the adapter is not of this model.
    """
    from fedpriv.models.base import load_base
    from fedpriv.models.lora import attach_lora, trained_whole
    from fedpriv.models.quantised import unpack

    proposal = facts.proposal
    if where is None and is_lost(settings.name):
        raise ModelError(
            f"model.name: there is no such folder: {settings.name!r}, where the run had its base"
            " model. Say where it is now: --model FOLDER, or a hub model."
        )
    if where is not None:
        settings = settings.model_copy(update={"name": where})
    base = load_base(settings, seed=proposal.seed, whole=trained_whole(proposal.lora))
    unpack(base.model)
    if base.digest != proposal.base_digest:
        raise ModelError(
            f"model.name: {settings.name!r} is {base.digest} here, and the run was made with"
            f" {proposal.base_digest}. Put that one back."
        )
    model = attach_lora(base, proposal.lora, settings.task, seed=proposal.seed)
    read_into(model, folder, facts)
    return base, model
