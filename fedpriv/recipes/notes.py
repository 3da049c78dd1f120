"""The public notes in the package (MTSamples), from which recipes make other files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HELD_OUT = "held-out"


def embedded_notes(site: str) -> list[dict[str, Any]]:
    """Return the notes of one of the four hospitals, or the notes that nobody trains on."""
    from fedpriv.config.load import HOSPITALS

    with gzip.open(HOSPITALS.parent / f"{site}.jsonl.gz", "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one row per line, as JSON."""
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")
