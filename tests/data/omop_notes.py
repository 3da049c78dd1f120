"""A small OMOP database for tests, in whatever SQLAlchemy connects to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import sqlalchemy as sa

ENGLISH, GERMAN, DISCHARGE, NURSING = 4180186, 4182504, 44814637, 44814638
COLUMNS = {"text": "note_text"}
Note = dict[str, Any]


def note(note_id: int, person_id: int | None, text: str, **others: Any) -> Note:
    """A row of NOTE."""
    usual = {
        "note_id": note_id,
        "person_id": person_id,
        "note_date": date(2020, 1, 1),
        "note_type_concept_id": DISCHARGE,
        "language_concept_id": ENGLISH,
        "note_title": "Note",
        "note_text": text,
    }
    return {**usual, **others}


NOTES = (
    note(3, 7, "third", note_date=date(2021, 6, 30), language_concept_id=GERMAN),
    note(1, 7, "first, café", note_date=date(2019, 12, 31)),
    note(2, 8, "second", note_type_concept_id=NURSING),
)


def fill(
    engine: sa.Engine, notes: Iterable[Note] = NOTES, *, key: bool = True, schema: str | None = None
) -> sa.Table:
    """Make the table NOTE with these rows, in this order."""
    table = sa.Table(
        "note",
        sa.MetaData(schema=schema),
        sa.Column("note_id", sa.Integer, primary_key=key, autoincrement=False),
        sa.Column("person_id", sa.Integer),
        sa.Column("note_date", sa.Date),
        sa.Column("note_type_concept_id", sa.Integer),
        sa.Column("language_concept_id", sa.Integer),
        sa.Column("note_title", sa.String(250)),
        sa.Column("note_text", sa.Text),
    )
    with engine.begin() as connection:
        table.create(connection)
        for row in notes:
            connection.execute(table.insert(), row)
    return table


def sqlite(path: Path, notes: Sequence[Note] = NOTES, *, key: bool = True) -> str:
    """The URL of an SQLite database with these notes."""
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=sa.NullPool)
    fill(engine, notes, key=key)
    engine.dispose()
    return f"sqlite:///{path}"
