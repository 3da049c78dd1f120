"""Check what a person hands to a function, by the function's own annotations."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, get_type_hints

from pydantic import (
    AfterValidator,
    ConfigDict,
    PydanticSchemaGenerationError,
    TypeAdapter,
    ValidationError,
)

from fedpriv.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")
FINITE = ConfigDict(allow_inf_nan=False)
_SHORT = 60  # characters of a text that is shown; a longer one could be a record


def _names_a_file(path: Path | str) -> Path | str:
    if not str(path):
        raise ValueError("It is empty: name a file or a folder")
    if "\0" in str(path):
        raise ValueError("It holds a NUL character, which no file name can")
    os.fsencode(path)  # raises a ValueError for what this system can't write
    return path


PathName = Annotated[Path | str, AfterValidator(_names_a_file)]
# For each setting of opacus: the name that it has here, or why it has none.
NAMES_OF_OPACUS = {
    "expected_batch_size": "batch",
    "max_grad_norm": "clip_norm",
    "module": "model",
    "target_delta": "delta",
    "target_epsilon": "epsilon",
    "total_steps": "steps",
    "accountant": "ε is always an upper bound (PRV).",
    "batch_size": "Give batch, the expected number of units in a step.",
    "clipping": "A unit's gradient is clipped as a whole.",
    "criterion": "The loss is the model's own: for each record, the mean over its tokens.",
    "data_loader": "Give records, not batches: each step draws its own sample.",
    "epochs": "Give steps: epochs / sample_rate.",
    "grad_sample_mode": 'Give engine: "auto", "fedpriv" or "opacus".',
    "loss_reduction": "Gradients are summed, and divided by batch.",
    "noise_generator": "Noise is secret, and can't be repeated.",
    "optimizer": "Call its step() after backward().",
    "poisson_sampling": "Samples are always Poisson, as ε assumes.",
    "secure_mode": "Noise is always secret.",
}


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check and convert a function's arguments by its annotations, as pydantic understands them.

    An annotation that pydantic does not know, such as a protocol, is left to the function. An
    argument that is missing or unknown is a `TypeError`, as everywhere in Python. If ε is an
    argument, the names that opacus has for settings work, too.

    Raises:
        ConfigError: names the argument, what it is, and what it should be; or the setting or file
            that the function could not use.
    """
    signature = inspect.signature(function)

    @cache
    def adapters() -> dict[str, TypeAdapter[Any]]:
        hints = get_type_hints(function, include_extras=True)
        found = {name: _adapter_of(hint) for name, hint in hints.items() if name != "return"}
        return {name: adapter for name, adapter in found.items() if adapter is not None}

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **_in_our_names(kwargs, signature.parameters))
        for name, value in bound.arguments.items():
            adapter = adapters().get(name)
            if adapter is None:
                continue
            if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = {k: valid(k, v, adapter) for k, v in value.items()}
            else:
                bound.arguments[name] = valid(name, value, adapter)
        try:
            return function(*bound.args, **bound.kwargs)
        except ValidationError as error:
            raise _not_valid(error) from None
        except OSError as error:
            problem = f"can't be used: {error.strerror or error}"
            raise ConfigError(problem, file=error.filename) from error

    return call


def _in_our_names(given: Mapping[str, Any], known: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments by our names, also those that were given by the names of opacus.

    Raises:
        ConfigError: a setting of opacus has no counterpart here, or is given by both names.
    """
    if "epsilon" not in known:
        return given
    found: dict[str, Any] = {}
    for name, value in given.items():
        told = name if name in known else NAMES_OF_OPACUS.get(name, name)
        if not told.isidentifier():
            raise ConfigError("is a setting of opacus, and not of fedpriv", key=name, fix=told)
        ours = told if told in known else name
        if ours != name and ours in given:
            both = f"is given twice, also as {name}, which is opacus' name for it"
            raise ConfigError(both, key=ours, fix="Give one of them.")
        found[ours] = value
    return found


def _adapter_of(hint: Any) -> TypeAdapter[Any] | None:
    """Return what checks a value against an annotation; None if pydantic does not know it."""
    try:
        return TypeAdapter(hint, config=FINITE)
    except PydanticSchemaGenerationError:
        return None


def valid(name: str, value: Any, adapter: TypeAdapter[Any]) -> Any:
    """Return the value of an argument, as the type that its annotation asks for.

    Raises:
        ConfigError: the value can't be of that type.
    """
    try:
        found = adapter.validate_python(value)
    except ValidationError as error:
        raise _not_valid(error, name, value) from None
    return value if type(value) is int and found == value else found  # shown as it is typed


def _not_valid(error: ValidationError, name: str | None = None, value: Any = ...) -> ConfigError:
    """Return the first problem; for an argument of several types, what each of them asks for."""
    problems = error.errors(include_url=False)
    first, where = problems[0], [] if name is None else [name]
    if name is None or len(problems) == 1:  # else each problem is of a type that was tried
        where += [str(part) for part in first["loc"]]
        value = first["input"]
    asked = dict.fromkeys(
        str(problem["msg"]).removeprefix("Value error, ").replace("Input ", "It ", 1)
        for problem in problems
        if name is not None or problem is first
    )
    fix = " ".join(f"{text}." for text in asked)
    return ConfigError(f"is {_told(value)}", key=".".join(where) or None, fix=fix)


def _told(value: Any) -> str:
    """Say what a value is: its type, and the value itself if it can't be a record."""
    if value is None:
        return "None"
    if isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= _SHORT):
        return f"{type(value).__name__} {value!r:.{_SHORT}}"
    return f"a {type(value).__name__}"
