"""Compute a base model's digest from what its files hold, however and wherever it is loaded."""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.errors import ModelError
from fedpriv.models.config import Bits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Keys of a configuration that say where it came from, what head it carries, or name code.
NOT_THE_MODEL = (
    "_commit_hash",
    "_name_or_path",
    "architectures",
    "auto_map",
    "custom_pipelines",
    "dtype",
    "id2label",
    "label2id",
    "num_labels",
    "pad_token_id",
    "problem_type",
    "torch_dtype",
    "transformers_version",
    "transformers_weights",
)

# What `fedpriv.models.quantised` makes of weights; another way would have another name.
_FORMATS: dict[Bits, str] = {
    "8bit": "bitsandbytes dynamic 8-bit, blocks of 64",
    "4bit": "bitsandbytes nf4, blocks of 64",
}
_HALVES = {"BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True)
class StoredBase:
    """The files of a base model on this machine.

    Attributes:
        revision: the commit of the hub's repository; None for a folder.
        settings: the stored configuration.
        weights: safetensors files that together hold every tensor once.
    """

    revision: str | None
    settings: dict[str, Any]
    weights: tuple[Path, ...]


def find_base(source: str) -> StoredBase:
    """Find the files that `transformers` loads for a folder or hub name, downloaded once.

    Raises:
        ModelError: there are no safetensors, or there is an adapter that would be loaded on top of
            them.
        OSError: it is not found.
    """
    from transformers import PretrainedConfig
    from transformers.utils import hub
    from transformers.utils.peft_utils import find_adapter_config_file

    shards_of: Any = hub.get_checkpoint_shard_files
    revision = None
    if not Path(source).is_dir():
        revision = hub.extract_commit_hash(hub.cached_file(source, "config.json"), None)
    settings, _ = PretrainedConfig.get_config_dict(source, revision=revision)
    if find_adapter_config_file(source, revision=revision):
        raise ModelError(
            f"model.name: {source!r} holds an adapter, which would change the model. Merge it into"
            " the weights, or name the folder of the model alone."
        )
    named = settings.get("transformers_weights")
    for name in (named,) if named else ("model.safetensors", "model.safetensors.index.json"):
        found = hub.cached_file(
            source, name, revision=revision, _raise_exceptions_for_missing_entries=False
        )
        if found is None:
            continue
        if name.endswith(".index.json"):
            shards, _ = shards_of(source, found, revision=revision)
            return StoredBase(revision, settings, tuple(map(Path, shards)))
        return StoredBase(revision, settings, (Path(found),))
    raise ModelError(
        f"model.name: {source!r} has no model.safetensors. Convert its weights to safetensors;"
        " pickled ones can run code and are never loaded."
    )


def base_digest(stored: StoredBase, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return SHA-256 over all of a base that decides a gradient: configuration, tokenizer, weights.

    It covers the tensors as they are stored, by name. Their files and order, and the number format
    in which a site computes, make no difference. A head that a site draws anew is not stored, and
    so no part of it.

    Raises:
        ModelError: the weights can't be read, or hold a tensor twice.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    settings = {k: v for k, v in stored.settings.items() if k not in NOT_THE_MODEL}
    digest = hashlib.sha256(
        json.dumps([settings, *_words(tokenizer)], sort_keys=True, default=str).encode()
    )
    files: dict[str, Any] = {}  # tensor → the open file that holds it
    try:
        with ExitStack() as stack:
            for path in stored.weights:
                file = stack.enter_context(safe_open(path, framework="pt"))
                for name in list(file.keys()):
                    if name in files:
                        raise ModelError(f"{path}: tensor {name!r} is in another file, too.")
                    files[name] = file
            for name in sorted(files):
                tensor = files[name].get_tensor(name)  # mapped from the file, not copied
                header = json.dumps([name, list(tensor.shape), str(tensor.dtype)])
                digest.update(header.encode())
                digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    except (OSError, SafetensorError) as error:
        raise ModelError(f"model.name: its weights can't be read: {error}.") from None
    return "sha256:" + digest.hexdigest()


def quantised_digest(digest: str, bits: Bits | None) -> str:
    """Return the digest of a base whose frozen weights are quantised, from that of its files.

    So anyone who knows the files knows it, and a base in other bits is another base.
    """
    if bits is None:
        return digest
    return "sha256:" + hashlib.sha256(f"{digest} {_FORMATS[bits]}".encode()).hexdigest()


def stored_type(stored: StoredBase) -> str:
    """Return the 16-bit number format that all tensors in a base's files share, else float32.

    Raises:
        SafetensorError, OSError: they can't be read.
    """
    from safetensors import safe_open

    found = set()
    for path in stored.weights:
        with safe_open(path, framework="pt") as file:
            found |= {file.get_slice(name).get_dtype() for name in list(file.keys())}
    return _HALVES.get(found.pop(), "float32") if len(found) == 1 else "float32"


def _words(tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """Return all of a tokenizer that decides which tokens a text becomes."""
    words: Any = tokenizer
    backend = getattr(words, "backend_tokenizer", None)
    vocabulary = backend.to_str() if backend is not None else sorted(words.get_vocab().items())
    special = {name: str(token) for name, token in words.special_tokens_map.items()}
    # Added where there is something to add, so that other digests stay as they were.
    ranks = getattr(words, "bpe_ranks", None) if backend is None else None
    more: list[Any] = [] if ranks is None else [sorted(map(str, ranks.items()))]
    more += ["split_special_tokens"] * bool(getattr(words, "split_special_tokens", False))
    return [vocabulary, [words.chat_template, words.padding_side, special], *more]
