"""Where a site's records are, as far as their readers have to know.

All else that a file says about a database or about documents is in `ehr`.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from fedpriv.names import Share
from fedpriv.privacy.usual import MAX_UNITS
from fedpriv.section import Section


class OtherSource(Section):
    """Records that are not a table in a file. Their reader is found by the kind."""

    kind: ClassVar[str]

    @property
    def where(self) -> Path | str:
        """The source's name in messages."""
        raise NotImplementedError

    @property
    def file(self) -> Path | None:
        """Return the file or folder, if there is one."""
        raise NotImplementedError


Source = Path | str | OtherSource


class OtherSources(Section):
    """Hold what may replace a file, what is done to each text, and what is kept apart."""

    omop: OtherSource | None = None
    fhir: OtherSource | None = None
    transform: str | None = Field(
        None,
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$",
        description="Python function, package.module:function, applied first to every text, such"
        " as to remove names. It must look at no other record"
        " ([data](../how-to/data.md#de-identification)).",
    )
    held_out: Share | Path | None = Field(
        None,
        description="Records for tests, never for training: a share of the site's units, such as"
        " 0.2, or a file of further records.",
    )
    held_out_size: int | None = Field(
        None,
        ge=1,
        le=MAX_UNITS,
        description="Number of units in a `held_out` file, stated by a person, never counted."
        " Needed for `[evaluation.sites]` and `allow.evaluation`.",
    )

    def source(self, path: Path | str | None) -> Source | None:
        """Return where the records are: a path or a name at a hub, or else a section."""
        return next((one for one in (path, self.omop, self.fhir) if one is not None), None)

    def check_one(self, path: Path | str | None, table: str, key: str) -> None:
        """Check that the records are in one place.

        Args:
            path: the file, if there is one.
            table, key: where the file is named, for messages.

        Raises:
            ValueError: none is named, or several are.
        """
        places = ((key, path), ("omop", self.omop), ("fhir", self.fhir))
        named = [name for name, place in places if place is not None]
        if not named:
            others = "describe a database (omop) or documents (fhir) there"
            raise ValueError(f"{table}.{key}: is missing; name a file of records, or {others}")
        if len(named) > 1:
            raise ValueError(
                f"{table}.{named[1]}: the records are in {named[0]}, too; a site has one population"
                " in one place"
            )


def where(source: Source) -> Path | str:
    """Return what messages call a source. It never has a password."""
    return source.where if isinstance(source, OtherSource) else source
