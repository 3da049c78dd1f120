"""A set of made-up records, known by its content, and the change from one set to another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from fedpriv.data.config import FieldName
from fedpriv.data.encode import Example, encode_record
from fedpriv.data.spec import DataSpec
from fedpriv.errors import DataError, ProtocolError, SyntheticSetError
from fedpriv.files import canonical_json, sha256
from fedpriv.names import Digest
from fedpriv.privacy.usual import MAX_PUBLIC_RECORDS
from fedpriv.protocol import Body
from fedpriv.wire import decode_text

Record = Mapping[str, str]  # field → text
MAX_TEXT = 100_000  # characters of a field
MAX_SET = 20_000_000  # characters of a set
MAX_BYTES = 8 * MAX_SET  # of a change, as JSON in UTF-8


def characters(records: Iterable[Mapping[Any, str]]) -> int:
    """Count the characters of all fields of some records."""
    return sum(len(text) for record in records for text in record.values())


class SyntheticSet:
    """A set of N records, in order.

    Attributes:
        records: the texts of each record, by field.
        digest: the digest of all records.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = tuple({field: one[field] for field in sorted(one)} for one in records)

    def __len__(self) -> int:
        """Return N."""
        return len(self.records)

    @cached_property
    def digest(self) -> str:
        return sha256(canonical_json(list(self.records)))

    def examples(self, spec: DataSpec, tokenizer: Any) -> tuple[Example | None, ...]:
        """Return one example of each record, its first window. None if there is nothing to predict.

        Raises:
            ProtocolError: the records don't have the fields of the job, or an unknown label.
        """
        found: list[Example | None] = []
        for row, record in enumerate(self.records, 1):
            if set(record) != set(spec.columns):
                raise ProtocolError(
                    f"Synthetic record {row} has {', '.join(sorted(record))}, the job"
                    f" {', '.join(sorted(spec.columns))}."
                )
            try:
                examples = encode_record(record, spec, tokenizer, row=row, source="synthetic set")
            except DataError as error:
                raise ProtocolError(str(error)) from None
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a tokenizer that panics raises no Exception
                kind = type(error).__name__
                raise ProtocolError(f"Synthetic record {row} can't be read ({kind}).") from None
            found.append(examples[0] if examples else None)
        return tuple(found)


class SetChange(Body):
    """The change that makes one set of another, or of nothing. It holds released and public values.

    Attributes:
        base: the digest of the set before the change; None if all records are here.
        digest: the digest of the set after it.
        size: the size of that set.
        records: the new records, by their places.
    """

    base: Digest | None
    digest: Digest
    size: int = Field(ge=1, le=MAX_PUBLIC_RECORDS)
    records: dict[
        Annotated[int, Field(ge=0, lt=MAX_PUBLIC_RECORDS)],
        dict[FieldName, Annotated[str, Field(max_length=MAX_TEXT)]],
    ]

    @model_validator(mode="after")
    def _of_a_size_to_keep(self) -> Self:
        if (held := characters(self.records.values())) > MAX_SET:
            raise ValueError(f"records: {held} characters are more than {MAX_SET}")
        return self

    @classmethod
    def decode(cls, arrays: Mapping[str, Any]) -> Self:
        """Read what `fedpriv.wire.encode_text` made of a change: blocks with their bytes as `data`.

        Raises:
            ProtocolError: it is no change.
        """
        return cls.parse(decode_text(lambda name: arrays[name].data, arrays.keys(), MAX_BYTES))

    @classmethod
    def between(cls, old: SyntheticSet | None, new: SyntheticSet) -> Self:
        """Return the change from the set that a site has to the one that it must have."""
        held = old.records if old is not None and len(old) == len(new) else ()
        changed: Any = {  # pydantic checks the fields
            place: dict(record)
            for place, record in enumerate(new.records)
            if not held or held[place] != record
        }
        base = old.digest if old is not None and held else None
        return cls(base=base, digest=new.digest, size=len(new), records=changed)

    def apply(self, held: SyntheticSet | None) -> SyntheticSet:
        """Return the set after the change, or the held set if it is already that one.

        Raises:
            SyntheticSetError: the change is for a set that is not held, or does not give the set
                that it names.
        """
        if held is not None and held.digest == self.digest:
            return held
        places: dict[int, Record] = {}
        if held is not None and held.digest == self.base:
            places.update(enumerate(held.records))
        elif self.base is not None:
            raise SyntheticSetError("The synthetic set that this would change is not here.")
        for place, record in self.records.items():
            places[place] = {str(field): text for field, text in record.items()}
        if sorted(places) != list(range(self.size)):
            raise SyntheticSetError(f"The synthetic set would not have records 0…{self.size - 1}.")
        made = SyntheticSet(places[place] for place in range(self.size))
        if made.digest != self.digest:
            raise SyntheticSetError("The synthetic set is not the one that was announced.")
        return made
