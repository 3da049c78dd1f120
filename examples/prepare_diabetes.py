"""Make the diabetes federation: four sites of patients, a held-out set, and one to choose by.

    python examples/prepare_diabetes.py --data DIR

DIR holds `narratives.jsonl.gz` (one English narrative per hospital stay, of the Diabetes
130-US hospitals data of UCI; Strack et al. 2014) and `diabetic_data.csv.gz` (its table).
The task is to predict a readmission within 30 days. Stays that ended in death or in a
hospice can't be followed by one and are left out.

Patients, not stays, are held out, by the hash of their number, so that no patient of the
held-out set is at any site. The table doesn't name hospitals: the admitting physician's
specialty stands in for one, and a patient may be at several of these sites.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

SITES = {
    "internal-medicine": "InternalMedicine",
    "emergency": "Emergency/Trauma",
    "family-practice": "Family/GeneralPractice",
    "cardiology": "Cardiology",
}
DIED_OR_HOSPICE = {"11", "13", "14", "19", "20", "21"}
APART = {"held-out": (0.0, 0.1), "tuning": (0.1, 0.15)}  # shares of the patients


def rank(patient: int, purpose: str) -> float:
    """A number in [0, 1) that is the patient's alone, the same every time."""
    digest = hashlib.sha256(f"{purpose} {patient}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def eligible_stays(table: Path) -> set[int]:
    with gzip.open(table, "rt", encoding="utf-8", newline="") as stream:
        return {
            int(row["encounter_id"])
            for row in csv.DictReader(stream)
            if row["discharge_disposition_id"] not in DIED_OR_HOSPICE
        }


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")
    patients = len({row["patient_nbr"] for row in rows})
    early = sum(row["readmitted"] == "yes" for row in rows) / len(rows)
    print(f"{path.name:26} {patients:5} patients  {len(rows):5} stays  {early:.1%} readmitted")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "diabetes")
    parser.add_argument("--per-site", type=int, default=2000, metavar="N", help="patients at most")
    arguments = parser.parse_args()

    eligible = eligible_stays(arguments.data / "diabetic_data.csv.gz")
    stays: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    with gzip.open(arguments.data / "narratives.jsonl.gz", "rt", encoding="utf-8") as stream:
        for line in stream:
            row = json.loads(line)
            if row["encounter_id"] in eligible:
                stays[row["medical_specialty"]][row["patient_nbr"]].append(
                    {
                        "patient_nbr": row["patient_nbr"],
                        "text": row["text"],
                        "readmitted": "yes" if row["readmitted"] == "<30" else "no",
                    }
                )

    arguments.out.mkdir(parents=True, exist_ok=True)
    apart: dict[str, dict[int, list[dict[str, Any]]]] = {name: defaultdict(list) for name in APART}
    for site, specialty in SITES.items():
        patients = stays[specialty]
        kept = []
        for patient in sorted(patients, key=lambda number: rank(number, "site")):
            place = rank(patient, "held out")
            for name, (low, high) in APART.items():
                if low <= place < high:
                    apart[name][patient] += patients[patient]
                    break
            else:
                kept.append(patient)
        rows = [row for patient in kept[: arguments.per_site] for row in patients[patient]]
        write(arguments.out / f"{site}.jsonl", rows)
    # In hashed order, so that the first rows of the file are a fair sample of it.
    for name, found in apart.items():
        order = sorted(found, key=lambda number: rank(number, "order"))
        write(arguments.out / f"{name}.jsonl", [row for patient in order for row in found[patient]])


if __name__ == "__main__":
    main()
