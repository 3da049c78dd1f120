"""Three hospitals with notes of four departments each."""

from __future__ import annotations

from pathlib import Path

from fedpriv.recipes.notes import HELD_OUT, embedded_notes, write_rows

SITES = ("north", "east", "south")
DEPARTMENTS = {
    "Surgery": "surgery",
    "Radiology": "radiology",
    "General Medicine": "general",
    "Office Notes": "general",
    "SOAP / Chart / Progress Notes": "general",
}  # all others are a specialist's


def write_records(folder: Path) -> None:
    """Deal the embedded notes out to the sites, so that each has some of every department."""
    departments = ("surgery", "radiology", "general-medicine", "specialist-clinic")
    rows = [_row(note) for name in departments for note in embedded_notes(name)]
    for index, site in enumerate(SITES):
        write_rows(folder / f"{site}.jsonl", rows[index :: len(SITES)])
    write_rows(folder / "held-out.jsonl", map(_row, embedded_notes(HELD_OUT)))


def _row(note: dict[str, str]) -> dict[str, str]:
    department = DEPARTMENTS.get(note["medical_specialty"], "specialist")
    return {"note": note["transcription"], "department": department}
