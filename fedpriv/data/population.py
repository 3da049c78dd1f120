"""Group a site's examples by the unit that they belong to."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.config.sources import Source, where
from fedpriv.data.encode import (
    Cause,
    Example,
    cause_of,
    check_chat_template,
    check_label,
    encode_record,
)
from fedpriv.data.read import UNIT, read_records
from fedpriv.data.spec import DataSpec
from fedpriv.data.store import TokenFile, UnitStore
from fedpriv.errors import DataError

log = logging.getLogger(__name__)
SHOWN = 10  # rows that a message names

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase


@dataclass
class Tally:
    """Count what became of records when they were encoded.

    Attributes:
        empty: the numbers of the records that gave no example, by cause.
        records: the number of all records.
        cut: the number of encoded records of which a part, or all, is left out for want of room.
        max_length: the tokens of a window.

    Privacy:
        Private: for the site's own screen and log.
    """

    empty: dict[Cause, list[int]] = field(default_factory=dict)
    records: int = 0
    cut: int = 0
    max_length: int = 0

    def add(self, row: int, cause: Cause) -> None:
        """Count a record that gave no example."""
        self.empty.setdefault(cause, []).append(row)

    @property
    def without(self) -> int:
        """The number of records that gave no example."""
        return sum(map(len, self.empty.values()))

    @property
    def is_whole(self) -> bool:
        """Whether everything that records hold is learned from."""
        return not self.without and not self.cut

    @property
    def told(self) -> str:
        """A sentence: how many records gave no example, which and why, and how many lost a part."""
        empty = f"{self.without} of {self.records} records give no example and contribute nothing"
        parts = [f"{len(rows)}: {cause.said} (rows {some(rows)})" for cause, rows in self._by()]
        if parts:
            empty += f", of these {'; '.join(parts)}"
        cut = (
            f"{self.cut} of {self.records} records are cut at max_length = {self.max_length} or"
            " max_records_per_unit: what is left out contributes nothing"
        )
        return ". ".join([empty] * (not self.cut or bool(parts)) + [cut] * bool(self.cut))

    def _by(self) -> list[tuple[Cause, list[int]]]:
        """Return causes and rows, the most frequent cause first."""
        return sorted(self.empty.items(), key=lambda item: -len(item[1]))

    def check(self, most: float, *, key: str, limit: str, file: Path | str | None = None) -> None:
        """Refuse to spend a budget on records of which too few give an example.

        Args:
            most: the largest share of the records that may give no example.
            key: the setting that named the records, for the message.
            limit: the setting that says `most`.

        Raises:
            DataError: a larger share gives none, or no record gives an example.
        """
        are_left = self.without < self.records
        if not self.without or (are_left and self.without <= most * self.records):
            return
        fixes = [cause.fix for cause, _ in self._by()]
        if are_left:
            fixes.append(f"If this is intended, allow more with {limit} (now {most:g}).")
        raise DataError(self.told, file=file, key=key, fix=" ".join(fixes))


def some(rows: Sequence[int]) -> str:
    """Name the first of some rows, for a message."""
    return ", ".join(map(str, rows[:SHOWN])) + (", …" if len(rows) > SHOWN else "")


@dataclass(frozen=True)
class Population:
    """The units of one site: what Poisson sampling draws from.

    Args:
        units: the examples of each unit, read when asked for. A unit whose records give no example
            stays in the population and contributes 0.
        tally: what became of the records.
        problem: why records could not be kept and were left out. Which ones were depends on the
            other records, so a caller that answers no server refuses to continue.

    Privacy:
        Private throughout, its length and `tally` too: for the site's own screen and
        logs. A declared size is typed by the administrator, never taken from here.
    """

    units: UnitStore
    tally: Tally
    problem: OSError | None = None

    def __len__(self) -> int:
        """Return how many units there are."""
        return len(self.units)


def read_labelled(source: Source, spec: DataSpec, *, cache_dir: Path, key: str) -> datasets.Dataset:
    """Read a site's records. If they have a label column, an unknown label is refused.

    Args:
        source, cache_dir, key: see `read_records`.
        spec: says the columns, the unit and the labels.

    Raises:
        DataError: see `read_records`. For an unknown label it names the row, not the label.

    Privacy:
        For the site's own administrator, at its start. A site that refused a *job* because of a
        label would tell the server something about its records' labels.
    """
    records = read_records(source, spec.columns, unit=spec.unit, cache_dir=cache_dir, key=key)
    if "label" in spec.columns:
        for row, record in enumerate(records, 1):
            check_label(record, spec.labels, row=row, source=where(source))
    return records


def encode_population(
    records: Iterable[Mapping[str, Any]],
    spec: DataSpec,
    tokenizer: PreTrainedTokenizerBase,
    file: TokenFile,
    *,
    rows: Iterable[int] | None = None,
) -> Population:
    """Encode records as units of examples, whatever the records hold.

    Each record is tokenised once, into `file`. What the file held before can't be read any more.

    With ``spec.unit = "record"`` each row is a unit. With an id column the rows of an id are one,
    in file order, and its first ``spec.max_records_per_unit`` examples are kept. That unit's rows
    alone decide which ones are kept. A draw from a generator shared by all units, or a rule such as
    "the longest of the file", would let one unit change what another contributes, and adding or
    removing one unit would then change several.

    A record that can't be encoded contributes nothing and its row is noted: a server chooses the
    tokenizer, the labels and how long an example is, so a refusal would be an answer about the
    records.

    Args:
        rows: the records' numbers in their file; by default they count from 1.

    Raises:
        DataError: the tokenizer has no usable chat template for ``messages``, whatever the records
            are.

    Privacy:
        Reads every private record; adding or removing one unit adds or removes exactly one
        entry of `Population.units`. Nothing leaves.
    """
    store = file.store()
    places: dict[str | None, int] = {}  # the places of units, by their ids
    tally, problem = Tally(max_length=spec.max_length), None
    for row, record, examples in _encoded(records, rows, spec, tokenizer, tally):
        owner = None if spec.unit == "record" else record[UNIT]
        place = store.add_unit() if owner is None or owner not in places else places[owner]
        places[owner] = place
        room = spec.max_records_per_unit - store.examples_of(place)
        tally.cut += len(examples) > room and not examples[0].cut  # a cut one is counted already
        try:
            for example in examples[:room]:
                store.append(place, example)
        except OSError as error:
            tally.add(row, Cause.DISK)
            if problem is None:
                problem = error
                log.error("Records were left out, as they could not be kept: %s.", error.strerror)
    return Population(store, tally, problem)


def tally_records(
    records: Iterable[Mapping[str, Any]],
    spec: DataSpec,
    tokenizer: PreTrainedTokenizerBase,
    *,
    rows: Iterable[int] | None = None,
) -> Tally:
    """Tell what would become of records, each by itself, without keeping any.

    Args:
        records, spec, tokenizer, rows: see `encode_population`.

    Raises:
        DataError: as `encode_population`.
    """
    tally = Tally(max_length=spec.max_length)
    for _ in _encoded(records, rows, spec, tokenizer, tally):
        pass
    return tally


def _encoded(
    records: Iterable[Mapping[str, Any]],
    rows: Iterable[int] | None,
    spec: DataSpec,
    tokenizer: PreTrainedTokenizerBase,
    tally: Tally,
) -> Iterator[tuple[int, Mapping[str, Any], list[Example]]]:
    """Yield each record with its number and its examples, and count it in `tally`."""
    if "messages" in spec.columns:
        check_chat_template(tokenizer)
    for row, record in zip(itertools.count(1) if rows is None else rows, records, strict=False):
        cause: Cause | None = None
        examples: list[Example] = []
        try:
            examples = encode_record(record, spec, tokenizer, row=row, source="")
            cause = None if examples else cause_of(record, spec, tokenizer)
        except (KeyboardInterrupt, SystemExit):
            raise
        except DataError:
            cause = Cause.LABEL
        except BaseException:  # a tokenizer that panics raises no Exception
            cause = Cause.FAILED
        tally.records += 1
        tally.cut += any(example.cut for example in examples)
        if cause is not None:
            tally.add(row, cause)
        yield row, record, examples
