"""What a model keeps from one forward pass for the next one, or for whoever saves it.

A forward pass may fill buffers, caches and counters. They are computed of records without noise,
and a checkpoint holds them, or the next evaluation shows them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.models.packed import Packed

_OF_TORCH = frozenset(vars(nn.Module())) | {"forward"}  # which engines replace
_CONTAINERS = (dict, list, set, deque)
_NO_STATE = (FunctionType, MethodType, ModuleType, type, nn.Module, torch.Generator)
_PLAIN = frozenset([bool, int, float, str, type(None), FunctionType, MethodType])
_AS_WIDE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Remembered:
    """What the modules of a model hold now, but for what is trained.

    These are buffers, other tensors, and what is in attributes: numbers, texts, containers and
    plain objects, which are looked into. Nobody copies a base, so of frozen parameters only a sum
    of their bits is kept, and of frozen weights in fewer bits nothing.

    Args:
        frozen: whether to read frozen parameters, too.
    """

    def __init__(self, model: nn.Module, *, frozen: bool = False) -> None:
        self._model, self._seen = model, set[int]()
        self._held: list[tuple[str, Any, Any]] = []  # a container, and a shallow copy of it
        self._tensors: list[tuple[str, Tensor, Tensor]] = []  # a tensor, and a copy of it
        self._sums = dict(_sums(model)) if frozen else {}
        for name, module in model.named_modules():
            if not isinstance(module, Packed):
                prefix = f"{name}." if name else ""
                for held in (module._buffers, vars(module)):
                    self._hold(prefix, held)

    def changed(self) -> list[str]:
        """The names of what is not as it was."""
        found = [
            f"{prefix}{_first_difference(container, copy)}"
            for prefix, container, copy in self._held
            if not _is_same(container, copy)
        ]
        found += [name for name, now, copy in self._tensors if not _is_equal(now, copy)]
        sums = _sums(self._model) if self._sums else ()
        return found + [name for name, now in sums if self._sums.get(name) != now]

    def put_back(self) -> None:
        """Let all but frozen parameters be as it was."""
        for _, container, copy in self._held:
            if not _is_same(container, copy):
                _fill(container, copy)
        for _, now, copy in self._tensors:
            if _is_equal(now, copy):
                continue
            if now.shape == copy.shape and not now.is_inference():
                now.detach().copy_(copy)  # in place: others may share its memory
            else:
                now.data = copy

    def _hold(self, prefix: str, container: Any) -> None:
        self._seen.add(id(container))
        self._held.append((prefix, container, container.copy()))
        items = _own(container).items() if isinstance(container, dict) else enumerate(container)
        for key, value in items:
            if type(value) not in _PLAIN:
                self._look_at(f"{prefix}{key}", value)

    def _look_at(self, name: str, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            value = torch.from_numpy(value)
        if isinstance(value, Tensor):
            if not isinstance(value, nn.Parameter):
                self._tensors.append((name, value, value.detach().clone()))
        elif isinstance(value, tuple):
            for place, part in enumerate(value):
                self._look_at(f"{name}.{place}", part)
        elif id(value) in self._seen or isinstance(value, _NO_STATE):
            pass
        elif isinstance(value, _CONTAINERS):
            self._hold(f"{name}.", value)
        elif hasattr(value, "__dict__"):
            self._seen.add(id(value))
            self._hold(f"{name}.", vars(value))


def _own(container: dict[Any, Any]) -> dict[Any, Any]:
    """What is in a module's attributes beside what every module has."""
    return {key: value for key, value in container.items() if key not in _OF_TORCH}


def _is_same(container: Any, copy: Any) -> bool:
    """Whether the same objects are in both, or equal ones that are no tensors."""
    try:
        if container == copy:
            return True
        return isinstance(copy, dict) and _own(container) == _own(copy)
    except Exception:  # a tensor was replaced, and is neither equal nor not
        return False


def _first_difference(container: Any, copy: Any) -> Any:
    if not isinstance(copy, dict):
        return "…"
    missing = object()
    keys = [*_own(copy), *_own(container)]
    pairs = ((key, container.get(key, missing), copy.get(key, missing)) for key in keys)
    return next((key for key, now, then in pairs if not _is_same([now], [then])), "…")


def _fill(container: Any, copy: Any) -> None:
    if isinstance(container, dict):
        for key in _own(container).keys() - copy.keys():
            del container[key]
        container.update(_own(copy))
        return
    container.clear()
    (container.update if isinstance(container, set) else container.extend)(copy)


def _is_equal(now: Tensor, copy: Tensor) -> bool:
    """To the bit: what is not a number is the same as before, too."""
    if (now.shape, now.dtype) != (copy.shape, copy.dtype):
        return False
    return torch.equal(now, copy) or torch.equal(_bits(now), _bits(copy))


def _bits(tensor: Tensor) -> Tensor:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(_AS_WIDE[flat.element_size()]) if flat.is_floating_point() else flat


def _sums(model: nn.Module) -> Iterator[tuple[str, int]]:
    """A sum of the bits of each frozen parameter, by its name."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            yield name, int(_bits(parameter).sum(dtype=torch.int64))
