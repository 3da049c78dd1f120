"""Two hospitals whose notes are in OMOP databases, here in files of SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from fedpriv.recipes.notes import HELD_OUT, embedded_notes, write_rows

SITES = {"clinic": ("general-medicine", "specialist-clinic"), "theatre": ("surgery", "radiology")}
EACH = 2  # notes of a person; which person has them is made up
TYPE, ENGLISH = 32817, 4180186  # OMOP's concepts of an EHR, and of English
NOTE = """CREATE TABLE note (
    note_id INTEGER PRIMARY KEY,
    person_id INTEGER NOT NULL,
    note_date DATE NOT NULL,
    note_datetime TIMESTAMP,
    note_type_concept_id INTEGER NOT NULL,
    note_class_concept_id INTEGER NOT NULL,
    note_title VARCHAR(250),
    note_text TEXT NOT NULL,
    encoding_concept_id INTEGER NOT NULL,
    language_concept_id INTEGER NOT NULL,
    provider_id INTEGER,
    visit_occurrence_id INTEGER,
    visit_detail_id INTEGER,
    note_source_value VARCHAR(50)
)"""  # of the OMOP common data model, version 5.4


def write_records(folder: Path) -> None:
    """Write a database of embedded notes for each site, and the notes that are held out."""
    for site, departments in SITES.items():
        notes = [note for name in departments for note in embedded_notes(name)]
        _write(folder / f"{site}.db", notes)
    held_out = ({"note_text": note["transcription"]} for note in embedded_notes(HELD_OUT))
    write_rows(folder / "held-out.jsonl", held_out)


def _write(path: Path, notes: Iterable[dict[str, Any]]) -> None:
    rows = (
        {
            "note_id": number,
            "person_id": 1 + number // EACH,
            "note_date": (date(2020, 1, 1) + timedelta(days=number)).isoformat(),
            "note_type_concept_id": TYPE,
            "note_class_concept_id": 0,
            "note_title": note["medical_specialty"],
            "note_text": note["transcription"],
            "encoding_concept_id": 0,
            "language_concept_id": ENGLISH,
        }
        for number, note in enumerate(notes)
    )
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(NOTE)
        for row in rows:
            names, marks = ", ".join(row), ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO note ({names}) VALUES ({marks})", [*row.values()])
