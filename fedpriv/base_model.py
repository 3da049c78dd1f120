"""Where a base model and an adapter are stored; nothing here loads one."""

from __future__ import annotations

from pathlib import Path

# Files of an adapter: peft's settings, the weights, and what fedpriv knows about it.
CONFIG, WEIGHTS, FACTS = "adapter_config.json", "adapter_model.safetensors", "fedpriv.json"
# The mark in the weights' file of an adapter that may never leave its site; and the folder, in a
# run directory, of an adapter that was merged into the base.
MARK, BEGIN = "fedpriv.kind", "begin"
EMBEDDED = Path(__file__).parent / "assets" / "base"


def source_of(name: str) -> str:
    """Return the folder or hub name that a model's name stands for."""
    return str(EMBEDDED) if name == "embedded" else name


def is_lost(name: str) -> bool:
    """Tell whether a model's name is the path of a missing folder."""
    is_path = Path(name).is_absolute() or name.startswith((".", "~")) or name.count("/") > 1
    return is_path and not Path(name).is_dir()
