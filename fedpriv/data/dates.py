"""The day that a value stands for, in whatever way a source keeps dates."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

_EPOCH = date(1970, 1, 1)
_DAY = 86_400  # seconds
_FIRST_DAY = 1461  # 1 January 1974
_LAST_DAY = 25_568  # in 2040; a larger number may be a spreadsheet's days since 1900
_FIRST_SECOND, _LAST_SECOND = 10**8, 41 * 10**8  # 1973, 2099
_ISO = re.compile(r"([0-9]{4})([-/]?)([0-9]{2})\2([0-9]{2})(?:[T ].*)?", re.S)
_NUMBER = re.compile(r"[0-9]{1,13}(?:\.0*)?")


def day_of(value: Any) -> date | None:
    """Return the day of a date by type, of a text that begins with the year, or of a number.

    A number is YYYYMMDD; whole days since 1970, as R writes a date to SQLite; or seconds or
    milliseconds since 1970 that are whole days, as OHDSI's tools and Java do. Numbers are of 1974
    or later: nobody kept notes in such a way before.

    Returns:
        None where there is no date.

    Raises:
        ValueError: the day can't be told, such as that of 06/01/2015. The error quotes nothing.
    """
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    text = "" if value is None or value != value else str(value).strip()
    if isinstance(value, float | Decimal):
        text = f"{Decimal(text):f}" if text else text
    if text.lower() in ("", "null", "none", "nan"):
        return None
    if found := _ISO.fullmatch(text.removesuffix(".0")):
        try:
            return date(int(found[1]), int(found[3]), int(found[4]))
        except ValueError:
            pass
    if _NUMBER.fullmatch(text):
        number = int(Decimal(text))
        if _FIRST_DAY <= number <= _LAST_DAY and not 1900 <= number < 2100:  # could be a year
            return _EPOCH + timedelta(number)
        seconds, rest = divmod(number, 1000) if number >= 1000 * _FIRST_SECOND else (number, 0)
        if _FIRST_SECOND <= seconds <= _LAST_SECOND and not seconds % _DAY and not rest:
            return _EPOCH + timedelta(seconds=seconds)
    raise ValueError("no day")
