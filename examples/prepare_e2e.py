"""Make the E2E federation: four sites of restaurant descriptions, two sets apart from them.

    python examples/prepare_e2e.py --data DIR

DIR holds `train_retok.jsonl.gz`, `dev.jsonl.gz` and, if public records or texts to score by are
wanted, `test.jsonl.gz` of the E2E NLG challenge (CC BY-SA 4.0), with a meaning representation
`mr` and a reference text `ref` per row. All references of one meaning go to the same site, by its
hash, so that sites don't share meanings.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import random
from pathlib import Path

SITES = ("north", "east", "south", "west")
HELD_OUT, TUNING, PUBLIC = 200, 100, 200

Row = dict[str, str]


def rank(*parts: str) -> int:
    """Return a number that depends on the parts alone, the same every time."""
    return int.from_bytes(hashlib.sha256("\0".join(parts).encode()).digest()[:8], "big")


def read(path: Path) -> list[Row]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        rows = (json.loads(line) for line in stream)
        return [{"mr": row["mr"] + "\n", "ref": row["ref"]} for row in rows]


def write(path: Path, rows: list[Row]) -> None:
    """Write the rows and say how many there are."""
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")
    meanings = len({row["mr"] for row in rows})
    print(f"{path.name:16} {len(rows):4} records of {meanings:4} meanings")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "e2e")
    parser.add_argument("--per-site", type=int, default=500, metavar="N", help="records at most")
    arguments = parser.parse_args()

    development = read(arguments.data / "dev.jsonl.gz")
    unseen = {row["mr"] for row in development}
    training = [
        row for row in read(arguments.data / "train_retok.jsonl.gz") if row["mr"] not in unseen
    ]
    # In hashed order: neighbours in the source say the same thing.
    training.sort(key=lambda row: rank(row["mr"], row["ref"]))
    development.sort(key=lambda row: rank(row["mr"], row["ref"]))

    arguments.out.mkdir(parents=True, exist_ok=True)
    for index, site in enumerate(SITES):
        rows = [row for row in training if rank(row["mr"]) % len(SITES) == index]
        write(arguments.out / f"{site}.jsonl", rows[: arguments.per_site])
    held_out = development[:HELD_OUT]
    reported = {row["mr"] for row in held_out}
    others = [row for row in development if row["mr"] not in reported]
    write(arguments.out / "held-out.jsonl", held_out)
    write(arguments.out / "tuning.jsonl", others[:TUNING])
    test = arguments.data / "test.jsonl.gz"
    if test.exists():
        rows = read(test)
        write(arguments.out / "test.jsonl", rows)  # for `fedpriv generate --score`
        # Public records that are at no site and not reported, such as for a gate.
        write(arguments.out / "public.jsonl", random.Random(0).sample(rows, PUBLIC))


if __name__ == "__main__":
    main()
