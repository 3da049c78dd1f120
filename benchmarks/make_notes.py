"""Make the embedded federation's notes: four sites and a held-out set from MTSamples.

    python benchmarks/make_notes.py --mtsamples mtsamples.jsonl.gz

MTSamples (CC0 1.0) lists the same note under several specialties, so a naive split puts
one note into several sites. Only the first row of each duplicate group is used. The rows
of a site are chosen by the hash of the note, so that the files are the same every time.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
from pathlib import Path

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


def content_hash(row: dict[str, str]) -> str:
    return hashlib.sha256(row["transcription"].encode()).hexdigest()


def write(path: Path, rows: list[dict[str, str]]) -> None:
    """Write gzipped JSON lines without a time stamp, so that the bytes are reproducible."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, compresslevel=9) as stream:
        stream.write(lines.encode())
    path.write_bytes(buffer.getvalue())
    print(f"{path.name:34} {len(rows):4} notes  {path.stat().st_size / 1e3:6.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mtsamples", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("fedpriv/assets/four_hospitals"))
    arguments = parser.parse_args()

    with gzip.open(arguments.mtsamples, "rt", encoding="utf-8") as stream:
        rows = [json.loads(line) for line in stream]
    distinct = {
        content_hash(row): row
        for row in rows
        if row["first_of_group"] and row["transcription"].strip()
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    held_out = []
    for site, specialties in SITES.items():
        chosen = [
            {key: row[key] for key in ("note_id", "medical_specialty", "transcription")}
            for _, row in sorted(distinct.items())
            if row["medical_specialty"] in specialties
        ]
        held_out += chosen[:HELD_OUT_PER_SITE]
        kept = chosen[HELD_OUT_PER_SITE : HELD_OUT_PER_SITE + NOTES_PER_SITE]
        write(arguments.out / f"{site}.jsonl.gz", kept)
    write(arguments.out / "held-out.jsonl.gz", held_out)


if __name__ == "__main__":
    main()
