"""Models side by side on a site's own held-out records, for the site alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedpriv.data.encode import Example
from fedpriv.data.spec import DataSpec
from fedpriv.models.vector import Vector
from fedpriv.personal.generation import completions, references
from fedpriv.personal.together import own_and_federated, together
from fedpriv.plain_training.rouge import Rouge, rouge
from fedpriv.plain_training.scores import Scores, score
from fedpriv.private_training.worker import Worker

GENERATED = 64  # examples that are answered to, the first of all; each takes as long as a long text
MEANING = {
    "base": "the base model, before any training",
    "federated": "the federation's adapter, which this site helped to make",
    "alone": "trained on this site's own records alone, from the base model",
    "again": "trained as 'alone', from another initial adapter",
    "personal": "the federation's adapter, trained further on this site's own records",
    "two alone": "'alone' and 'again' answer together, which a site can have by itself",
    "alone + federated": "the model 'alone' and the federation's answer together, with a mean of"
    " their probabilities",
    "all three": "the same of 'alone', 'personal' and the federation's",
}


@dataclass(frozen=True)
class Row:
    """How good one model is.

    Attributes:
        name: a key of `MEANING`.
        rouge: of what it makes of prompts; None where records have none, or models answer together.
        trained: a site's own model, at which rate × for how many passes; "" for others.
    """

    name: str
    scores: Scores
    rouge: Rouge | None = None
    trained: str = ""


@dataclass(frozen=True)
class Evaluation:
    """A site's own view of the models that it has.

    Attributes:
        job: whose adapter it is about.
        records: held-out ones that were used.
        generated: of those, whose prompts were answered to.
        task: of the model.
        rows: the models there are, in the order of `MEANING`.
        notes: what there is to know when they are compared.
    """

    site: str
    job: str
    task: str
    records: int
    generated: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> dict[str, list[float | None]]:
        """Name of what was measured → its value for each row; without what nothing has."""
        accuracy = "next-token accuracy" if self.task == "causal-lm" else "accuracy"
        measured: dict[str, Callable[[Row], float | None]] = {
            "loss": lambda row: row.scores.eval_loss,
            accuracy: lambda row: row.scores.eval_accuracy,
            "AUC": lambda row: row.scores.eval_auc,
            "ROUGE-1": lambda row: row.rouge.rouge_1 if row.rouge else None,
            "ROUGE-2": lambda row: row.rouge.rouge_2 if row.rouge else None,
            "ROUGE-L": lambda row: row.rouge.rouge_l if row.rouge else None,
        }
        columns = {name: [value(row) for row in self.rows] for name, value in measured.items()}
        return {name: found for name, found in columns.items() if set(found) != {None}}

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        models = {
            row.name: row.scores.as_dict()
            | (asdict(row.rouge) if row.rouge else {})
            | ({"trained": row.trained} if row.trained else {})
            for row in self.rows
        }
        return {
            "site": self.site,
            "job": self.job,
            "records": self.records,
            "generated": self.generated,
            "models": models,
            "notes": list(self.notes),
        }


def evaluate(
    worker: Worker,
    examples: Sequence[Example],
    models: Mapping[str, Vector],
    spec: DataSpec,
    *,
    site: str,
    job: str,
    records: int,
    beside: float,
    trained: Mapping[str, str],
    notes: Sequence[str] = (),
    told: Callable[[str], None] = lambda name: None,
) -> Evaluation:
    """Look at models, given by their trained values (P,).

    Where `federated` is among them, also at what it and the own models answer together.

    Args:
        examples: of held-out records, at least one.
        spec: how the records were prepared.
        records: how many they are.
        beside: the federation's share of the weight where two models answer together.
        trained: how the own models among them were trained, in words.
        notes: what else there is to know.
        told: of each model before it is looked at.

    Privacy:
        Computed from raw records, so it is for the site alone.
    """
    answered = list(examples[:GENERATED]) if "prompt" in spec.columns else []
    expected = references(worker, answered)
    rows = []
    for name, values in models.items():
        told(name)
        found = score(worker, examples, values)
        made = rouge(completions(worker, answered, values), expected) if answered else None
        rows.append(Row(name, found, made, trained.get(name, "")))
    said = [*notes, *_worse_than_base(rows), *one_label(examples, spec.labels)]
    weights = {
        "two alone": [("alone", 0.5), ("again", 0.5)],
        "alone + federated": own_and_federated(["alone"], "federated", beside),
        "all three": own_and_federated(["alone", "personal"], "federated", beside),
    }
    for name, parts in weights.items():
        if {one for one, _ in parts} <= models.keys():
            told(name)
            answering = [(models[one], weight) for one, weight in parts]
            rows.append(Row(name, together(worker, answering)(examples)))
    if rows[-1].name in weights:
        said.append(_of_together(beside, without_text=bool(answered)))
    return Evaluation(
        site=site,
        job=job,
        task=spec.task,
        records=records,
        generated=len(answered),
        rows=tuple(rows),
        notes=tuple(said),
    )


def _worse_than_base(rows: Sequence[Row]) -> list[str]:
    """A note where training by itself did harm, so that whatever beats it says nothing."""
    losses = {row.name: row.scores.eval_loss for row in rows}
    if losses.get("alone", 0.0) <= losses.get("base", math.inf):
        return []
    return [
        "The model 'alone' is worse than the base model, which no training made: to be better than"
        " it means nothing here."
    ]


def _of_together(beside: float, *, without_text: bool) -> str:
    """A note on how two models answer together."""
    weight = (
        f"Where models answer together, the federation's has {beside:g} of the weight"
        " (personal.beside), and the site's own have the rest, in equal parts."
    )
    return f"{weight} They write no text here, so there is no ROUGE." if without_text else weight


def one_label(examples: Sequence[Example], labels: Sequence[str]) -> list[str]:
    """A note where all of a classifier's records have one label, and no AUC is defined."""
    found = {example.labels for example in examples if isinstance(example.labels, int)}
    if len(labels) != 2 or len(found) != 1:
        return []
    return [
        f"All of these records have the label {labels[found.pop()]!r}: there is no AUC, and"
        " accuracy says little. Keep a larger share apart, or name a file with both labels."
    ]
