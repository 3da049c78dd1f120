"""Lets every Python that a test starts add in the other order, too: conftest.py says when.

It waits for torch to be imported, because some tests check that a process does without it.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class AfterTorch(MetaPathFinder):
    """Imports `tests.arithmetic`, which changes torch's sums, once torch is there."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Find torch, and nothing else."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def load_and_permute(module: ModuleType) -> None:
            load(module)
            importlib.import_module("tests.arithmetic")

        spec.loader.exec_module = load_and_permute  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, AfterTorch())
