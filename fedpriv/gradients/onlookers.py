"""Refuse by name all that looks on while private records are computed.

A hook, a mode or a profiler is shown what nobody paid for: activations and gradients of single
records, or how many there are and how long. It was put there without harm in mind, as by a tracker
that draws histograms, so the error says how to take it off.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterator
from ctypes import PyDLL, c_bool
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fedpriv.errors import NotPrivateError

_OF_MODULES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
# Modules whose hooks show nothing to anybody but the model: they let inputs have gradients,
# collect hidden states that the model's caller asks for, or move to a device.
_OF_THE_MODEL = (
    "accelerate.hooks",
    "peft.mixed_model",
    "peft.peft_model",
    "peft.utils.other",
    "transformers.modeling_utils",
    "transformers.utils.output_capturing",
)

# at::hasCallbacks(): whether torch tells anybody what it computes, such as profilers and traces.
_has_callbacks = PyDLL(torch._C.__file__)._ZN2at12hasCallbacksEv
_has_callbacks.restype = c_bool


def hooks_of(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield where each hook is, in words, and the hook: on modules, and on what is trained."""
    for name, module in model.named_modules():
        held = vars(module)
        for kind in _OF_MODULES:
            for hook in held[kind].values():
                yield f"{name or type(module).__name__} has a hook", hook
        if "_hf_hook" in held:  # hooks of accelerate, one or several
            for hook in getattr(held["_hf_hook"], "hooks", [held["_hf_hook"]]):
                yield f"{name or type(module).__name__} has a hook", hook
        for key, parameter in held["_parameters"].items():
            if parameter is None or not parameter.requires_grad:
                continue
            for kind in _OF_PARAMETERS:
                for hook in (getattr(parameter, kind) or {}).values():
                    yield f"{name}.{key} has a hook on its gradient", hook


def refuse_onlookers(model: nn.Module, own: Collection[Any] = ()) -> None:
    """Refuse hooks on a model and on all modules, and what looks on in this thread.

    Hooks of ``grad_fn`` on trained parameters are not looked at: `torch.autograd.grad` runs none.
    Nor is the code of the model itself, such as a forward pass that somebody replaced.

    Args:
        own: hooks of the engine that makes the gradients.

    Raises:
        NotPrivateError: there is one. The error names it, and says how to take it off.
    """
    found = next(_onlookers(model, own), None)
    if found is not None:
        where, what, fix = found
        raise NotPrivateError(
            f"{where}{what}. It would see what is computed of single records before noise is added,"
            f" which nobody paid for. {fix} What a step releases is in .grad after it."
        )


def _onlookers(model: nn.Module, own: Collection[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield each onlooker: where, what, and what to do."""
    for where, hook in _hooks(model):
        code = _code(hook)
        if hook not in own and getattr(code, "__module__", None) not in _OF_THE_MODEL:
            name = getattr(code, "__qualname__", type(code).__qualname__)
            what = f" ({getattr(code, '__module__', '?')}.{name})"
            yield where, what, "Take it off, for example with remove() of its handle."
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        yield "Hooks on saved tensors are active", "", "Leave their `with` block first."
    for mode in _modes():
        if not isinstance(mode, DeviceContext):
            yield "A mode of torch is active", f" ({type(mode).__name__})", "Leave it first."
    if torch.autograd.profiler._is_profiler_enabled or _has_callbacks():
        yield "A profiler is active", "", "Stop it first."
    if torch.is_anomaly_enabled():
        yield "Anomaly detection is active", "", "Turn it off first."
    for tool in _profilers():
        yield "A profiler of Python is active", f" ({tool})", "Stop it first."


def _profilers() -> Iterator[Any]:
    """Yield profilers, which are told of each function call. Debuggers and coverage watch lines."""
    monitoring: Any = getattr(sys, "monitoring", None)  # since Python 3.12
    own = monitoring and monitoring.get_tool(monitoring.PROFILER_ID)
    yield from filter(None, (sys.getprofile(), threading.getprofile(), own))


def _hooks(model: nn.Module) -> Iterator[tuple[str, Any]]:
    yield from hooks_of(model)
    for kind in _OF_MODULES:
        for hook in getattr(torch_module, f"_global{kind}").values():
            yield "All modules have a hook", hook


def _modes() -> list[Any]:
    functions: list[Any] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return [*_get_current_dispatch_mode_stack(), *functions]


def _code(hook: Callable[..., Any]) -> Any:
    """Return the function that a hook runs, whatever it is wrapped in."""
    while isinstance(hook, partial):
        hook = hook.func
    return getattr(hook, "__func__", hook)
