"""Find out how large a stored model is, from the headers of its files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fedpriv.base_model import source_of

INDEX = "model.safetensors.index.json"
METADATA = "__metadata__"  # the one key of a header that is no tensor
LONGEST_HEADER = 100_000_000  # bytes, as the library's own limit


def parameters_of(name: str) -> int | None:
    """Count a base model's parameters, in its folder or in the hub's copy on this machine.

    Only the headers of its safetensors are read. If the model is not on this machine, the hub is
    asked.

    Returns:
        The number, or None if it can't be found.
    """
    source = source_of(name)
    if Path(source).is_dir():
        return _count(Path(source))
    from huggingface_hub import get_safetensors_metadata, snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        count = _count(Path(snapshot_download(source, local_files_only=True)))
    except HFValidationError:
        return None
    except OSError:  # it is not here
        count = None
    if count is not None:
        return count
    try:
        return sum(get_safetensors_metadata(source).parameter_count.values())
    except Exception:  # a network, its proxies and the hub raise what they like
        return None


def header_of(path: Path) -> Any:
    """Read the header of a safetensors file. The library itself would load numpy for that.

    Raises:
        OSError, ValueError, RecursionError: it can't be read.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > LONGEST_HEADER:
            raise ValueError(f"{path}: no safetensors file")
        return json.loads(file.read(length))


def _count(folder: Path) -> int | None:
    """Count the parameters; None if the files are missing or malformed."""
    index = folder / INDEX
    names = {"model.safetensors"}
    try:
        if index.exists():
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        headers = [header_of(folder / name) for name in names]
        tensors = [tensor for one in headers for key, tensor in one.items() if key != METADATA]
        count: int = sum(math.prod(tensor["shape"]) for tensor in tensors)
        return count
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
