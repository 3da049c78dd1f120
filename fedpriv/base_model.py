"""Where a base model and an adapter are stored; nothing here loads one."""

from __future__ import annotations

from pathlib import Path

# Files of an adapter: peft's settings of it and its weights, and what fedpriv knows of it.
CONFIG, WEIGHTS, FACTS = "adapter_config.json", "adapter_model.safetensors", "fedpriv.json"
# In the weights' file of one that may never leave its site; and in a run directory, of one that was
# merged into the base.
MARK, BEGIN = "fedpriv.kind", "begin"
EMBEDDED = Path(__file__).parent / "assets" / "base"


def source_of(name: str) -> str:
    """Return the folder or hub name that a model's name stands for."""
    return str(EMBEDDED) if name == "embedded" else name


def is_lost(name: str) -> bool:
    """Tell whether a model's name is the path of a missing folder."""
    is_path = Path(name).is_absolute() or name.startswith((".", "~")) or name.count("/") > 1
    return is_path and not Path(name).is_dir()
