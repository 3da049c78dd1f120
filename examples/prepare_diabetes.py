"""Make the diabetes federation: four sites of patients, a held-out set, and one to choose by.

    python examples/prepare_diabetes.py --data DIR

DIR holds `diabetic_data.csv.gz`, the table of the Diabetes 130-US hospitals data of UCI (Strack
et al. 2014), a row for each hospital stay. The task is to tell from a summary of the stay in a
few lines whether the patient was readmitted, ever. Stays that ended in death or in a hospice
can't be followed by a readmission and are left out.

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
SOURCE = {"1": "a physician", "4": "another hospital", "7": "the emergency room"}
DIED_OR_HOSPICE = {"11", "13", "14", "19", "20", "21"}
Row = dict[str, str]
APART = {"held-out": (0.0, 0.1), "tuning": (0.1, 0.15)}  # shares of the patients


def rank(patient: int, purpose: str) -> float:
    """Return a number in [0, 1) that is the patient's alone, the same every time."""
    digest = hashlib.sha256(f"{purpose} {patient}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def count(row: Row, column: str, one: str, many: str) -> str:
    """Write a count with its noun, such as "2 visits" or "no visit"."""
    number = int(row[column])
    return f"{number or 'no'} {one if number < 2 else many}"


def summary(row: Row) -> str:
    """Write the stay in a few English words: first visits of the year before, which tell most.

    A classifier takes the mean over all tokens, so words that tell little would drown the rest.
    Without diagnoses, sex and laboratory tests, logistic regression on the table is as good.
    """
    youngest, oldest = row["age"].strip("[)").split("-")
    source = SOURCE.get(row["admission_source_id"], "elsewhere")
    changed = "changed" if row["change"] == "Ch" else "the same"
    drugs = f"diabetes drugs {changed}" if row["diabetesMed"] == "Yes" else "no diabetes drugs"
    return (
        f"Year before: {count(row, 'number_inpatient', 'stay in hospital', 'stays in hospital')},"
        f" {count(row, 'number_emergency', 'emergency', 'emergencies')},"
        f" {count(row, 'number_outpatient', 'visit', 'visits')}."
        f" Age {youngest} to {oldest}, from {source},"
        f" {count(row, 'time_in_hospital', 'day', 'days')}, {row['number_diagnoses']} diagnoses,"
        f" {row['num_medications']} medications, {drugs}."
    )


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")
    patients = len({row["patient_nbr"] for row in rows})
    again = sum(row["readmitted"] == "yes" for row in rows) / len(rows)
    print(f"{path.name:26} {patients:5} patients  {len(rows):5} stays  {again:.1%} readmitted")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "diabetes")
    parser.add_argument("--per-site", type=int, default=3900, metavar="N", help="patients at most")
    arguments = parser.parse_args()

    stays: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    table = arguments.data / "diabetic_data.csv.gz"
    with gzip.open(table, "rt", encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            if row["discharge_disposition_id"] in DIED_OR_HOSPICE:
                continue
            patient = int(row["patient_nbr"])
            stays[row["medical_specialty"]][patient].append(
                {
                    "patient_nbr": patient,
                    "text": summary(row),
                    "readmitted": "no" if row["readmitted"] == "NO" else "yes",
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
