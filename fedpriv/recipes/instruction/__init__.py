"""Made-up prescriptions, with what a patient is told about each: nobody's data."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

from fedpriv.recipes.notes import HELD_OUT, write_rows

SITES = {"north": 200, "east": 200, "south": 200}
HELD_OUT_ROWS = 100
MEDICINES = {
    "amoxicillin": ("250 mg", "500 mg"),
    "furosemide": ("20 mg", "40 mg"),
    "ibuprofen": ("200 mg", "400 mg"),
    "lisinopril": ("5 mg", "10 mg", "20 mg"),
    "metformin": ("500 mg", "850 mg"),
    "metoprolol": ("25 mg", "50 mg"),
    "omeprazole": ("20 mg", "40 mg"),
    "paracetamol": ("500 mg", "1 g"),
    "prednisone": ("5 mg", "20 mg"),
    "warfarin": ("2 mg", "5 mg"),
}
TIMES = {"qd": "once a day", "bid": "twice a day", "tid": "three times a day", "qhs": "at bedtime"}
HOW = {"pc": "after a meal", "ac": "before a meal", "aq": "with a glass of water"}
DAYS = (3, 5, 7, 10, 14, 30)


def write_records(folder: Path) -> None:
    """Write prescriptions of which no two are the same. Every call writes the same ones."""
    kinds = ((name, dose) for name, doses in MEDICINES.items() for dose in doses)
    every = [(*kind, *others) for kind, *others in itertools.product(kinds, TIMES, HOW, DAYS)]
    random.Random(0).shuffle(every)  # a public seed, because all of it is made up
    rest = iter(every)
    for name, count in {**SITES, HELD_OUT: HELD_OUT_ROWS}.items():
        write_rows(folder / f"{name}.jsonl", itertools.starmap(_row, itertools.islice(rest, count)))


def _row(name: str, dose: str, times: str, how: str, days: int) -> dict[str, str]:
    return {
        "prescription": f"Rx: {name} {dose} {times} {how}, {days} d\nPatient:",
        "instruction": f" Take {dose} of {name} {TIMES[times]} {HOW[how]}, for {days} days.",
    }
