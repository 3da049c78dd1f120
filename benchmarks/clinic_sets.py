"""Public texts that the clinics of the embedded federation can begin with.

    python benchmarks/clinic_sets.py DATA --out sets

DATA holds the folders mtsamples and medquad. The script writes a number of texts, drawn by their
hash, as a coordinator could have them. `notes.jsonl` has notes like those of the clinics, which no
clinic and no evaluation has. `medquad.jsonl` has answers to health questions, which the embedded
model has read. They are for rows of `fedpriv compare` such as
`dp-lora:synthetic.data=…/sets/notes.jsonl:synthetic.size=200:synthetic.warm_start=16`.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from make_notes import LEAST_WORDS, MOST_LETTERS

from fedpriv.config.load import EMBEDDED
from fedpriv.files import write_atomic

COLUMN = "transcription"  # as in the federation file


def texts(path: Path, column: str) -> list[str]:
    """Read the text of every row, cut to the length of a clinic's note."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        rows = [json.loads(line) for line in stream]
    return [beginning(row[column] or "") for row in rows if row.get("first_of_group", True)]


def beginning(text: str) -> str:
    """Return as much of a text as a clinic's note has, with its last word whole."""
    return text if len(text) <= MOST_LETTERS else text[:MOST_LETTERS].rpartition(" ")[0]


def drawn(found: Iterable[str], known: set[str], count: int) -> list[str]:
    """Draw `count` distinct texts that are long enough and not known."""
    able = {text for text in found if len(text.split()) >= LEAST_WORDS} - known
    return sorted(able, key=lambda text: hashlib.sha256(text.encode()).hexdigest())[:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("sets"))
    parser.add_argument("--size", type=int, default=200)
    arguments = parser.parse_args()
    taken = {text for path in EMBEDDED.parent.glob("*.gz") for text in texts(path, COLUMN)}
    sources = {
        "notes": (arguments.data / "mtsamples/mtsamples.jsonl.gz", COLUMN),
        "medquad": (arguments.data / "medquad/medquad.jsonl.gz", "answer"),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, (path, column) in sources.items():
        chosen = drawn(texts(path, column), taken, arguments.size)
        lines = "".join(json.dumps({COLUMN: text}) + "\n" for text in chosen)
        write_atomic(arguments.out / f"{name}.jsonl", lines)
        print(f"{name}.jsonl: {len(chosen)} texts")


if __name__ == "__main__":
    main()
