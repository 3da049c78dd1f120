"""Does an evolved set repeat private texts more than texts that nobody trained on?

    fedpriv simulate pe-400/federation.toml --set job.method=pe-sgd --out evolved
    python benchmarks/overlap.py evolved/synthetic.jsonl \\
        --private pe-400/site-0.jsonl --unseen pe-400/reported.jsonl

It reads private texts, so use public stand-ins for them. For every record of the set it takes the
runs of n words (n = 2, 4, 8, 13), and finds the share of them that is in some text of each file. It
also finds the longest run that the record has in common with any text. A set that has learned a
domain shares runs with both files alike. A set that has learned texts by heart shares more, and
longer ones, with the private file. Both files are cut to the same number of words, because more
words have more runs. The evolution should be compared with the set as it was at first (--first).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

LENGTHS = (2, 4, 8, 13)
Words = Sequence[str]


def texts(path: Path) -> list[Words]:
    """Read the words of each record, from all its fields together."""
    with path.open(encoding="utf-8") as stream:
        records = [json.loads(line) for line in stream]
    return [re.findall(r"\w+", " ".join(record.values()).lower()) for record in records]


def runs(words: Words, length: int) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + length]) for i in range(len(words) - length + 1)]


def first(records: list[Words], words: int) -> list[Words]:
    """Return the first records that have `words` words together. The last of them is cut."""
    kept, left = [], words
    for record in records:
        if left <= 0:
            break
        kept.append(record[:left])
        left -= len(record)
    return kept


def shares(made: list[Words], against: list[Words]) -> dict[int, float]:
    """Return by length the share of the set's runs that are in one of the other texts."""
    found = {}
    for length in LENGTHS:
        there = {run for words in against for run in runs(words, length)}
        mine = [run for words in made for run in runs(words, length)]
        found[length] = sum(run in there for run in mine) / max(1, len(mine))
    return found


def longest(made: list[Words], against: list[Words]) -> list[int]:
    """Return for each record the longest run of words that is also in one of the other texts."""
    best, length = [0] * len(made), 1
    while True:
        there = {run for words in against for run in runs(words, length)}
        more = [any(run in there for run in runs(words, length)) for words in made]
        if not any(more):
            return best
        best = [length if one else was for one, was in zip(more, best, strict=True)]
        length += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", type=Path, help="synthetic.jsonl of a run")
    parser.add_argument("--first", type=Path, help="the same of a run without evolution")
    parser.add_argument("--private", type=Path, nargs="+", required=True)
    parser.add_argument("--unseen", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    private = [words for path in arguments.private for words in texts(path)]
    unseen = texts(arguments.unseen)
    words = min(sum(map(len, private)), sum(map(len, unseen)))
    files = {"private": first(private, words), "unseen": first(unseen, words)}
    sets = {"evolved": texts(arguments.set)}
    if arguments.first:
        sets = {"first": texts(arguments.first), **sets}

    table = Table("set", "against", *(f"{n} words" for n in LENGTHS), "longest, mean", "most")
    rows = []
    for name, made in sets.items():
        for against, others in files.items():
            found = shares(made, others)
            lengths = longest(made, others)
            rows.append(
                {
                    "set": name,
                    "against": against,
                    "shares": found,
                    "longest_mean": statistics.mean(lengths),
                    "longest": max(lengths),
                }
            )
            table.add_row(
                name,
                against,
                *(f"{found[n]:.2%}" for n in LENGTHS),
                f"{statistics.mean(lengths):.2f}",
                str(max(lengths)),
            )
    console = Console()
    console.print(table)
    console.print(f"{len(sets['evolved'])} records against {words} words of each file.")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
