"""Find what a model keeps from one forward pass for the next one, or for a checkpoint.

A forward pass may fill buffers, caches and counters. They are computed from records without noise.
A checkpoint would hold them, or the next evaluation would show them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.models.packed import Packed

log = logging.getLogger(__name__)
_OF_TORCH = frozenset(vars(nn.Module())) | {"forward", "train"}  # engines replace these two
_CONTAINERS = (dict, list, set, deque)
_NO_STATE = (FunctionType, MethodType, ModuleType, type, torch.Generator)
_DESCRIBED = [property, classmethod, staticmethod]  # in a class
_PLAIN = frozenset([bool, int, float, str, type(None), FunctionType, MethodType, *_DESCRIBED])
_AS_WIDE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_OF_LIBRARIES = ("torch.", "builtins")


class Remembered:
    """Remember all that the modules of a model hold, except what is trained.

    These are buffers, other tensors, and what is in attributes, slots and the modules' own classes:
    numbers, texts, containers, modules outside the model, and plain objects with their contents. A
    base is not copied: only a sum of their bits is kept of frozen parameters, and nothing of frozen
    weights in fewer bits. Variables of functions and of Python modules are not looked at, nor
    classes of other objects.

    Args:
        frozen: whether to read frozen parameters, too.
    """

    def __init__(self, model: nn.Module, *, frozen: bool = False) -> None:
        self._seen = set[int]()
        self._held: list[tuple[str, Any, Any]] = []  # a holder, and a shallow copy of what is in it
        self._tensors: list[tuple[str, Tensor, Tensor]] = []  # a tensor, and a copy of it
        self._roots: list[tuple[str, nn.Module]] = []  # the model, and modules that it keeps aside
        self._trained = {id(p) for p in model.parameters() if p.requires_grad}
        self._look_at_modules("", model)
        self._sums = dict(self._sums_now()) if frozen else {}

    def changed(self) -> list[str]:
        """Return the names of what has changed."""
        found = [
            f"{prefix}{_first_difference(_content(container), copy)}"
            for prefix, container, copy in self._held
            if not _is_same(_content(container), copy)
        ]
        found += [name for name, now, copy in self._tensors if not _is_equal(now, copy)]
        sums = self._sums_now() if self._sums else ()
        return found + [name for name, now in sums if self._sums.get(name) != now]

    def put_back(self) -> None:
        """Put all of it back as it was, except frozen parameters.

        What can't be put back is only named in the log: no error of a record may stop a sum.
        """
        kept = [(_fill, *held) for held in self._held]
        for fill, name, now, copy in [*kept, *((_copy, *held) for held in self._tensors)]:
            try:
                fill(now, copy)
            except Exception as error:
                log.error("%s can't be put back: %s.", name, type(error).__name__)

    def _look_at_modules(self, name: str, root: nn.Module) -> None:
        """Look at a module and those below it. Its parent may not know it as a child."""
        self._roots.append((name, root))
        named = [(n, m) for n, m in root.named_modules(prefix=name) if id(m) not in self._seen]
        self._seen.update(id(module) for _, module in named)
        for name, module in named:
            if isinstance(module, Packed):
                continue
            prefix = f"{name}." if name else ""
            for held in (module._buffers, vars(module)):
                self._hold(prefix, held)
            for kind in type(module).__mro__:
                if id(kind) not in self._seen and not kind.__module__.startswith(_OF_LIBRARIES):
                    self._hold(f"{prefix}{kind.__name__}.", kind)

    def _hold(self, prefix: str, holder: Any) -> None:
        self._seen.add(id(holder))
        content = _content(holder)
        self._held.append((prefix, holder, copy := content.copy()))
        for key, value in _own(copy).items() if isinstance(copy, dict) else enumerate(copy):
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
        elif isinstance(value, nn.Module):
            self._look_at_modules(name, value)
        else:
            self._seen.add(id(value))
            held: list[Any] = [value] if isinstance(value, _CONTAINERS) else []
            held += [vars(value)] if hasattr(value, "__dict__") else []
            held += [slots] if (slots := _Slots(value)).members else []
            for one in held:
                self._hold(f"{name}.", one)

    def _sums_now(self) -> Iterator[tuple[str, int]]:
        """Yield a sum of the bits of each parameter that is not trained, by its name."""
        for name, root in self._roots:
            for key, parameter in root.named_parameters(prefix=name):
                if id(parameter) not in self._trained:
                    yield key, int(bits_of(parameter).sum(dtype=torch.int64))


class _Slots:
    """The attributes that an object has in slots."""

    def __init__(self, of: Any) -> None:
        kinds = [vars(kind) for kind in type(of).__mro__ if "__slots__" in vars(kind)]
        members = (pair for kind in kinds for pair in kind.items())
        self.of = of
        self.members = {k: m for k, m in members if isinstance(m, MemberDescriptorType)}


def _content(holder: Any) -> Any:
    """Return a container itself, or by name the attributes of a class or those in slots."""
    if isinstance(holder, type):  # Python makes empty annotations when somebody looks
        return {k: v for k, v in vars(holder).items() if k != "__annotations__" or v}
    if isinstance(holder, _Slots):
        members = holder.members.items()
        return {key: m.__get__(holder.of) for key, m in members if hasattr(holder.of, key)}
    return holder


def _own(container: dict[Any, Any]) -> dict[Any, Any]:
    """Return a module's attributes without those that every module has."""
    return {key: value for key, value in container.items() if key not in _OF_TORCH}


def _is_same(container: Any, copy: Any) -> bool:
    """Tell whether both hold the same objects, or equal ones that are no tensors."""
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


def _copy(now: Tensor, copy: Tensor) -> None:
    if _is_equal(now, copy):
        return
    if now.shape == copy.shape and not now.is_inference():
        now.detach().copy_(copy)  # in place: others may share its memory
    else:
        now.data = copy


def _fill(holder: Any, copy: Any) -> None:
    content = _content(holder)
    if _is_same(content, copy):
        return
    if isinstance(holder, type | _Slots):
        of, write = (holder, type) if isinstance(holder, type) else (holder.of, object)
        for key in _own(content).keys() - copy.keys():
            write.__delattr__(of, key)
        for key, value in _own(copy).items():
            if content.get(key, holder) is not value:
                write.__setattr__(of, key, value)
    elif isinstance(content, dict):
        for key in _own(content).keys() - copy.keys():
            del content[key]
        content.update(_own(copy))
    else:
        content.clear()
        (content.update if isinstance(content, set) else content.extend)(copy)


def _is_equal(now: Tensor, copy: Tensor) -> bool:
    """Compare to the bit, so that an unchanged NaN counts as the same."""
    if (now.shape, now.dtype) != (copy.shape, copy.dtype):
        return False
    return torch.equal(now, copy) or torch.equal(bits_of(now), bits_of(copy))


def bits_of(tensor: Tensor) -> Tensor:
    """Return a tensor's values in one row (N,); floating-point values as bits in integers."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(_AS_WIDE[flat.element_size()]) if flat.is_floating_point() else flat
