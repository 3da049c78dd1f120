"""What a forward pass leaves in a model is found by name, and taken out again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.gradients.remembered import Remembered


class Slotted:
    """Has no dictionary of attributes."""

    __slots__ = ("__hidden", "last")

    def hide(self, value: Any) -> None:
        self.__hidden = value


class Listing(list[int]):
    """A container with an attribute."""

    last = 0


class Keeping(nn.Module):
    """Has some of everything that may be kept."""

    losses: list[float] = []  # noqa: RUF012 - of all such layers
    constants = torch.tensor([1.0, 2.0])
    total = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.inner.bias.requires_grad_(False)
        self.register_buffer("counter", torch.zeros(4, dtype=torch.int64))
        self.register_buffer("scale", torch.tensor(float("nan")))
        self.register_buffer("later", None)
        self.plain, self.array = torch.zeros(2), np.zeros(2)
        self.part = self.plain[:1]  # of the same memory
        self.number, self.text, self.listed = 1, "a", [1, 2]
        self.named: dict[str, Any] = {"cache": [torch.zeros(3)]}
        self.seen = {1}
        self.queue = deque([1.0], maxlen=3)
        self.pair = (torch.zeros(2), 1)
        self.other = SimpleNamespace(keys=torch.zeros(2), count=0)
        self.slotted, self.listing = Slotted(), Listing([1])
        self.slotted.last = torch.zeros(2)
        self.aside = [nn.Sequential(nn.BatchNorm1d(2))]  # no module knows it
        self.aside[0][0].bias.requires_grad_(False)


def grow(model: Any) -> None:
    model.named["cache"].append(torch.ones(1))


WAYS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a buffer counts": (lambda m: m.counter.add_(1), "counter"),
    "a buffer is written": (lambda m: m.scale.data.fill_(2), "scale"),
    "a buffer is another": (lambda m: setattr(m, "counter", torch.ones(4)), "counter"),
    "a buffer is larger": (lambda m: m.counter.resize_(9), "counter"),
    "a buffer is made": (lambda m: setattr(m, "later", torch.ones(1)), "later"),
    "a tensor is written": (lambda m: m.plain.data.add_(1), "plain"),
    "a tensor is another": (lambda m: setattr(m, "plain", torch.ones(2)), "plain"),
    "a tensor is new": (lambda m: setattr(m, "fresh", torch.ones(2)), "fresh"),
    "an array is written": (lambda m: m.array.fill(1), "array"),
    "a number counts": (lambda m: setattr(m, "number", 2), "number"),
    "a text": (lambda m: setattr(m, "text", "b"), "text"),
    "a list": (lambda m: m.listed.append(3), "listed.…"),
    "a set": (lambda m: m.seen.add(3), "seen.…"),
    "a queue": (lambda m: m.queue.append(3), "queue.…"),
    "a dictionary": (lambda m: m.named.update(more=1), "named.more"),
    "a cache grows": (grow, "named.cache.…"),
    "a cache is written": (lambda m: m.named["cache"][0].add_(1), "named.cache.0"),
    "in a pair": (lambda m: m.pair[0].add_(1), "pair.0"),
    "in an object": (lambda m: m.other.keys.add_(1), "other.keys"),
    "an object counts": (lambda m: setattr(m.other, "count", 1), "other.count"),
    "in a slot": (lambda m: m.slotted.last.add_(1), "slotted.last"),
    "a slot is another": (lambda m: setattr(m.slotted, "last", None), "slotted.last"),
    "a slot is filled": (lambda m: m.slotted.hide(1), "slotted._Slotted__hidden"),
    "a slot is emptied": (lambda m: delattr(m.slotted, "last"), "slotted.last"),
    "beside a list": (lambda m: setattr(m.listing, "last", 1), "listing.last"),
    "a module aside": (lambda m: setattr(m.aside[0][0], "last", 1), "aside.0.0.last"),
    "a buffer aside": (lambda m: m.aside[0][0].running_mean.add_(1), "aside.0.0.running_mean"),
    "a class": (lambda m: setattr(type(m), "total", 1.0), "Keeping.total"),
    "a list of a class": (lambda m: type(m).losses.append(1.0), "Keeping.losses.…"),
    "a tensor of a class": (lambda m: type(m).constants.add_(1), "Keeping.constants"),
    "a class has more": (lambda m: setattr(type(m), "fresh", 1.0), "Keeping.fresh"),
}


class Stubborn(dict[str, Any]):
    """Can't be written as others can."""

    def update(self, *others: Any, **more: Any) -> None:
        raise RuntimeError("a secret")


def test_what_cannot_be_put_back_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Whether a step's sum counts would depend on the record that left something."""
    model = Keeping()
    model.stubborn = Stubborn(cache=1)  # type: ignore[assignment]
    before = Remembered(model)
    model.stubborn["cache"], model.number = 2, 7  # type: ignore[index,assignment]
    model.plain.add_(1)
    before.put_back()
    assert (model.number, model.plain.tolist()) == (1, [0, 0])
    assert "stubborn. can't be put back: RuntimeError" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("way", WAYS)
def test_what_is_kept_is_named_and_put_back(way: str) -> None:
    model = nn.Sequential(Keeping())
    change, name = WAYS[way]
    before, again = Remembered(model), Remembered(model)
    assert before.changed() == []
    change(model[0])
    assert before.changed()[0] == f"0.{name}"
    before.put_back()
    assert before.changed() == again.changed() == []
    assert "fresh" not in vars(model[0]) and not hasattr(Keeping, "fresh")
    assert (Keeping.losses, Keeping.total) == ([], 0.0)
    assert model[0].part.data_ptr() == model[0].plain.data_ptr()
    assert not model[0].array.any()


def test_annotations_that_python_makes_when_somebody_looks_are_no_state() -> None:
    kind: Any = type("Unannotated", (nn.Module,), {})
    model = kind()
    before = Remembered(model)
    assert kind.__annotations__ == {} and "__annotations__" in vars(kind)  # another thread did
    assert before.changed() == []
    kind.__annotations__["loss"] = torch.ones(1)
    assert before.changed() != []


def test_frozen_parameters_are_read_if_asked() -> None:
    model = Keeping()
    before = Remembered(model, frozen=True)
    model.inner.bias.data[0] += 1e-7
    assert before.changed() == ["inner.bias"]
    before = Remembered(model, frozen=True)
    model.aside[0][0].bias.data[0] += 1e-7
    model.aside[0][0].weight.data[0] += 1e-7  # is not trained as it is
    assert before.changed() == ["aside.0.0.weight", "aside.0.0.bias"]
    assert Remembered(model).changed() == []


def test_what_is_trained_and_how_a_module_is_used_is_not_looked_at() -> None:
    model = Keeping()
    before = Remembered(model, frozen=True)
    with torch.no_grad():
        model.inner.weight.add_(1)
    model.inner.weight.grad = torch.ones(3, 3)
    model.eval()
    model.inner.forward = lambda x: x  # type: ignore[method-assign,assignment]
    assert before.changed() == []
    before.put_back()
    assert not model.training and model.inner.weight.grad is not None
