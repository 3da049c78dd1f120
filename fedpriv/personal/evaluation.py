"""Compare models on a site's own held-out records, for the site alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from fedpriv.data.batch import Batch
from fedpriv.data.encode import Example
from fedpriv.data.spec import DataSpec
from fedpriv.models.vector import Vector
from fedpriv.personal.answering import sets_of, title, weights_of
from fedpriv.personal.together import Weights, score_sets
from fedpriv.plain_training.scores import Scored, Scores, one_label
from fedpriv.private_training.worker import Worker
from fedpriv.report.figures import TIE

MEANING = {
    "base": "the base model, before any training",
    "federated": "the federation's adapter",
    "alone": "trained on this site's own records alone, from the base model",
    "again": "trained as 'alone', from another initial adapter",
    "personal": "the federation's adapter, trained further on this site's own records",
    "two alone": "'alone' and 'again' answer together, which a site can have by itself",
    "alone + personal": "both answer together, with a mean of their probabilities",
    "alone + federated": "the same of the model 'alone' and the federation's",
    "personal + federated": "the same of 'personal' and the federation's",
    "all three": "the same of 'alone', 'personal' and the federation's",
    "single": "one adapter that learned what those answer together",
}
WITHOUT = ("alone", "two alone")  # what a site can have without joining
SURELY = 0.975  # quantile of Student's t, on either side
FEWEST = 8  # units; with fewer nothing is concluded


@dataclass(frozen=True)
class Row:
    """Hold how good one model is.

    Attributes:
        name: a key of `MEANING`.
        trained: rate × passes of a site's own model; "" for others.
        served: whether the site model answers like this.
    """

    name: str
    scores: Scores
    trained: str = ""
    served: bool = False


@dataclass(frozen=True)
class Evaluation:
    """A site's own view of its models.

    Attributes:
        job: the job whose adapter is compared.
        records: number of held-out records that were used.
        task: task of the model.
        rows: a row for each model, in the order of `MEANING`.
        verdict: whether joining paid, in a sentence; "" where that can't be asked.
        notes: what a reader of the comparison should know.
    """

    site: str
    job: str
    task: str
    records: int
    rows: tuple[Row, ...]
    verdict: str = ""
    notes: tuple[str, ...] = ()

    @property
    def losses(self) -> dict[str, float]:
        """Return the loss of each model."""
        return {row.name: row.scores.eval_loss for row in self.rows}

    @property
    def columns(self) -> dict[str, list[float | None]]:
        """Return the values for each row, by the name of what was measured.

        Empty columns are left out.
        """
        accuracy = "next-token accuracy" if self.task == "causal-lm" else "accuracy"
        names = {"loss": "eval_loss", accuracy: "eval_accuracy", "AUC": "eval_auc"}
        columns = {
            name: [getattr(row.scores, field) for row in self.rows] for name, field in names.items()
        }
        return {name: found for name, found in columns.items() if set(found) != {None}}

    def as_dict(self) -> dict[str, Any]:
        """Return the evaluation as JSON."""
        models = {row.name: row.scores.as_dict() for row in self.rows}
        fields = {name: getattr(self, name) for name in ("site", "job", "records", "verdict")}
        return {**fields, "models": models, "notes": [*self.notes]}


def evaluate(
    worker: Worker,
    examples: Sequence[Example],
    models: Mapping[str, Vector],
    spec: DataSpec,
    *,
    units: Sequence[int] | None,
    site: str,
    job: str,
    records: int,
    beside: float,
    served: Weights,
    site_model: Any = None,
    trained: Mapping[str, str],
    notes: Sequence[str] = (),
    told: Callable[[str], None] = lambda name: None,
) -> Evaluation:
    """Score models, given by their trained values (P,), and sets of them that answer together.

    Args:
        examples: examples of held-out records, at least one.
        spec: how the records were prepared.
        units: the unit of each example. None where a model may know an example, so that nothing is
            concluded.
        records: number of the records.
        beside: the federation's share of the weight where models answer together.
        served: weights of the site model; empty where there is no such model.
        site_model: the site model, where its adapter has a shape of its own.
        trained: how the own models among them were trained, in words.
        notes: what else a reader should know.
        told: called with a text about what is being done.

    Privacy:
        Computed from raw records, so the result is for the site alone.
    """
    sets: dict[str, Weights] = {name: {name: 1.0} for name in models}
    if {"alone", "again"} <= models.keys():
        sets["two alone"] = weights_of(("alone", "again"), beside)
    sets |= {title(names): weights_of(names, beside) for names in sets_of(models) if len(names) > 1}
    shown = title([*served])
    if shown in sets:
        sets[shown] = served
    told(f"Looking at {len(models)} models, and at {len(sets) - len(models)} sets of them")
    others = {} if site_model is None else {shown: partial(_of_batch, site_model)}
    scored = score_sets(worker, examples, models, sets, others)
    rows = tuple(
        Row(name, scored[name].scores, trained.get(name, ""), served=name == shown)
        for name in sorted(scored, key=[*MEANING].index)
    )
    said = [*notes, *_worse_than_base(rows), *one_label(examples, spec.labels)]
    if len(sets) > len(models):
        said.append(_of_together(beside, served))
    return Evaluation(
        site=site,
        job=job,
        task=spec.task,
        records=records,
        rows=rows,
        verdict=_verdict(scored, shown, units),
        notes=tuple(said),
    )


def _of_batch(model: Any, batch: Batch) -> torch.Tensor:
    """Return the answer of a model that may be on another device."""
    given = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    found = model(**{name: value.to(model.device) for name, value in given.items()})
    return found.logits.float().to(batch.input_ids.device)  # type: ignore[no-any-return]


def _verdict(scored: Mapping[str, Scored], shown: str, units: Sequence[int] | None) -> str:
    """Say whether joining paid.

    What is served is compared with the better model without joining.
    """
    if units is None or not {shown, *WITHOUT} <= scored.keys():
        return ""
    name = min(WITHOUT, key=lambda one: scored[one].scores.eval_loss)
    ours, without = scored[shown], scored[name]
    gain = without.scores.eval_loss - ours.scores.eval_loss
    figures = (
        f"the loss of what is served ({shown}) is {ours.scores.eval_loss:.3f}, and that of the"
        f" better of own models without the federation ({name}) {without.scores.eval_loss:.3f}"
    )
    if shown == "alone":
        return f"Joining did not pay here: the site model has nothing of the federation; {figures}."
    count = len(set(units))
    chance = _chance(ours, without, units)
    if abs(gain) <= chance:
        of_chance = f", and chance makes {chance:.3f} of difference" if count >= FEWEST else ""
        return (
            f"Whether joining paid can't be told from {count} held-out units: {figures}{of_chance}."
        )
    return f"Joining {'paid' if gain > 0 else 'did not pay'} here: {figures}."


def _chance(one: Scored, other: Scored, units: Sequence[int]) -> float:
    """Estimate how far two models' losses may differ by chance, through which units were held out.

    It is Student's t times the standard error of a difference of ratios: each unit's losses over
    its targets. Units are used because texts of one person are alike. Infinite for fewer than
    `FEWEST` units.
    """
    count = len(set(units))
    if count < FEWEST:
        return math.inf
    from scipy.stats import t  # its import takes longer than all of `import fedpriv`

    gap = other.scores.eval_loss - one.scores.eval_loss
    beyond = np.bincount(units, other.losses - one.losses - gap * one.targets)
    squares = float((beyond**2).sum()) * count / (count - 1)
    return float(t.ppf(SURELY, count - 1)) * math.sqrt(squares) / float(one.targets.sum())


def _worse_than_base(rows: Sequence[Row]) -> list[str]:
    """Note where training alone did harm, so that to beat it says nothing."""
    losses = {row.name: row.scores.eval_loss for row in rows}
    worse = "The model 'alone' is worse than the base model, which no training made"
    said = [f"{worse}: to be better than it means nothing here."]
    return said if losses.get("alone", 0.0) > losses.get("base", math.inf) + TIE else []


def _of_together(beside: float, served: Weights) -> str:
    """Note how models answer together."""
    weight = (
        f"Where models answer together, the federation's has {beside:g} of the weight"
        " (personal.beside), and the site's own have the rest, in equal parts."
    )
    if served:
        shares = ", ".join(f"{name} {share:.2f}" for name, share in served.items())
        weight += f" The site model answers with: {shares}."
    return weight
