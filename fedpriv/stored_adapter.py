"""Find an existing LoRA adapter of peft, and read its files before any model.

Privacy
    An adapter that a site trained on its own records without privacy is refused (law 16).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedpriv.base_model import CONFIG, FACTS, MARK, WEIGHTS, is_lost
from fedpriv.errors import ConfigError
from fedpriv.files import canonical_json, file_digest, sha256
from fedpriv.model_size import header_of
from fedpriv.models.config import HEADS, LoraSection
from fedpriv.names import OWN_KINDS

# Settings of peft that do not change what an adapter computes, or that are read below.
_KNOWN = (
    *("auto_mapping", "base_model_name_or_path", "eva_config", "fan_in_fan_out", "inference_mode"),
    *("init_lora_weights", "lora_alpha", "lora_dropout", "megatron_core", "modules_to_save"),
    *("peft_type", "peft_version", "qalora_group_size", "r", "revision", "target_modules"),
    "task_type",
)
_DRAWN = (True, False, None, "gaussian", "orthogonal", "eva")  # the base stays as it is
_OWN_FOLDERS = {"site-model", "personal-work"}  # of a site, for its own models
_WHOLE = f"Name a folder with {CONFIG} and {WEIGHTS}, as peft writes it, or one at a hub."


@dataclass(frozen=True)
class StoredAdapter:
    """Hold the files of an adapter on this machine.

    Attributes:
        weights: the file of its values.
        lora: its settings, as a federation file would state them.
        digest: the digest of both, wherever the files are.
    """

    weights: Path
    lora: LoraSection
    digest: str


def find_adapter(name: str) -> StoredAdapter:
    """Find the adapter in a folder, or at a hub, from which it is downloaded once.

    Raises:
        ConfigError: there is none, no job can begin at it, or a site trained it on its own records.
    """
    config, weights = _files(name)
    refuse_own(weights.parent)
    if _OWN_FOLDERS.intersection(weights.resolve().parts):
        raise _refused(
            name, "is among the models that a site trained for itself, which never leave it"
        )
    lora = _settings(name, _read(config), weights)
    told = canonical_json([lora.model_dump(mode="json"), file_digest(weights)])
    return StoredAdapter(weights, lora, sha256(told))


def refuse_own(folder: Path) -> None:
    """Refuse a folder that holds an adapter which may never leave its site (law 16).

    Such an adapter is known by the file of facts beside it, and by a mark in its file of weights,
    wherever that is.

    Raises:
        ConfigError: it was trained on a site's own records without privacy; or it can't be read.
    """
    facts, weights = folder / FACTS, folder / WEIGHTS
    kinds = [_read(facts).get("kind")] if facts.exists() else []
    said = _read(weights).get("__metadata__") if weights.exists() else None
    kinds += [said.get(MARK)] if isinstance(said, dict) else []
    if own := [kind for kind in kinds if kind in OWN_KINDS]:
        raise ConfigError(
            "was trained on a site's own records without privacy, and never leaves that site:"
            " records can be read out of it",
            file=facts,
            key="kind",
            value=own[0],
            fix="What may be handed on, or begun at, is the adapter of a run itself. At the site,"
            " fedpriv-client evaluate says how good this one is.",
        )


def _files(name: str) -> tuple[Path, Path]:
    """Return an adapter's files of settings and weights, both from one folder."""
    folder = Path(name)
    if folder.is_dir():
        missing = [file for file in (CONFIG, WEIGHTS) if not (folder / file).is_file()]
        if missing:
            old = (folder / WEIGHTS).with_suffix(".bin").exists()
            said = ": its weights are pickled, which can run code" if old else ""
            raise _refused(name, f"has no {missing[0]}{said}")
        return folder / CONFIG, folder / WEIGHTS
    if is_lost(name):
        raise _refused(name, "there is no such folder")
    from huggingface_hub import hf_hub_download

    try:
        config = Path(hf_hub_download(name, CONFIG))
        return config, Path(hf_hub_download(name, WEIGHTS, revision=config.parent.name))
    except (OSError, ValueError) as error:
        said = str(error).strip().partition("\n")[0].rstrip(".")
        raise _refused(name, f"is no folder, and can't be loaded ({said})") from None


def _settings(name: str, said: Mapping[str, Any], weights: Path) -> LoraSection:
    """Return peft's settings of an adapter as a section of a federation file."""
    if said.get("peft_type") != "LORA":
        raise _refused(name, f"is no LoRA adapter: its peft_type is {said.get('peft_type')!r}")
    nothing: tuple[Any, ...] = (None, False, "none", "", [], {})
    odd = next((k for k, v in said.items() if k not in _KNOWN and v not in nothing), None)
    odd = odd if said.get("init_lora_weights") in _DRAWN else "init_lora_weights"
    if odd is not None:
        raise _refused(name, f"is more than a plain LoRA adapter: its {odd} is {said[odd]!r:.100}")
    targets, whole = said.get("target_modules"), said.get("modules_to_save") or []
    try:
        if isinstance(targets, str):  # a pattern: the tensors' names say what it matched
            found = (key.partition(".lora_A.") for key in _read(weights))
            targets = [name.removeprefix("base_model.model.") for name, cut, _ in found if cut]
        return LoraSection(
            r=said.get("r"),
            alpha=said.get("lora_alpha"),
            target_modules=sorted(targets or []),
            modules_to_save=sorted({*whole} - {*HEADS}),
        )
    except (ValidationError, TypeError) as error:
        first = error.errors()[0]["loc"][0] if isinstance(error, ValidationError) else "a name"
        raise _refused(name, f"has a {CONFIG} in which {first} is not valid") from None


def _read(path: Path) -> dict[str, Any]:
    """Read a file of an adapter; of the weights, only the header."""
    try:
        found = header_of(path) if path.name == WEIGHTS else json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError("can't be read as part of an adapter", file=path, fix=_WHOLE)
    return found


def _refused(name: str, problem: str) -> ConfigError:
    return ConfigError(problem, key="model.begin", value=name, fix=_WHOLE)
