"""What is fuzzed: a function of bytes that feeds them to what a user, a file or a peer reaches."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.fuzz_mutate import Mutator

Run = Callable[[bytes, Path], None]


@dataclass(frozen=True)
class Target:
    """One way in.

    Attributes:
        run: takes an input and an empty folder of its own. It returns, or raises a FedprivError;
            whatever else it raises is a finding, a broken invariant too.
        seeds: inputs by name, most of which are accepted.
        mutate: makes of an input another one.
        weight: its share of the cases; below 1 where a case is slow.
    """

    name: str
    run: Run
    seeds: Callable[[], Mapping[str, bytes]]
    mutate: Mutator
    weight: float = 1.0


def refuses(condition: object, what: str) -> None:
    """An invariant of what was accepted; `assert` would say nothing without pytest."""
    if not condition:
        raise AssertionError(what)


def parts(data: bytes, **usual: Any) -> dict[str, Any]:
    """The named parts of an input that stands for several files: those it leaves out are usual.

    An input that is no JSON object is the first part.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return {**usual, next(iter(usual)): data.decode("latin-1")}
    return {**usual, **{key: value for key, value in found.items() if key in usual}}


def raw(part: object) -> bytes:
    """A part as the bytes of a file: a character stands for a byte."""
    return str(part).encode("latin-1", "replace")


def packed(**content: Any) -> bytes:
    """The input of these parts."""
    shown = {key: v.decode("latin-1") if isinstance(v, bytes) else v for key, v in content.items()}
    return json.dumps(shown, ensure_ascii=False, indent=1).encode("utf-8", "replace")
