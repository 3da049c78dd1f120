"""Keep units of examples in a file without a name: on disk while they are used, then gone."""

from __future__ import annotations

import errno
import os
import struct
import tempfile
import weakref
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from fedpriv.data.encode import Example

if TYPE_CHECKING:
    from fedpriv.data.spec import DataSpec

Unit = Sequence[Example]
_HEAD = struct.Struct("<qqqq")  # the header of an example; see `_Head`
_NUMBER = np.dtype(np.int32).itemsize  # bytes of a token or a label
_NONE = -1


class Units(Protocol):
    """Units by their places, counted from the first; a list of units is such."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Unit: ...


class _Head(NamedTuple):
    """The header before an example's tokens and labels.

    Attributes:
        before: the place of the example before it of the same unit.
        number: the number of examples of its unit before it.
        tokens: the number of its tokens.
        label: the label of a classifier's example; none if labels follow the tokens.
    """

    before: int
    number: int
    tokens: int
    label: int

    @property
    def numbers(self) -> int:
        """The number of tokens and labels that follow."""
        return 2 * self.tokens if self.label == _NONE else self.tokens


class TokenFile:
    """A file for the tokens of one population, as large as it may get, used by job after job.

    It has no name: the system frees it when the process ends, however that happens.

    Args:
        folder: the file's folder, on the site's own file system.
        size: bytes that are allocated now and kept, so that later nothing depends on how much of
            the disk is free; 0 lets it grow. See `bytes_needed`.

    Attributes:
        close: frees the disk, once nothing reads the file any more.

    Raises:
        OSError: the disk has too few bytes.

    Privacy:
        Holds private records, in tokens.
    """

    def __init__(self, folder: Path, size: int = 0) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._newest: weakref.ref[UnitStore] | None = None
        self.close = weakref.finalize(self, self._file.close)  # at the latest when nobody has it
        if size:
            os.posix_fallocate(self._file.fileno(), 0, size)

    def store(self) -> UnitStore:
        """Make an empty store in this file. The one before it can't be read any more."""
        made = UnitStore(self)
        self._newest = weakref.ref(made)
        return made

    def write(self, start: int, content: bytes) -> None:
        """Put bytes at a place.

        Raises:
            OSError: the disk is full.
        """
        if os.pwrite(self._file.fileno(), content, start) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def read(self, start: int, count: int) -> bytes:
        """Read `count` bytes that were written, from a place on."""
        return os.pread(self._file.fileno(), count, start)

    def check_newest(self, store: UnitStore) -> None:
        """Check that no other store has been put over this one.

        Raises:
            RuntimeError: another has.
        """
        if self._newest is None or store is not self._newest():
            raise RuntimeError("These examples were replaced by those of another job.")


class UnitStore:
    """Store units and their examples, added in any order; return each unit's examples by its place.

    Examples are in the file, and each says where the one before it of the same unit is. Memory
    holds 8 bytes for each unit: where its last example is.

    Args:
        file: see `TokenFile.store`.

    Privacy:
        Holds private records, in tokens.
    """

    def __init__(self, file: TokenFile) -> None:
        self._file = file
        self._last = array("q")  # where each unit's last example is
        self._end = 0  # where what was written ends

    def __len__(self) -> int:
        """Return how many units there are."""
        return len(self._last)

    def add_unit(self) -> int:
        """Begin a unit that has no example yet, and return its place."""
        self._last.append(_NONE)
        return len(self) - 1

    def examples_of(self, place: int) -> int:
        """Return how many examples a unit has."""
        last = self._last[place]
        return 0 if last == _NONE else self._head(last).number + 1

    def append(self, place: int, example: Example) -> None:
        """Add an example to a unit.

        Raises:
            OSError: the disk is full; what is there already is kept.
        """
        ids, labels = example.input_ids, example.labels
        kept, label = (ids, labels) if isinstance(labels, int) else ([*ids, *labels], _NONE)
        head = _Head(self._last[place], self.examples_of(place), len(ids), label)
        content = _HEAD.pack(*head) + np.array(kept, np.int32).tobytes()
        self._file.write(self._end, content)
        self._last[place] = self._end
        self._end += len(content)

    def _head(self, start: int) -> _Head:
        return _Head(*_HEAD.unpack(self._file.read(start, _HEAD.size)))

    def __iter__(self) -> Iterator[Unit]:
        """Yield the units in the order of their places."""
        return (self[place] for place in range(len(self)))

    def __getitem__(self, place: int) -> Unit:
        """Return the unit at a place, counted from the first."""
        self._file.check_newest(self)
        found, start = [], self._last[place]
        while start != _NONE:
            head = self._head(start)
            content = self._file.read(start + _HEAD.size, _NUMBER * head.numbers)
            kept = np.frombuffer(content, np.int32).tolist()
            labels = kept[head.tokens :] if head.label == _NONE else head.label
            found.append(Example(kept[: head.tokens], labels))
            start = head.before
        return tuple(reversed(found))


def bytes_needed(spec: DataSpec, units: int) -> int:
    """Return the bytes that a `TokenFile` needs for `units` units of the longest examples."""
    label = _NONE if spec.task == "causal-lm" else 0
    example = _HEAD.size + _NUMBER * _Head(0, 0, spec.max_length, label).numbers
    return units * spec.max_records_per_unit * example


class SomeUnits:
    """Show the units at some places of a sequence, in the order of those places."""

    def __init__(self, units: Units, places: Sequence[int]) -> None:
        self._units, self._places = units, places

    def __len__(self) -> int:
        """Return how many units are chosen."""
        return len(self._places)

    def __getitem__(self, place: int) -> Unit:
        """Return the unit at one of those places, counted from the first."""
        return self._units[self._places[place]]
