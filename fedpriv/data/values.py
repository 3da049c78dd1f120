"""Read one value of a record, as a text or as the id of a person, or refuse it.

Every reader gives values as its source has them. Here, and nowhere else, they become what a job
uses, so that a person is the same one in every format. `TABLE` says how, and docs/how-to/data.md
shows it.
"""

from __future__ import annotations

import json
import math
import re
import sys
import unicodedata
from datetime import date, time
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID


class Rule(NamedTuple):
    """Say how a kind of value is read. For a refused value people are shown the clause in `id`.

    Attributes:
        kind: the kind of value, for the documents.
        text: the value as a text.
        id: the value as an id: what is read, or a problem with `fix`.
    """

    kind: str
    text: str
    id: str
    fix: str = ""


NOTHING = Rule(
    "nothing, NaN, `NULL`, `None`, `N/A`, `unknown`, `?`, `-`, blanks",
    "no text if None or NaN, else as written",
    "has no unit id",
    "Every record needs the id of whom it belongs to: fill it in, or take the row out.",
)
ROUNDED = Rule(
    "a rounded number: a float from 2^53 on (float32: 2^24), `1e+16`, `1.23E+05`",
    "as written",
    "has a unit id that is a rounded number",
    "Several ids become one such number. Export ids as text, or as integers.",
)
TWO_WAYS = Rule(
    "a number that reads in two ways: `1,000`, `1.000`, `1.234`, `12.50`, `12 345`, `12e3`",
    "as written",
    "has a unit id that other programs read as another number",
    "Write ids without separators or an E between digits, and without zeros at the end of a"
    " fraction.",
)
NO_ID = Rule(
    "a truth value, or a date by type",
    "`True`, `2020-01-31`",
    "has a unit id that is a truth value or a date",
    "Name the column that says whose the record is, or export it as text.",
)
DAMAGED = Rule(
    "half a surrogate, U+FFFD, NUL, a control character inside",
    "half a surrogate is `?`",
    "has a unit id with a character that was lost",
    "Export it again, as UTF-8.",
)
TYPESET = Rule(
    "a typographic dash or quote inside: `12–345`",
    "as written",
    "has a unit id with a typographic dash or quote",
    "Another program writes the same id in another way. Write it as on a keyboard, such as 12-345.",
)
NO_TEXT = Rule(
    "bytes, a list, a table, an object; database text that is not UTF-8",
    "holds {} where text is expected",
    "holds {} where text is expected",
    "Name a column of text, or export it as text in UTF-8.",
)
TABLE = (
    Rule("text", "as written", "in NFKC, without quotes, spaces, invisible characters"),
    Rule("`1`, `1.0`, `1.`, `+1`, `1e0`, as text or number", "`1` of a number", "`1`"),
    Rule("`01`", "as written", "`01`, not `1`"),
    Rule("`12.5`, as text or number", "`12.5`", "`12.5`"),
    Rule("a UUID", "as written", "small letters, no braces"),
    *(NOTHING, ROUNDED, TWO_WAYS, NO_ID, DAMAGED, TYPESET, NO_TEXT),
)


class OddValueError(ValueError):
    """A value that a rule of the table refuses. People read its text."""

    def __init__(self, rule: Rule, kind: str = "") -> None:
        super().__init__(rule.id.format(kind))
        self.rule, self.fix = rule, rule.fix


def as_text(value: Any) -> str | None:
    """Return a value as text, whole numbers without a point; None where there is nothing.

    Raises:
        OddValueError: it is neither text nor number.
    """
    value = _plain(value)
    if _is_missing(value):
        return None
    if isinstance(value, float | Decimal) and math.isfinite(value) and value == int(value):
        value = int(value)
    if not isinstance(value, str | int | float | Decimal | date | time | UUID):
        raise OddValueError(NO_TEXT, f"a value of type {type(value).__name__}")
    return str(value).encode("utf-8", "replace").decode("utf-8")


def as_json(value: Any) -> str:
    """Return a value with its lists and tables, as JSON.

    Raises:
        OddValueError: something in it is neither text nor number.
    """
    try:
        return json.dumps(value, default=as_text)
    except OddValueError:
        raise
    except (TypeError, RecursionError, ValueError):  # ValueError: a list contains itself
        raise OddValueError(NO_TEXT, "a table with odd keys, or too many levels") from None


def as_id(value: Any) -> str:
    """Return the one id of a unit, however it is written; see `TABLE`.

    Raises:
        OddValueError: it says nothing, or could be several people's.
    """
    was_rounded = _is_rounded(value)
    value = _plain(value)
    is_number = isinstance(value, float | Decimal)
    if _is_missing(value) or (is_number and not math.isfinite(value)):
        raise OddValueError(NOTHING)
    if was_rounded:
        raise OddValueError(ROUNDED)
    if isinstance(value, bool | date | time) or str(value).strip().lower() in ("true", "false"):
        raise OddValueError(NO_ID)
    if is_number:
        return _number(_digits(Decimal(str(value))))
    written = value if isinstance(value, str) else as_text(value) or ""
    if not _ALIKE.isdisjoint(written):
        raise OddValueError(TYPESET)
    text = as_read(written)
    while found := _QUOTED.fullmatch(text):
        text = found[2].strip()
    if text.isascii() and text.isdigit():
        return text
    if _says_nothing(text):
        raise OddValueError(NOTHING)
    if any(c == "\ufffd" or unicodedata.category(c) in ("Cc", "Cs") for c in text):
        raise OddValueError(DAMAGED)
    if found := _UUID.fullmatch(text):
        return found[1].lower()
    number = _number(re.sub("  +", " ", text))
    if any(c != "-" and unicodedata.category(c) in _TYPESET for c in number):
        raise OddValueError(TYPESET)
    return number


# As one program or another writes a number: a whole one, a fraction, one with an exponent.
_WHOLE = re.compile(r"([+-]?)([0-9]+)(\.0*)?")
_FRACTION = re.compile(r"([+-]?)([0-9]*)\.([0-9]+)")
_POWER = re.compile(r"([+-]?(?:0|[1-9][0-9]*))(?:\.([0-9]*))?[eE]([+-]?[0-9]{1,3})")
_SEPARATED = re.compile(
    r"[+-]?(?:[0-9]+(?:[,'\u2019 ][0-9]*)+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?"
    r"|[1-9][0-9]{0,2}(?:\.[0-9]{3})+)"
)
_QUOTED = re.compile(r"""=?(["'])(.*)\1""", re.S)  # how a spreadsheet is told that it is text
_TYPESET = ("Pd", "Pi", "Pf")  # dashes, and quotes that open or close
# Minus, low quotes, accents and primes, some of which are others in `as_read`.
_ALIKE = frozenset(
    "\u2212\u02d7\u2043\u201a\u201e`\u00b4\u02b9\u02ba\u02bb\u02bc\u02c8\u02ca\u055a\u2032\u2033\u2035\ua78c"
)
_EXACT = 2**53  # a float of 64 bits holds every whole number below that
_UUID = re.compile(r"[{(]?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})[)}]?", re.I)


def _number(text: str) -> str:
    """Return an id. If it may be a number, it is written in one way."""
    if _SEPARATED.fullmatch(text):
        raise OddValueError(TWO_WAYS)
    if found := _POWER.fullmatch(text):
        first, rest, power = found[1], found[2] or "", int(found[3])
        number = Decimal(f"{first}.{rest}e{power}")
        if len(first.lstrip("+-")) > 1:  # no program writes a float like that
            if abs(number) >= _EXACT:
                return text  # a code such as 12e45
            raise OddValueError(TWO_WAYS)  # a code as well, or a number of thousands
        if abs(number) >= _EXACT or len(rest) < power:
            raise OddValueError(ROUNDED)  # its last digits are not known
        return _number(_digits(number))
    if found := _WHOLE.fullmatch(text):
        sign, digits, point = found.groups()
        if point and Decimal(digits) >= _EXACT:
            raise OddValueError(ROUNDED)
        return f"-{digits}" if sign == "-" and digits.strip("0") else digits
    if found := _FRACTION.fullmatch(text):
        sign, digits, fraction = found.groups()
        if fraction.endswith("0"):
            raise OddValueError(TWO_WAYS)
        return f"{sign.strip('+')}{digits or '0'}.{fraction}"
    return text


def _digits(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _plain(value: Any) -> Any:
    """Return a value of numpy as one of Python."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic) or isinstance(value, str | bytes):
        return value
    if isinstance(value, numpy.floating):
        return float(str(value))  # the shortest text that gives this number
    if isinstance(value, numpy.datetime64):
        return value.astype("datetime64[us]").item()
    return value.item()


def _is_rounded(value: Any) -> bool:
    """Tell whether a float is so large that some whole numbers have no float of their own."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.floating):
        return bool(abs(value) >= 2 ** (numpy.finfo(value.dtype).nmant + 1))
    return isinstance(value, float) and abs(value) >= _EXACT


_NOTHING = re.compile(
    r"nan|nana|null|none|nil|na|nat|inf|infinity|1ind|1qnan|undefined|unknown|missing|empty|blank"
    r"|notavailable|notapplicable"
)


def _is_missing(value: Any) -> bool:
    if isinstance(value, float):
        return value != value
    if isinstance(value, Decimal):
        return value.is_nan()
    return value is None or type(value).__name__ in ("NAType", "NaTType")  # pandas' missing values


def _says_nothing(text: str) -> bool:
    """Tell whether a text is what programs and people write where an id is not known."""
    squeezed = "".join(c for c in text if c.isalnum()).lower()
    return (
        not squeezed
        or _NOTHING.fullmatch(squeezed) is not None
        or text == r"\N"  # NULL in MySQL and PostgreSQL
        or re.fullmatch(r"#[A-Z0-9/]+[!?]", text) is not None  # a spreadsheet's error
    )


# Invisible characters that are no format characters: joiners, fillers, variation selectors.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U000e0000-\U000e0fff]"
)


def as_read(text: str) -> str:
    """Return a text as people read it: two ids that look alike are one person's."""
    if text.isascii():  # most text is, and none of this changes it
        return text.strip()
    seen = _UNSEEN.sub("", unicodedata.normalize("NFKC", text))
    return "".join(c for c in seen if unicodedata.category(c) != "Cf").strip()
