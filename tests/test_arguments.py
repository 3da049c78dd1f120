"""What a function is called with is what its annotations say, or an error of ours says why not."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from fedpriv.arguments import NAMES_OF_OPACUS, PathName, checked
from fedpriv.errors import ConfigError
from fedpriv.loop.step import PrivateStep


class Odd(Protocol):
    """A type that pydantic does not know."""

    def odd(self) -> None: ...


class Inner(BaseModel):
    size: int


@checked
def example(
    first: int,
    second: float | None = None,
    *,
    path: PathName | None = None,
    names: Sequence[str] = (),
    kind: Literal["a", "b"] = "a",
    odd: Odd | None = None,
    anything: Any = None,
    **tables: Mapping[str, Any],
) -> dict[str, Any]:
    """A docstring."""
    return dict(locals())


def test_it_stays_the_function_that_it_was() -> None:
    assert example.__name__ == "example" and example.__doc__ == "A docstring."
    found = example(np.int64(3), np.float32(0.5), names=["x"], job={"a": 1})
    assert found["first"] == 3 and type(found["first"]) is int
    assert (found["second"], found["names"], found["tables"]) == (0.5, ["x"], {"job": {"a": 1}})
    thing = object()
    assert example(1, odd=thing, anything=thing)["odd"] is thing  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing a required argument: 'first'"):
        example()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="too many positional"):
        example(1, 2, 3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"first": None}, "first: is None. It should be a valid integer."),
        ({"first": 1.5}, "first: is float 1.5. It should be a valid integer"),
        ({"first": [1]}, "first: is a list. It should be a valid integer."),
        ({"second": float("inf")}, "second: is float inf. It should be a finite number."),
        ({"second": "x"}, "second: is str 'x'. It should be a valid number"),
        ({"path": 3}, "path: is int 3. It "),
        ({"path": ""}, "path: is str ''. It is empty"),
        ({"path": "a\0b"}, "It holds a NUL character"),
        ({"path": "a\ud800"}, "surrogates not allowed"),
        ({"names": "abc"}, "names: is str 'abc'. 'str' instances are not allowed"),
        ({"names": ["a", 3]}, "names.1: is int 3. It should be a valid string."),
        ({"kind": "c"}, "kind: is str 'c'. It should be 'a' or 'b'."),
        ({"job": None}, "job: is None. It should be a valid dictionary."),
        ({"kind": "a long text, which may well be a record" * 5}, "kind: is a str."),
    ],
)
def test_what_does_not_fit_is_named_with_what_it_is(arguments: Any, words: str) -> None:
    with pytest.raises(ConfigError) as found:
        example(**{"first": 1, **arguments})
    assert words in str(found.value)


def test_what_a_function_raises_of_others_is_an_error_of_ours(tmp_path: Path) -> None:
    @checked
    def reads(path: Path) -> bytes:
        return path.read_bytes()

    @checked
    def makes(size: str) -> Inner:
        return Inner(size=size)  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match="missing: can't be used: No such file"):
        reads(tmp_path / "missing")
    with pytest.raises(ConfigError, match="size: is str 'x'"):
        makes("x")


@given(st.one_of(st.none(), st.booleans(), st.floats(), st.text(), st.binary(), st.integers()))
def test_whatever_is_given_is_taken_or_refused_by_name(value: Any) -> None:
    for name in ("first", "second", "path", "names", "kind", "job"):
        try:
            example(**{"first": 1, name: value})
        except ConfigError as error:
            assert error.key is not None and error.key.partition(".")[0] == name


@checked
def budgeted(*, epsilon: float | None = None, steps: int | None = None) -> dict[str, Any]:
    """As what has an ε."""
    return {"epsilon": epsilon, "steps": steps}


def test_names_of_opacus_are_taken_where_there_is_an_epsilon() -> None:
    assert budgeted(target_epsilon=2, total_steps=3) == {"epsilon": 2.0, "steps": 3}  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_grad_norm'"):
        budgeted(max_grad_norm=1)  # type: ignore[call-arg]
    assert example(1, epochs={"a": 1})["tables"] == {"epochs": {"a": 1}}


@pytest.mark.parametrize("name", sorted(NAMES_OF_OPACUS))
def test_a_name_of_opacus_is_one_of_ours_or_has_a_reason(name: str) -> None:
    told = NAMES_OF_OPACUS[name]
    if told.isidentifier():
        assert told in inspect.signature(PrivateStep.__init__).parameters
    else:
        with pytest.raises(
            ConfigError, match=re.escape(f"{name}: is a setting of opacus") + ".*"
        ) as found:
            budgeted(**{name: 1})
        assert found.value.fix == told and told.endswith(".")


def test_a_setting_by_two_names_is_refused() -> None:
    for twice in ({"epsilon": 1, "target_epsilon": 1}, {"target_epsilon": 1, "epsilon": None}):
        with pytest.raises(ConfigError, match="epsilon: is given twice, also as target_epsilon"):
            budgeted(**twice)  # type: ignore[arg-type]
