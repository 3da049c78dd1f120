"""Keep units of examples in a file without a name: on disk while they are used, then gone."""

from __future__ import annotations

import errno
import os
import struct
import tempfile
import weakref
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, overload

import numpy as np

from fedpriv.data.encode import Example

if TYPE_CHECKING:
    from fedpriv.data.spec import DataSpec

Unit = tuple[Example, ...]
Units = Sequence[Unit]
_PLACE = struct.Struct("<q")  # a place in the file
_HEAD = struct.Struct("<qqqq")  # the header of an example; see `_Head`
_NUMBER = np.dtype(np.int32).itemsize  # bytes of a token or a label
_BLOCK = 4096  # units
_NONE = -1


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


class _OneByOne(Units):
    """Units that are read when they are asked for."""

    @abstractmethod
    def _unit(self, place: int) -> Unit:
        """Return the unit at a place, counted from the first."""

    @overload
    def __getitem__(self, index: int) -> Unit: ...

    @overload
    def __getitem__(self, index: slice) -> list[Unit]: ...

    def __getitem__(self, index: int | slice) -> Unit | list[Unit]:
        """Return a unit, by its place."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._unit(range(len(self))[index])  # raises IndexError, or counts from the end


class UnitStore(_OneByOne):
    """Store units and their examples, added in any order; return each unit's examples by its place.

    All that grows with their number is in the file, so memory does not grow. In the file each
    example says where the one before it of the same unit is. Blocks of 8 bytes for each unit,
    between the examples, say where its last one is.

    Args:
        file: see `TokenFile.store`.

    Attributes:
        lengths: the lengths of its examples, in tokens.

    Privacy:
        Holds private records, in tokens.
    """

    def __init__(self, file: TokenFile) -> None:
        self._file = file
        self._units = 0
        self._end = 0  # where what was written ends
        self._blocks: list[int] = []  # where the blocks are

    def __len__(self) -> int:
        """Return how many units there are."""
        return self._units

    def add_unit(self) -> int:
        """Begin a unit that has no example yet, and return its place."""
        self._units += 1
        return self._units - 1

    def examples_of(self, place: int) -> int:
        """Return how many examples a unit has."""
        last = self._last(place)
        return 0 if last == _NONE else self._head(last).number + 1

    def append(self, place: int, example: Example) -> None:
        """Add an example to a unit.

        Raises:
            OSError: the disk is full; what is there already is kept.
        """
        ids, labels = example.input_ids, example.labels
        kept, label = (ids, labels) if isinstance(labels, int) else ([*ids, *labels], _NONE)
        head = _Head(self._last(place), self.examples_of(place), len(ids), label)
        entry = self._entry(place)
        start = self._write(_HEAD.pack(*head) + np.array(kept, np.int32).tobytes())
        self._file.write(entry, _PLACE.pack(start))

    def _write(self, content: bytes) -> int:
        """Write bytes at the end, over any write that failed, and return where they begin."""
        start = self._end
        self._file.write(start, content)
        self._end = start + len(content)
        return start

    def _entry(self, place: int) -> int:
        """Return where the place of a unit's last example is written. Add a block if needed."""
        block, rest = divmod(place, _BLOCK)
        while len(self._blocks) <= block:
            self._blocks.append(self._write(_PLACE.pack(_NONE) * _BLOCK))
        return self._blocks[block] + rest * _PLACE.size

    def _last(self, place: int) -> int:
        if place // _BLOCK >= len(self._blocks):
            return _NONE  # no unit of that block has an example
        (start,) = _PLACE.unpack(self._file.read(self._entry(place), _PLACE.size))
        return int(start)

    def _head(self, start: int) -> _Head:
        return _Head(*_HEAD.unpack(self._file.read(start, _HEAD.size)))

    def _unit(self, place: int) -> Unit:
        self._file.check_newest(self)
        found, start = [], self._last(place)
        while start != _NONE:
            head = self._head(start)
            found.append(self._example(start + _HEAD.size, head))
            start = head.before
        return tuple(reversed(found))

    def _example(self, start: int, head: _Head) -> Example:
        kept = np.frombuffer(self._file.read(start, _NUMBER * head.numbers), np.int32).tolist()
        if head.label != _NONE:
            return Example(kept, head.label)
        return Example(kept[: head.tokens], kept[head.tokens :])


def bytes_needed(spec: DataSpec, units: int) -> int:
    """Return the bytes that a `TokenFile` needs for `units` units of the longest examples."""
    label = _NONE if spec.task == "causal-lm" else 0
    example = _HEAD.size + _NUMBER * _Head(0, 0, spec.max_length, label).numbers
    blocks = -(-units // _BLOCK)
    return units * spec.max_records_per_unit * example + blocks * _BLOCK * _PLACE.size


class SomeUnits(_OneByOne):
    """Show the units at some places of a sequence, in the order of those places."""

    def __init__(self, units: Units, places: Sequence[int]) -> None:
        self._units, self._places = units, places

    def __len__(self) -> int:
        """Return how many units are chosen."""
        return len(self._places)

    def _unit(self, place: int) -> Unit:
        return self._units[self._places[place]]
