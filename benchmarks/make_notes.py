"""Make the notes of the two embedded federations from MTSamples.

    python benchmarks/make_notes.py --mtsamples mtsamples.jsonl.gz

`clinics` are 64 small practices of one specialty each, with 16 notes to train on and 8 that nobody
trains on. `four_hospitals` have some 240 notes each. MTSamples (CC0 1.0) lists the same note under
several specialties, so a naive split puts one note into several sites. Only the first row of each
duplicate group is used. The rows of a site are chosen by the hash of the note, so that the files
are the same every time. A clinic's note keeps only its first words, which are more than the 128
tokens that a step reads.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

Row = dict[str, Any]
SITES: dict[str, tuple[str, ...]] = {
    "surgery": ("Surgery",),
    "radiology": ("Radiology",),
    "general-medicine": ("General Medicine", "SOAP / Chart / Progress Notes", "Office Notes"),
    "specialist-clinic": (
        "Urology",
        "Neurology",
        "Orthopedic",
        "Psychiatry / Psychology",
        "Cardiovascular / Pulmonary",
    ),
}
NOTES_PER_SITE = 250
HELD_OUT_PER_SITE = 40
CLINICS = 64
NOTES_PER_CLINIC = 16
HELD_OUT_PER_CLINIC = 8
HELD_OUT_OF_ALL = 96  # that are nobody's
LEAST_WORDS = 20  # of a clinic's note
MOST_LETTERS = 600  # of a clinic's note: at least 147 tokens of the embedded model


def content_hash(row: Row) -> str:
    return hashlib.sha256(row["transcription"].encode()).hexdigest()


def write(path: Path, rows: list[Row]) -> None:
    """Write gzipped JSON lines without a time stamp, so that the bytes are reproducible."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, compresslevel=9) as stream:
        stream.write(lines.encode())
    path.write_bytes(buffer.getvalue())
    print(f"{path.name:34} {len(rows):4} notes  {path.stat().st_size / 1e3:6.0f} kB")


def hospitals(distinct: list[Row], folder: Path) -> None:
    """Write four sites of some specialties each, with whole notes."""
    held_out = []
    for site, specialties in SITES.items():
        chosen = [row for row in distinct if row["medical_specialty"] in specialties]
        held_out += chosen[:HELD_OUT_PER_SITE]
        write(
            folder / f"{site}.jsonl.gz",
            chosen[HELD_OUT_PER_SITE : HELD_OUT_PER_SITE + NOTES_PER_SITE],
        )
    write(folder / "held-out.jsonl.gz", held_out)


def clinics(distinct: list[Row], folder: Path) -> None:
    """Write as many clinics of each specialty as its notes fill.

    Surgery's number is adjusted, so that there are `CLINICS` in all.
    """
    notes = [row for row in distinct if len(row["transcription"].split()) >= LEAST_WORDS]
    of_each = NOTES_PER_CLINIC + HELD_OUT_PER_CLINIC
    by_specialty = defaultdict[str, list[Row]](list)
    for row in notes:
        by_specialty[row["medical_specialty"]].append(row | {"transcription": first_words(row)})
    counts = {name: len(rows) // of_each for name, rows in by_specialty.items()}
    counts["Surgery"] -= sum(counts.values()) - CLINICS
    left, sites = [], []
    for specialty, rows in sorted(by_specialty.items()):
        for index in range(counts[specialty]):
            name = f"{slug(specialty)}-{index + 1}"
            own = rows[index * of_each : (index + 1) * of_each]
            write(folder / f"{name}.jsonl.gz", own[:NOTES_PER_CLINIC])
            write(folder / f"{name}-held-out.jsonl.gz", own[NOTES_PER_CLINIC:])
            sites.append(name)
        left += rows[counts[specialty] * of_each :]
    left.sort(key=lambda row: hashlib.sha256(str(row["note_id"]).encode()).hexdigest())
    write(folder / "held-out.jsonl.gz", left[:HELD_OUT_OF_ALL])
    for name in sites:
        print(
            f'    {{ name = "{name}", data = "{name}.jsonl.gz", size = {NOTES_PER_CLINIC},'
            f' held_out = "{name}-held-out.jsonl.gz" }},'
        )


def first_words(row: Row) -> str:
    """Return the beginning of a note, with its last word whole."""
    text = row["transcription"]
    return text if len(text) <= MOST_LETTERS else text[:MOST_LETTERS].rpartition(" ")[0]


def slug(specialty: str) -> str:
    """Return the first word or two of a specialty's name, for the name of a site."""
    words = re.findall(r"[a-z]+", specialty.partition("/")[0].partition(" - ")[0].lower())
    return "-".join(words[:2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mtsamples", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("fedpriv/assets"))
    arguments = parser.parse_args()

    with gzip.open(arguments.mtsamples, "rt", encoding="utf-8") as stream:
        rows = [json.loads(line) for line in stream]
    wanted = ("note_id", "medical_specialty", "transcription")
    distinct = {
        content_hash(row): {key: row[key] for key in wanted}
        for row in rows
        if row["first_of_group"] and row["transcription"].strip()
    }
    for name, make in {"four_hospitals": hospitals, "clinics": clinics}.items():
        folder = arguments.out / name
        folder.mkdir(parents=True, exist_ok=True)
        make([row for _, row in sorted(distinct.items())], folder)


if __name__ == "__main__":
    main()
