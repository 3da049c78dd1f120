"""Nobody is shown what a step computes of single records, and nothing of it stays in the model."""

from __future__ import annotations

import cProfile
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.hooks import (
    AlignDevicesHook,
    ModelHook,
    add_hook_to_module,
    remove_hook_from_module,
)
from torch.nn.modules import module as all_modules
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedpriv.errors import NotPrivateError
from fedpriv.loop.step import PrivateStep

Make = Callable[..., Any]
Seen = list[Any]
ENGINES = ("fedpriv", "opacus")


@pytest.fixture
def private_step(byte_tokenizer: Any, notes: Any, settings: Any) -> Iterator[Make]:
    made = []

    def make(model: Any, **changes: Any) -> PrivateStep:
        made.append(PrivateStep(model, byte_tokenizer, notes, **{**settings, **changes}))
        return made[-1]

    yield make
    for step in made:
        step.close()


@contextmanager
def held(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


def trained(model: Any) -> Any:
    return next(p for p in model.parameters() if p.requires_grad)


def inner(model: Any) -> Any:
    return model.get_base_model().model.layers[1].mlp


def adapter(model: Any) -> Any:
    return next(module for name, module in model.named_modules() if name.endswith("lora_B.default"))


class Dispatched(TorchDispatchMode):
    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._seen.append(func)
        return func(*args, **(kwargs or {}))


class Overridden(TorchFunctionMode):
    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._seen.append(func)
        return func(*args, **(kwargs or {}))


def keep(seen: Seen, *shown: Any) -> None:
    seen.append(shown)


def pack(seen: Seen, tensor: torch.Tensor) -> torch.Tensor:
    seen.append(tensor)
    return tensor


class Placed(ModelHook):  # type: ignore[misc]
    """A hook of accelerate's kind."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        self._seen.append(args)
        return args, kwargs


@contextmanager
def placed(model: Any, seen: Seen, beside: bool) -> Iterator[None]:
    layer = model.get_base_model().model.layers[0]
    if beside:
        add_hook_to_module(layer, AlignDevicesHook("cpu"))
    add_hook_to_module(layer, Placed(seen), append=beside)
    try:
        yield
    finally:
        remove_hook_from_module(layer)


@contextmanager
def traced() -> Iterator[None]:
    """Its file has the shapes of all batches."""
    observer = torch.profiler.ExecutionTraceObserver()
    with TemporaryDirectory() as folder:
        observer.register_callback(f"{folder}/trace.json")
        observer.start()
        try:
            yield
        finally:
            observer.stop()
            observer.unregister_callback()


@contextmanager
def profiled(seen: Seen) -> Iterator[None]:
    threading.setprofile(partial(keep, seen))
    try:
        yield
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]


@contextmanager
def monitored() -> Iterator[None]:
    """As cProfile does from Python 3.12 on."""
    monitoring = SimpleNamespace(PROFILER_ID=2, get_tool={2: "cProfile"}.get)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "monitoring", monitoring, raising=False)
        yield


ON_THE_MODEL: dict[str, Callable[[Any, Seen], AbstractContextManager[Any]]] = {
    "register_hook": lambda model, seen: held(trained(model).register_hook(partial(keep, seen))),
    "register_post_accumulate_grad_hook": lambda model, seen: held(
        trained(model).register_post_accumulate_grad_hook(partial(keep, seen))
    ),
    "add_hook": partial(placed, beside=False),
    "add_hook beside": partial(placed, beside=True),
    **{
        f"{kind} of {place.__name__}": lambda model, seen, kind=kind, place=place: held(
            getattr(place(model), kind)(partial(keep, seen))
        )
        for place in (inner, adapter)
        for kind in (
            "register_forward_pre_hook",
            "register_forward_hook",
            "register_full_backward_pre_hook",
            "register_full_backward_hook",
        )
    },
}
EVERYWHERE: dict[str, Callable[[Seen], AbstractContextManager[Any]]] = {
    **{
        kind: lambda seen, kind=kind: held(getattr(all_modules, kind)(partial(keep, seen)))
        for kind in (
            "register_module_forward_pre_hook",
            "register_module_forward_hook",
            "register_module_full_backward_pre_hook",
            "register_module_full_backward_hook",
        )
    },
    "saved tensors": lambda seen: torch.autograd.graph.saved_tensors_hooks(
        partial(pack, seen), lambda kept: kept
    ),
    "dispatch mode": Dispatched,
    "function mode": Overridden,
    "profiler": lambda seen: torch.profiler.profile(
        record_shapes=True, on_trace_ready=partial(keep, seen)
    ),
    "profiler of autograd": lambda seen: torch.autograd.profiler.profile(record_shapes=True),
    "trace of executions": lambda seen: traced(),
    "anomalies": lambda seen: torch.autograd.set_detect_anomaly(True),
    "cProfile": lambda seen: cProfile.Profile(),
    "profile of threads": lambda seen: profiled(seen),
    "monitoring": lambda seen: monitored(),
}


KINDS = [*ON_THE_MODEL, *EVERYWHERE]
WATCHED = [pytest.param(kind, "fedpriv", id=f"{kind}-fedpriv") for kind in KINDS] + [
    pytest.param(
        kind,
        "opacus",
        id=f"{kind}-opacus",
        marks=() if kind == "register_hook" or kind.endswith("adapter") else pytest.mark.slow,
    )
    for kind in KINDS
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "engine"), WATCHED)
def test_who_would_see_single_records_is_refused_by_name(
    private_step: Make, lora: Make, engine: str, kind: str
) -> None:
    """At the start and at each step, before it is paid; else it would be shown, and silently."""
    pytest.importorskip(engine)
    model, seen = lora(), Seen()
    watch = partial(ON_THE_MODEL[kind], model) if kind in ON_THE_MODEL else EVERYWHERE[kind]
    with pytest.raises(NotPrivateError) as refused, watch(seen):
        private_step(model, engine=engine)
    assert "see what is computed of single records" in str(refused.value)
    is_hook = kind.startswith("register")
    if is_hook or kind in ON_THE_MODEL:
        assert ("test_onlookers.Placed" if "add" in kind else "test_onlookers.keep") in str(
            refused.value
        )
    step = private_step(model, engine=engine)
    seen.clear()
    with watch(seen):
        with pytest.raises(NotPrivateError, match="single records"):
            step.backward()
        with pytest.raises(NotPrivateError, match="single records"):
            step._method.clipped_sum(
                step._worker, step._population.units, step._worker.initial, 1.0
            )
    assert step.taken == 0
    assert not (seen and (is_hook or kind == "saved tensors"))
    step.backward()
    assert step.taken == 1 and not step._worker.failures


@pytest.mark.parametrize("engine", ENGINES)
def test_hooks_on_how_a_gradient_accumulates_see_nothing(
    private_step: Make, lora: Make, engine: str
) -> None:
    pytest.importorskip(engine)
    model, seen = lora(), Seen()
    nodes = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            node.register_hook(partial(keep, seen))
            node.register_prehook(partial(keep, seen))
            nodes.append(node)  # or it would be another one next time
    step = private_step(model, engine=engine, numerics="strict")
    step.backward()
    assert not seen and not step._worker.failures
    step.close()
    ids = torch.tensor([[5, 6, 7]])
    model(input_ids=ids, labels=ids).loss.backward()
    assert seen


def test_what_shows_nothing_to_anybody_stays(private_step: Make, lora: Make) -> None:
    """Hooks of peft and transformers that let inputs have gradients, or collect what is asked."""
    model = lora()
    model.enable_input_require_grads()
    add_hook_to_module(inner(model), AlignDevicesHook("cpu"))
    ids = torch.tensor([[5, 6, 7]])
    assert model(input_ids=ids, output_hidden_states=True).hidden_states
    assert any(module._forward_hooks for module in model.modules())
    with torch.device("cpu"):
        step = private_step(model)
        step.backward()
    assert step.taken == 1 and not step._worker.failures


class Filling(torch.nn.Module):
    """A layer that keeps something of what goes through it: always, or where a token is rare."""

    losses: list[float] = []  # noqa: RUF012 - as of a loss that all layers add to
    last: Any

    def __init__(self, layer: Any, way: str, threshold: float) -> None:
        super().__init__()
        self.layer, self.way, self.threshold = layer, way, threshold
        self.register_buffer("counter", torch.zeros(1))
        self.calls, self.shapes, self.cache = 0, list[Any](), torch.zeros(1)
        self.aside: Any = [torch.nn.Identity()]

    def forward(self, x: torch.Tensor) -> Any:
        if x.detach().abs().max() > self.threshold:
            if self.way == "buffer":
                self.counter += x.detach().sum()
            elif self.way == "tensor":
                self.cache = x.detach()
            elif self.way == "number":
                self.calls += 1
            elif self.way == "list":
                self.shapes.append(x.shape)
            elif self.way == "class":
                self.losses.append(float(x.detach().norm()))
            elif self.way == "class tensor":
                type(self).last = x.detach()
            elif self.way == "aside":
                self.aside[0].last = x.detach()
            else:  # a codebook, as if it were a constant
                self.layer.up_proj.weight.data[0, 0] += 1e-6
        return self.layer(x)


FILLED = {
    "buffer": "counter",
    "tensor": "cache",
    "number": "calls",
    "list": "shapes",
    "class": "Filling.losses",
    "aside": "aside.0.last",
    "parameter": "layer.up_proj.weight",
}


@pytest.mark.parametrize("way", FILLED)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_layer_that_keeps_something_is_refused_by_name(
    private_step: Make, lora: Make, engine: str, way: str
) -> None:
    """No gradient changes by it, and a checkpoint would show it without noise."""
    pytest.importorskip(engine)
    model = lora()
    model.get_base_model().model.layers[1].mlp = Filling(inner(model), way, 0.0)
    try:
        with pytest.raises(NotPrivateError, match=rf"layers\.1\.mlp\.{FILLED[way]}.*keeps some"):
            private_step(model, engine=engine)
    finally:
        Filling.losses.clear()


@pytest.mark.parametrize("way", sorted({*FILLED, "class tensor"} - {"parameter"}))
def test_what_a_rare_record_leaves_is_taken_out_after_the_step(
    private_step: Make, lora: Make, way: str
) -> None:
    """No trial with random tokens finds it."""
    model = lora()
    filling = model.get_base_model().model.layers[1].mlp = Filling(inner(model), way, 1e9)
    step = private_step(model)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    filling.threshold = 0.0  # from here on no record is rare enough
    kept = [filling.calls, list(filling.shapes), filling.cache.clone()]
    step.backward()
    assert not step._worker.failures
    assert [filling.calls, filling.shapes, filling.cache] == kept
    assert not filling.losses and not hasattr(filling.aside[0], "last")
    assert "last" not in vars(Filling)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_what_somebody_else_changes_between_steps_stays(private_step: Make, lora: Make) -> None:
    model = lora()
    filling = model.get_base_model().model.layers[1].mlp = Filling(inner(model), "number", 1e9)
    step = private_step(model)
    filling.calls, filling.mark = 7, "theirs"
    step.backward()
    assert (filling.calls, filling.mark) == (7, "theirs")


@pytest.mark.parametrize("engine", ENGINES)
def test_random_numbers_of_a_checkpoint_do_not_tell_how_many_were_drawn(
    private_step: Make, lora: Make, engine: str
) -> None:
    """A Trainer saves their states, and a step that drew from them would move them."""
    pytest.importorskip(engine)
    step = private_step(lora(), engine=engine, numerics="strict")
    before = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    step.backward()
    assert before == (
        random.getstate(),
        str(np.random.get_state()),
        torch.get_rng_state().tolist(),
    )
