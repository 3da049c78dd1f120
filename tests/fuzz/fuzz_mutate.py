"""Inputs that are nearly right: a change at the level at which a reader understands its input.

Bytes that are changed at random seldom get past a parser. So what is changed is the tree of a
JSON or TOML text, a token of it, or a field of DER, and the whole is written down again.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from datetime import date, datetime, time
from random import Random
from typing import Any

Mutator = Callable[[bytes, Random], bytes]
LARGEST = 32 << 10  # bytes of an input
DEEP = 3000  # levels: more than Python's stack has
DIGITS = 5000  # of a number: more than Python reads or writes

VALUES: tuple[Any, ...] = (
    *(None, True, False, "", [], {}, [[]], [None], {"": None}),
    *(-1, 0, 1, 2, 255, 256, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1.0, 1.5, 1e-5, 1e-300, 5e-324, 1e16, 1e300, 1.7976931348623157e308),
    *(float("inf"), float("-inf"), float("nan")),
    *("\x00", "a\x00b", "²", "٣", "é" * 300, "x" * 5000, "/", "..", "../x", "a/b", "~", "*", " "),
    *("1", "-1", "nan", "inf", "1e999", "true", "null", "None", "\n", "\\", "'", '"', "\x7f"),
    *("0" * 64, "sha256:" + "0" * 64, "f" * 32, "localhost:1", "[::1]:99999", "10m", "auto"),
    *("9" * 400, "9" * 400 + "s", "{0}", "%s", "\ufeff", "\U0001f600", "text", "record"),
    *("2026-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"),
)
TOKENS: tuple[str, ...] = (
    *("null", "true", "NaN", "Infinity", "-Infinity", "inf", "-0", "1e999", "1e-999", "0x", "1_0"),
    *("9" * DIGITS, "0x" + "f" * DIGITS, "0." + "1" * DIGITS, "[" * DEEP, '{"a":' * DEEP),
    *("[" * DEEP + "]" * DEEP, "{", "}", "[", "]", ",", ":", "=", ".", "#", '"', "'", '"""', "'''"),
    *(
        "\\u0000",
        "\\ud800",
        "\\",
        "\x00",
        "\n",
        "\r",
        "\t",
        "\x1b",
        "\ufeff",
        "²",
        "é",
        "\U0001f600",
    ),
    *("1979-05-27", "1979-05-27T07:32:00Z", "25:61:61", "{}", "[]", '""', "[[]]", "a.b.c", "[a]"),
)
BINARY: tuple[bytes, ...] = (
    *(b"\x00", b"\xff", b"\x00" * 8, b"\xff" * 8, b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00"),
    *(b"\xc3\x28", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\x1f\x8b", b"PK\x03\x04", b"\x80\x04N."),
)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\w.+-]+|\S')


def mutate_bytes(data: bytes, random: Random) -> bytes:
    """A few changes at random places."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4, 8))):
        at, end = sorted(random.randint(0, len(changed)) for _ in range(2))
        end = min(end, at + random.choice((1, 2, 4, 16, 256)))
        match random.randrange(8):
            case 0 | 1 if at < len(changed):
                changed[at] ^= 1 << random.randrange(8)
            case 2 if at < len(changed):
                changed[at] = random.randrange(256)
            case 3:
                changed[at:at] = random.choice(BINARY)
            case 4:
                changed[at:end] = random.choice(BINARY)
            case 5:
                del changed[at:end]
            case 6:
                changed[at:at] = changed[at:end] * random.choice((1, 2, 50))
            case 7 if random.random() < 0.3:
                del changed[at:]
    return bytes(changed[:LARGEST])


def mutate_text(text: str, random: Random) -> str:
    """Another token, one less or one more; or other characters."""
    tokens = list(_TOKEN.finditer(text))
    for _ in range(random.choice((1, 1, 2, 3))):
        if not tokens or random.random() < 0.3:
            at = random.randint(0, len(text))
            end = at + random.choice((0, 0, 1, 3, 20))
            text = text[:at] + random.choice((*TOKENS, "", "", "")) + text[end:]
        else:
            start, end = random.choice(tokens).span()
            other = random.choice(tokens).group()
            text = text[:start] + random.choice((*TOKENS, other, other, "")) + text[end:]
        if len(text) > LARGEST // 4:
            break
        tokens = list(_TOKEN.finditer(text))
    return text[:LARGEST]


def mutate_tree(tree: Any, random: Random) -> Any:
    """A copy with a few changes, each of one place of it."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = list(_places(tree))
        if not places:
            return random.choice(VALUES)
        tree = _changed(tree, random.choice(places), random, [value for _, value in _walk(tree)])
    return tree


def _walk(tree: Any, at: tuple[Any, ...] = ()) -> Any:
    yield at, tree
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _walk(value, (*at, key))
    elif isinstance(tree, list):
        for key, value in enumerate(tree):
            yield from _walk(value, (*at, key))


def _places(tree: Any) -> Any:
    return (at for at, _ in _walk(tree) if at)


def _changed(tree: Any, at: tuple[Any, ...], random: Random, others: list[Any]) -> Any:
    key, *rest = at
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    if rest:
        copy[key] = _changed(copy[key], tuple(rest), random, others)
        return copy
    match random.randrange(7):
        case 0 | 1:
            copy[key] = random.choice(VALUES)
        case 2 | 3:
            copy[key] = near(copy[key], random)
        case 4:
            copy[key] = random.choice(others)
        case 5:
            del copy[key]
        case 6 if isinstance(copy, dict):
            copy[str(random.choice(("", "name", "x", "\x00", f"{key}s", *VALUES[-20:])))] = copy[
                key
            ]
        case 6:
            copy.insert(key, random.choice((copy[key], *VALUES)))
    return copy


def near(value: Any, random: Random) -> Any:
    """Another value of the same kind."""
    match value:
        case bool():
            return not value
        case int():
            return random.choice((value + 1, value - 1, -value, value * 10, value // 2, value**2))
        case float():
            return value * random.choice((-1, 0.1, 0.5, 1.0001, 2, 10, 1e6, 1e-6, 1e200))
        case str():
            return mutate_text(value, random)
        case list():
            return random.sample(value, random.randint(0, len(value))) + value[:1]
        case dict():
            return {k: value[k] for k in random.sample(list(value), random.randint(0, len(value)))}
    return random.choice(VALUES)


def json_bytes(data: bytes, random: Random) -> bytes:
    """A JSON text: its tree, a token, or bytes of it."""
    return _by_level(data, random, json.loads, lambda tree: json.dumps(tree, ensure_ascii=False))


def toml_bytes(data: bytes, random: Random) -> bytes:
    """A TOML text: likewise."""
    return _by_level(data, random, tomllib.loads, to_toml)


def text_bytes(data: bytes, random: Random) -> bytes:
    """A text: a token, or bytes of it."""
    if random.random() < 0.2:
        return mutate_bytes(data, random)
    return mutate_text(data.decode("utf-8", "replace"), random).encode("utf-8", "replace")


def _by_level(
    data: bytes, random: Random, read: Callable[[str], Any], write: Callable[[Any], str]
) -> bytes:
    level = random.random()
    if level < 0.75:
        try:
            tree = mutate_tree(read(data.decode()), random)
            return write(tree).encode("utf-8", "replace")[:LARGEST]
        except (ValueError, RecursionError):
            pass
    return text_bytes(data, random)


def to_toml(tree: Any) -> str:
    """A TOML text of one key a line."""
    if not isinstance(tree, dict):
        return _toml(tree)
    return "".join(f"{_toml(str(key))} = {_toml(value)}\n" for key, value in tree.items())


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() if abs(value) > 10**4000:
            return hex(abs(value))
        case int() | float():
            return repr(value)
        case dict():
            return "{" + ", ".join(f"{_toml(str(k))} = {_toml(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case datetime() | date() | time():
            return value.isoformat()
    return json.dumps(value or "", ensure_ascii=False).replace("\x7f", "\\u007f")
