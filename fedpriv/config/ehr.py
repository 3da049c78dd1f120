"""Where a site's records are if they are no table in a file: in an OMOP database, or in FHIR.

Every key is public and fixed before a record is read. A filter looks at one record alone, so it
keeps each record or leaves it out by itself (law 2).
"""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedpriv.config.sources import OtherSource, OtherSources
from fedpriv.errors import without_passwords

SQLITE = re.compile(r"(sqlite(?:\+\w+)?:///)([^?]+)(.*)", re.S)
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z_][\w$]{0,127}$")]


class _Dated(OtherSource):
    """Records within a range of days."""

    first_date: date | None = Field(
        None,
        description="Leave out records before this date, such as 2020-01-01, or without a date.",
    )
    last_date: date | None = Field(
        None, description="Leave out records after this date, or without a date."
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.first_date and self.last_date and self.first_date > self.last_date:
            raise ValueError("first_date is after last_date, so that no record is left")
        return self


class OmopSection(_Dated):
    """The table NOTE of an OMOP common data model, in a database that SQLAlchemy reads.

    It replaces a file, and needs the extra `omop`; see [data](../how-to/data.md#omop).
    """

    kind: ClassVar[str] = "omop"

    url: str = Field(
        min_length=1,
        description="SQLAlchemy URL without a password, such as"
        " postgresql+psycopg://reader@db.example.org/cdm or sqlite:///cdm.db.",
    )
    password_env: str | None = Field(
        None, min_length=1, description="Environment variable with the password."
    )
    cdm_schema: Identifier | None = Field(
        None, description="Schema of the table. Without it, the database user's own."
    )
    table: Identifier = Field(
        "note", description="The table, or a view with its columns, such as a cohort's."
    )
    note_type_concept_id: tuple[int, ...] = Field((), description="Note types to read. Empty: all.")
    language_concept_id: tuple[int, ...] = Field(
        (), description="Note languages to read. Empty: all."
    )

    @model_validator(mode="before")
    @classmethod
    def _of_0_2_0(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("password_file", ...) is None:  # as 0.2.0 wrote
            return {k: v for k, v in value.items() if k != "password_file"}
        return value

    @model_validator(mode="after")
    def _keeps_no_password(self) -> Self:
        if without_passwords(self.url) != self.url:
            raise ValueError(
                "url: holds a password, and this file is copied and shown; take it out and name"
                " password_env"
            )
        return self

    @property
    def where(self) -> str:
        """The source's name in messages."""
        return self.url

    @property
    def file(self) -> Path | None:
        """The file of an SQLite database."""
        return Path(found[2]) if (found := SQLITE.fullmatch(self.url)) else None


class FhirSection(_Dated):
    """DocumentReference resources of FHIR R4, one a line (NDJSON), as bulk exports write them.

    They replace a file of rows; see [data](../how-to/data.md#fhir).
    """

    kind: ClassVar[str] = "fhir"

    path: Path = Field(
        description="A .ndjson file, plain or .gz, or a folder of them. Separate attachments lie"
        " beside it."
    )
    status: tuple[Literal["current", "superseded"], ...] = Field(
        ("current",),
        min_length=1,
        description="Document statuses to read. Documents entered in error are never read.",
    )
    type_code: tuple[str, ...] = Field(
        (), description="Document type codes to read, such as 11506-3 of LOINC. Empty: all."
    )
    language: tuple[str, ...] = Field(
        (), description="Languages to read; en includes en-GB. Empty: all."
    )

    @property
    def where(self) -> Path:
        """The source's name in messages."""
        return self.path

    @property
    def file(self) -> Path:
        """The file or folder."""
        return self.path


class EhrSources(OtherSources):
    """Other sources, as a file describes them."""

    omop: OmopSection | None = None
    fhir: FhirSection | None = None
