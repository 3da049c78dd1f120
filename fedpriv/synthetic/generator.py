"""What a generator of new records does, and which of its records are taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fedpriv.errors import RoundError
from fedpriv.synthetic.records import MAX_SET, MAX_TEXT, Record, characters

ATTEMPTS = 4  # before a generator that makes nothing new is given up


class Generator(Protocol):
    """Make records of public settings, of a seed, and of records that are public already."""

    def random(self, count: int, seed: str) -> list[Record]:
        """Make `count` records, from nothing but the task."""
        ...

    def variations(self, records: Sequence[Record], seed: str) -> list[Record]:
        """Make one variation of each record, in order."""
        ...


def with_prompt(fields: Sequence[str], prompt: str | None) -> Record:
    """Return what a made-up record begins with: the prompt that is set, if records have prompts.

    Raises:
        RoundError: records have prompts, and none is set.
    """
    if "text" in fields:
        return {}
    if prompt is None:
        raise RoundError(
            "Prompts can't be made up: set synthetic.generator.prompt, or name records in"
            " synthetic.data."
        )
    return {"prompt": prompt}


def new_records(
    count: int, known: Sequence[Record], make: Callable[[int, int], list[Record]]
) -> list[Record]:
    """Make `count` usable records, unlike the known ones and each other.

    A record that a generator returns empty, too long, repeated or not as text is made again.

    Args:
        make: a function from (how many more, number of the attempt) to records.

    Raises:
        RoundError: there are still too few after some attempts. Nothing was changed.
    """
    seen = {_key(record) for record in known}
    found: list[Record] = []
    room = MAX_SET - characters(known)
    for attempt in range(ATTEMPTS):
        for record in make(count - len(found), attempt):
            new = len(found) < count and is_usable(record) and _key(record) not in seen
            if new and (room := room - characters([record])) >= 0:
                seen.add(_key(record))
                found.append(record)
        if len(found) == count:
            return found
    raise RoundError(
        f"The generator made {len(found)} usable new records of {count} in {ATTEMPTS} attempts;"
        " the others were empty, too long, no text, or repetitions."
    )


def _key(record: Record) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(record.items()))


def is_usable(record: Record) -> bool:
    """Tell whether every field is text that can be sent, and no field to learn from is blank."""
    for field, text in record.items():
        if not isinstance(text, str) or len(text) > MAX_TEXT or "\x00" in text:
            return False
        if text != text.encode("utf-8", "ignore").decode("utf-8"):  # half of a surrogate pair
            return False
        if not text.strip() and field != "prompt":
            return False
    return True
