"""Load a run's model with its adapter, for other uses than training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from fedpriv.adapter_facts import AdapterFacts
from fedpriv.base_model import BEGIN, CONFIG, FACTS, WEIGHTS, is_lost
from fedpriv.data.config import DataSection
from fedpriv.documents import read_json
from fedpriv.errors import ModelError, RunError
from fedpriv.models.config import ModelSection
from fedpriv.plain_training.adapter import read_into
from fedpriv.report.rundir import Part

if TYPE_CHECKING:
    from peft import PeftModel

    from fedpriv.models.base import Base


class Used(Part):
    """The parts of a federation file that are needed to load a run's model, and records for it."""

    model: ModelSection
    data: DataSection = DataSection()


class Settings(Part):
    """From run.json: the federation file, whether the noise was secret, and facts of the base."""

    config: Used
    private: bool
    model: dict[str, Any] = Field({})


def settings_of(run: Path) -> Settings:
    """Return the settings by which a run was made.

    Raises:
        ConfigError: run.json is malformed.
    """
    found = read_json(run / "run.json", Settings, strict=False)
    model, moved = found.config.model, run / str(found.model.get("folder"))
    if not is_lost(model.name) or not moved.is_dir():
        return found
    model = model.model_copy(update={"name": str(moved.resolve())})  # moved together with the run
    return found.model_copy(update={"config": found.config.model_copy(update={"model": model})})


def check_whole(run: Path) -> None:
    """Check that a run directory has all files of its model, in case only a part was copied.

    Raises:
        RunError: a file is missing; the error names it.
    """
    names = ["run.json", *(f"adapter/{name}" for name in (CONFIG, WEIGHTS, FACTS))]
    missing = [name for name in names if not (run / name).exists()]
    if missing and len(missing) < len(names):
        raise RunError(
            f"{run / missing[0]}: is missing. Copy the whole run directory again (its folder"
            " `private` is not needed). A job that has not ended has no adapter yet."
        )


def load(
    folder: Path, settings: ModelSection, facts: AdapterFacts, where: str | None = None
) -> tuple[Base, PeftModel]:
    """Load a run's model with its adapter, in float32 on the CPU, however it was trained.

    A base that was stored in fewer bits gets the weights with which training computed.

    Args:
        folder: folder of the adapter.
        settings: settings of the model, with a name by which it is found here.
        facts: facts of the adapter.
        where: folder or hub name of the base, if it has moved since the run.

    Raises:
        ModelError: the base can't be loaded, or is not the base of the run.
        ConfigError: the adapter is for another model.
    """
    from fedpriv.models.base import load_base
    from fedpriv.models.lora import attach_lora, trained_whole
    from fedpriv.models.quantised import unpack

    proposal, settings = facts.proposal, settings.begun()
    if settings.begin is not None and (merged := folder.parent / BEGIN).exists():
        settings = settings.model_copy(update={"begin": str(merged)})
    if where is None and is_lost(settings.name):
        raise ModelError(
            f"model.name: there is no such folder: {settings.name!r}, where the run had its base"
            " model. Say where it is now: --model FOLDER, or a hub model."
        )
    if where is not None:
        settings = settings.model_copy(update={"name": where})
    base = load_base(settings, seed=proposal.seed, whole=trained_whole(proposal.lora))
    unpack(base.model)
    for key, name, here, there, was in (
        ("name", settings.name, base.digest, proposal.base_digest, "was made with"),
        ("begin", settings.begin, base.begin_digest, proposal.begin_digest, "began at"),
    ):
        if here not in (None, there):
            other = f"{name!r} is {here} here, and the run {was} {there}"
            raise ModelError(f"model.{key}: {other}. Put that one back.")
    model = attach_lora(base, proposal.lora, settings.task, seed=proposal.seed)
    read_into(model, folder, facts)
    return base, model
