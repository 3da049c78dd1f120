"""Write what a run made as a folder that others load: the adapter, or the model with it merged.

What goes in is public: the adapter was made from what the sites released and paid for, and their
budget reports are signed to be handed on. What a site trained for itself is refused.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedpriv.adapter_facts import AdapterFacts, read_facts
from fedpriv.base_model import CONFIG, EMBEDDED, FACTS, WEIGHTS, is_lost
from fedpriv.environment import without_hub_code
from fedpriv.errors import ConfigError, ModelError, RunError
from fedpriv.files import replacing_folder
from fedpriv.hub.card import AUTO, Contents, card
from fedpriv.hub.load import check_whole, load, settings_of
from fedpriv.models.base import quiet
from fedpriv.models.config import HUB_NAME, ModelSection
from fedpriv.plain_training.adapter import CARD, check_saved
from fedpriv.report import received
from fedpriv.report.rundir import RunDirectory, read_run
from fedpriv.stored_adapter import refuse_own

if TYPE_CHECKING:
    import torch
    from peft import PeftModel

    from fedpriv.models.base import Base
    from fedpriv.models.trial import Trial

Dtype = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class Wanted:
    """What to write.

    Attributes:
        merge: write the model with the adapter merged into it, instead of the adapter.
        dtype: type of a merged model's weights; None means the type in which the base is stored.
        base: the name of the base model at a hub, if the run had it from a folder.
        license: the licence that the card states.
        where: see `fedpriv.hub.load.load`.
    """

    merge: bool = False
    dtype: Dtype | None = None
    base: str | None = None
    license: str | None = None
    where: str | None = None


def export(run: Path, out: Path, wanted: Wanted) -> Contents:
    """Write the folder `out` from the run directory `run`, as a whole or not at all.

    Raises:
        ConfigError: it is an adapter that a site trained for itself (law 16); or what is wanted
            can't be made from this model.
        RunError: `run` is no run directory, its job is running, or `out` is not empty.
        LedgerCorruptError: a budget report is not signed, or was changed.
        ModelError: the base model is not what the run was made with, or what is written would not
            load to the same model.

    Privacy:
        Made from released values and signed reports alone.
    """
    for folder in (run, run / "adapter"):
        refuse_own(folder)
    if (run / FACTS).exists():
        raise RunError(
            f"{run}: is an adapter by itself, without the reports of what it cost. Give the"
            " directory of its run, such as runs/NAME."
        )
    check_whole(run)
    directory = read_run(run)
    if directory.run.status == "running":
        raise RunError(f"{run}: the job is still running. Wait until it has ended, or stop it.")
    facts = read_facts(run / "adapter")
    if facts.job != directory.run.job_id:
        problem = f"is of another job than the run, {directory.run.job_id!r}"
        file, fix = run / "adapter" / FACTS, "Copy the whole run directory again."
        raise ConfigError(problem, file=file, key="proposal.job_id", value=facts.job, fix=fix)
    for report in directory.reports:
        received.verify(report)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out}: is there already. Give another --out.")
    settings = settings_of(run).config.model
    contents = _contents(directory, settings, facts, wanted, run)
    base, model = load(run / "adapter", settings, facts, wanted.where)
    if not wanted.merge:
        fix = "Give --merge, which writes all of the model."
        check_saved(model, base.drawn, base.source, fix)
    from fedpriv.models.trial import AS_IT_IS, Trial

    trial = Trial(model, base.tokenizer, settings.max_length, AS_IT_IS)
    with replacing_folder(out) as made:
        if wanted.merge:
            kind = _write_merged(made, base, model, wanted.dtype, trial)
            _check_loads(trial, load_merged(made, contents.model), kind)
        else:
            _write_adapter(made, run / "adapter", contents)
            _check_loads(trial, load_adapter(made, base.source, contents.model))
        base.tokenizer.save_pretrained(made)
        (made / "budgets").mkdir()
        for report in directory.reports:
            received.write(report, made / "budgets" / f"{report.site}.json")
        (made / CARD).write_text(card(directory, contents), encoding="utf-8")
    return contents


def _contents(
    directory: RunDirectory, model: ModelSection, facts: AdapterFacts, wanted: Wanted, run: Path
) -> Contents:
    """Return what the folder will hold. Refuse what can't be made.

    Raises:
        ConfigError: no class of transformers could load the result, or an option is wrong.
    """
    file = run / "run.json"
    if wanted.merge and model.pooling == "mean":
        problem = "is a mean over tokens and a linear layer, which no class of transformers loads,"
        problem += " so a merged model would load as something else"
        fix = "Leave --merge out: the adapter's card says how fedpriv loads it."
        key = "config.model.pooling"
        raise ConfigError(problem, file=file, key=key, value=model.pooling, fix=fix)
    if model.begin_as == "merged" and not wanted.merge:
        problem = "is a base into which another adapter was merged, so that an adapter of it alone"
        problem += " would load as something else"
        key, fix = "config.model.begin_as", "Give --merge, which writes all of the model."
        raise ConfigError(problem, file=file, key=key, value=model.begin_as, fix=fix)
    if wanted.dtype is not None and not wanted.merge:
        problem = "is for a merged model; an adapter is handed on as it was trained"
        fix = "Leave it out, or add --merge."
        raise ConfigError(problem, key="--dtype", value=wanted.dtype, fix=fix)
    if wanted.base is not None and not re.fullmatch(HUB_NAME, wanted.base):
        fix = "Give OWNER/NAME."
        raise ConfigError("is no name at a hub", key="--base", value=wanted.base, fix=fix)
    named = model.name != "embedded" and not Path(model.name).exists() and not is_lost(model.name)
    return Contents(
        private=directory.is_private,
        merged=wanted.merge,
        base=wanted.base or (model.name if named else None),
        base_here=model.name == "embedded" and not wanted.merge,
        model=model,
        license=wanted.license,
        weights_digest=facts.weights_digest,
    )


def _write_adapter(folder: Path, trained: Path, contents: Contents) -> None:
    """Write the run's own files, with another path of the base model."""
    shutil.copyfile(trained / WEIGHTS, folder / WEIGHTS)
    config = json.loads((trained / CONFIG).read_text(encoding="utf-8"))
    here = Path(contents.model.name).name  # without the path on this machine, which is not public
    config["base_model_name_or_path"] = "base" if contents.base_here else contents.base or here
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if contents.base_here:
        shutil.copytree(EMBEDDED, folder / "base")


def _write_merged(
    folder: Path, base: Base, model: PeftModel, dtype: Dtype | None, trial: Trial
) -> torch.dtype:
    """Write W + α/r · BA, added up in float32 and then stored in `dtype`. Return that type.

    Raises:
        ModelError: the weights are too large for that type, or the sum computes something else.
    """
    import torch

    from fedpriv.models.digest import find_base

    stored = find_base(base.source).settings
    kind = dtype or str(stored.get("dtype") or stored.get("torch_dtype") or "float32")
    merged: Any = model.merge_and_unload()
    _check_loads(trial, merged)
    merged.to(getattr(torch, kind))
    if not all(torch.isfinite(value).all() for value in merged.state_dict().values()):
        raise ModelError(f"A merged weight is too large for {kind}. Give --dtype float32.")
    merged.config.use_cache = True  # training needs no cache, but generating does
    merged.save_pretrained(folder)
    return getattr(torch, kind)  # type: ignore[no-any-return]


def _check_loads(trial: Trial, model: Any, stored: torch.dtype | None = None) -> None:
    """Compare what was written with what was trained, on random texts.

    Args:
        model: the written model, as transformers and peft load it.
        stored: the type in which its weights were stored meanwhile, if it has fewer bits.

    Raises:
        ModelError: the written model computes something else.
    """
    off = trial.other_off_by(model, stored)
    if off > 1:
        raise ModelError(
            "What would be written is not what was trained: its logits are off by"
            f" {off:.0f} times what rounding explains. A layer that shares its weights with another"
            " can't have an adapter merged into it: leave --merge out, or train that layer whole"
            " (lora.modules_to_save)."
        )


_PLAINLY: dict[str, Any] = {"dtype": "float32", "use_safetensors": True, "trust_remote_code": False}


@without_hub_code()
def load_merged(folder: Path, settings: ModelSection) -> Any:
    """Load a model with transformers alone, in float32."""
    with quiet():
        model = _auto(settings).from_pretrained(folder, **_PLAINLY)
    return model.eval()


@without_hub_code()
def load_adapter(folder: Path, base: str, settings: ModelSection) -> Any:
    """Load an adapter on its base, in float32. Quantised weights are rounded as in the run."""
    from peft import PeftModel

    from fedpriv.models.quantised import round_weights

    options = dict(_PLAINLY)
    if settings.task == "classification":
        options["num_labels"] = len(settings.labels)
    with quiet():
        if settings.pooling == "mean":
            from fedpriv.models.pooled import MeanPooledClassifier

            options["output_loading_info"] = True
            model, _ = MeanPooledClassifier.from_encoder(base, **options)
        else:
            options["ignore_mismatched_sizes"] = settings.task == "classification"
            model = _auto(settings).from_pretrained(base, **options)
    if settings.quantize is not None:
        round_weights(model, settings.quantize)
    return PeftModel.from_pretrained(model, folder).eval()


def _auto(settings: ModelSection) -> Any:
    import transformers

    return getattr(transformers, AUTO[settings.task])
