"""Where a base model is stored, and how large it is; nothing here loads it."""

from __future__ import annotations

import json
import math
from pathlib import Path

EMBEDDED = Path(__file__).parent / "assets" / "base"
INDEX = "model.safetensors.index.json"
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


def source_of(name: str) -> str:
    """The folder or hub name that a model's name stands for."""
    return str(EMBEDDED) if name == "embedded" else name


def is_lost(name: str) -> bool:
    """Whether a model's name is the path of a folder that is not there."""
    is_path = Path(name).is_absolute() or name.startswith((".", "~")) or name.count("/") > 1
    return is_path and not Path(name).is_dir()


def parameters_of(name: str) -> int | None:
    """How many parameters a base model has: of its folder, or of the hub's copy on this machine.

    Only the headers of its safetensors are read. What is not on this machine is asked of the hub.

    Returns:
        None where it can't be told.
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


def _count(folder: Path) -> int | None:
    """None where the files are not there, or not what they should be."""
    from safetensors import SafetensorError, safe_open

    index, names = folder / INDEX, {"model.safetensors"}
    found = 0
    try:
        if index.exists():
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        for name in names:
            with safe_open(folder / name, framework="np") as file:
                shapes = [file.get_slice(tensor).get_shape() for tensor in list(file.keys())]
            found += sum(map(math.prod, shapes))
    except (SafetensorError, *_UNREADABLE):
        return None
    return found
