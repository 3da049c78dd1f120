"""Examples in a file without a name: on disk while they are used, gone when nobody does."""

from __future__ import annotations

import errno
import os
import tempfile
import weakref
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, overload

import numpy as np

from fedpriv.data.encode import Example

Tokens = np.ndarray[Any, np.dtype[np.int32]]
Units = Sequence[tuple[Example, ...]]


class TokenFile:
    """A file for the tokens of one population, as large as it may get, used by job after job.

    It has no name: the system frees it when the process ends, however that happens.

    Args:
        folder: where the file is; its file system is the site's own.
        size: bytes that are allocated now and kept, so that later nothing depends on how much of
            the disk is free; 0 lets it grow.

    Attributes:
        close: frees the disk, once nothing reads the file any more.

    Raises:
        OSError: the disk has not so many bytes.

    Privacy:
        Holds private records, in tokens.
    """

    def __init__(self, folder: Path, size: int = 0) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._newest: weakref.ref[ExampleStore] | None = None
        self.close = weakref.finalize(self, self._file.close)  # at the latest when nobody has it
        if size:
            os.posix_fallocate(self._file.fileno(), 0, size)

    def store(self) -> ExampleStore:
        """An empty store in this file. The one before it can't be read any more."""
        made = ExampleStore(self)
        self._newest = weakref.ref(made)
        return made

    def write(self, start: int, content: bytes) -> None:
        """Put bytes at a place.

        Raises:
            OSError: the disk is full.
        """
        if os.pwrite(self._file.fileno(), content, start) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def mapped(self, tokens: int) -> Tokens:
        """So many tokens from the beginning, read from the disk when they are looked at."""
        return np.memmap(self._file, np.int32, "r", shape=(tokens,))

    def check_newest(self, store: ExampleStore) -> None:
        """Check that no other store has been put over this one.

        Raises:
            RuntimeError: another has.
        """
        if self._newest is None or store is not self._newest():
            raise RuntimeError("These examples were replaced by those of another job.")


class ExampleStore:
    """Takes examples one by one, and gives them back by number once it is sealed.

    Their tokens go through a file that is mapped, so what is held in memory is a few bytes an
    example, and whatever pages were used last.

    Args:
        file: where the tokens are; see `TokenFile.store`.

    Attributes:
        lengths: in tokens, that its examples have.

    Privacy:
        Holds private records, in tokens.
    """

    def __init__(self, file: TokenFile) -> None:
        self.lengths: set[int] = set()
        self._file = file
        self._ends = array("q", [0])
        self._classes = array("q")  # of a classifier's examples
        self._tokens: Tokens = np.zeros(0, np.int32)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._ends) - 1

    def append(self, example: Example) -> int:
        """Keep an example, and return its number.

        Raises:
            OSError: the disk is full; those before it are kept.
        """
        labels = example.labels
        kept = example.input_ids if isinstance(labels, int) else [*example.input_ids, *labels]
        start = self._ends[-1] * self._tokens.itemsize  # over what the disk did not take
        self._file.write(start, np.array(kept, np.int32).tobytes())
        if isinstance(labels, int):
            self._classes.append(labels)
        self._ends.append(self._ends[-1] + len(kept))
        self.lengths.add(len(example.input_ids))
        return len(self) - 1

    def seal(self) -> None:
        """Map what was written; nothing can be added any more."""
        if self._ends[-1]:
            self._tokens = self._file.mapped(self._ends[-1])

    def __getitem__(self, number: int) -> Example:
        """The example with that number."""
        self._file.check_newest(self)
        found = self._tokens[self._ends[number] : self._ends[number + 1]].tolist()
        if self._classes:
            return Example(found, self._classes[number])
        return Example(found[: len(found) // 2], found[len(found) // 2 :])


class _OneByOne(Units):
    """Units that are read when they are asked for."""

    @abstractmethod
    def _unit(self, place: int) -> tuple[Example, ...]:
        """That at a place, counted from the first."""

    @overload
    def __getitem__(self, index: int) -> tuple[Example, ...]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[Example, ...]]: ...

    def __getitem__(self, index: int | slice) -> tuple[Example, ...] | list[tuple[Example, ...]]:
        """A unit, by its place."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._unit(range(len(self))[index])  # an IndexError, or counted from the end


class StoredUnits(_OneByOne):
    """The examples of each unit of a store.

    Where each record is a unit of one example, nothing is held for any of them.

    Args:
        members: the numbers of each unit's examples.
    """

    def __init__(self, store: ExampleStore, members: Iterable[Sequence[int]]) -> None:
        self._store = store
        numbers, ends = array("q"), array("q", [0])
        for held in members:
            numbers.extend(held)
            ends.append(len(numbers))
        self._numbers, self._ends = _counted(numbers), _counted(ends)

    @property
    def lengths(self) -> set[int]:
        """In tokens, that the examples have."""
        return self._store.lengths

    def __len__(self) -> int:
        """How many units there are."""
        return len(self._ends) - 1

    def _unit(self, place: int) -> tuple[Example, ...]:
        held = self._numbers[self._ends[place] : self._ends[place + 1]]
        return tuple(self._store[number] for number in held)


def _counted(numbers: array[int]) -> Sequence[int]:
    """The same numbers; as a range if they count up from 0."""
    counting = np.array_equal(np.frombuffer(numbers, np.int64), np.arange(len(numbers)))
    return range(len(numbers)) if counting else numbers


def lengths_of(units: Units) -> set[int]:
    """In tokens, of all examples. A store knows them; of others each example is looked at."""
    if isinstance(units, StoredUnits):
        return units.lengths
    return {len(example.input_ids) for unit in units for example in unit}


class SomeUnits(_OneByOne):
    """Those at some places of others, in that order."""

    def __init__(self, units: Units, places: Sequence[int]) -> None:
        self._units, self._places = units, places

    def __len__(self) -> int:
        """How many they are."""
        return len(self._places)

    def _unit(self, place: int) -> tuple[Example, ...]:
        return self._units[self._places[place]]
