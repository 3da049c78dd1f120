"""Word counts and logistic regression, not private: what a classification federation has to beat.

    pip install scikit-learn
    python benchmarks/tfidf.py examples/diabetes.toml --set evaluation.tuning=diabetes/tuning.jsonl

All sites' records are in one place, but only the first of each unit. The features are TF-IDF of
words and of pairs of words. The strength of regularisation is chosen on `evaluation.tuning`, by log
loss. Results are reported on `evaluation.data`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedpriv.config.load import load_job
from fedpriv.data.read import UNIT, read_records

STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


def first_of_each(records: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Give the first record of each unit."""
    seen = set()
    for record in records:
        if record[UNIT] not in seen:
            seen.add(record[UNIT])
            yield record


def main() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    config = load_job(arguments.file, arguments.set)
    with tempfile.TemporaryDirectory() as folder:
        unit = config.privacy.unit

        def read(path: Any, key: str, unit: str = "record") -> list[dict[str, Any]]:
            columns = config.data.columns
            found = read_records(path, columns, unit=unit, cache_dir=Path(folder), key=key)
            return list(found)

        train = []
        for site in config.sites:
            records = read(site.data, f"sites.{site.name}.data", unit)
            train += list(first_of_each(records)) if unit != "record" else records
        if config.evaluation.tuning is None:
            parser.error("evaluation.tuning: name records to choose by, with --set")
        limit = config.evaluation.limit
        parts = {key: read(path, key)[:limit] for key, path in config.evaluation.files().items()}

    def labels(records: list[dict[str, Any]]) -> list[int]:
        return [config.model.labels.index(str(record["label"])) for record in records]

    words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    seen = words.fit_transform([record["text"] for record in train])
    found = []
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, max_iter=5000).fit(seen, labels(train))
        row: dict[str, float] = {"C": strength}
        for key, records in parts.items():
            shown = words.transform([record["text"] for record in records])
            chances, truth = model.predict_proba(shown), labels(records)
            row[f"{key} loss"] = log_loss(truth, chances)
            row[f"{key} accuracy"] = accuracy_score(truth, chances.argmax(1))
            if len(config.model.labels) == 2:
                row[f"{key} AUC"] = roc_auc_score(truth, chances[:, 1])
        found.append(row)
        print("  ".join(f"{key} {value:.4g}" for key, value in row.items()))
    chosen = min(found, key=lambda row: row["evaluation.tuning loss"])
    print(f"\nchosen: C = {chosen['C']:g} of {len(train)} training records")
    if arguments.json:
        arguments.json.write_text(json.dumps({"chosen": chosen, "tried": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
