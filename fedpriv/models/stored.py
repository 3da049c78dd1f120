"""Where a base model is stored, and how large it is; nothing here loads it."""

from __future__ import annotations

import json
import math
from pathlib import Path

EMBEDDED = Path(__file__).parent.parent / "assets" / "base"
INDEX = "model.safetensors.index.json"


def source_of(name: str) -> str:
    """The folder or hub name that a model's name stands for."""
    return str(EMBEDDED) if name == "embedded" else name


def parameters_of(name: str) -> int | None:
    """How many parameters a base model has: of its folder, or of the hub's copy on this machine.

    Only the headers of its safetensors are read. What is not on this machine is asked of the hub.

    Returns:
        None where it can't be told.
    """
    from huggingface_hub import get_safetensors_metadata, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    from safetensors import SafetensorError

    source = source_of(name)
    is_folder = Path(source).is_dir()
    try:
        folder = source if is_folder else snapshot_download(source, local_files_only=True)
        return _count(Path(folder))
    except HFValidationError:
        return None
    except (LocalEntryNotFoundError, OSError, ValueError, KeyError, SafetensorError):
        if is_folder:
            return None
    try:
        return sum(get_safetensors_metadata(source).parameter_count.values())
    except Exception:  # a network, its proxies and the hub raise what they like
        return None


def _count(folder: Path) -> int:
    from safetensors import safe_open

    index = folder / INDEX
    names = {"model.safetensors"}
    if index.exists():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    count = 0
    for name in sorted(names):
        with safe_open(folder / name, framework="numpy") as file:
            count += sum(math.prod(file.get_slice(key).get_shape()) for key in file.keys())  # noqa: SIM118
    return count
