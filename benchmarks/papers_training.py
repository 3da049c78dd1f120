"""What the studies of published methods share: records, one trainer for all rows, rates, tables.

A study names points and rows. B units are drawn in a step, and the noise is that of the point's
B/σ, whatever ε that would be. What a method can do depends on that ratio (`fedpriv plan FILE
--methods`). So a federation of 50 hospitals is one point, at a step of fewer units than it has.

Every row has its own rate, chosen with a seed of its own and on records that are not reported. The
grid goes on until the best rate is inside. A rate that stays at an end is marked. No run is
private: noise is drawn from seeds, and all data is public. Each run is kept in a file of its own
below --out, and a finished row in JSON. The same command goes on where it was stopped, on another
machine, too.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import random
import statistics
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from joining_data import KINDS, LANGUAGE_MODEL, Group, Row, abstracts, encoder
from joining_runs import Records, Study, allow_any_size, joined
from resumable import each, plan
from rich.console import Console
from rich.table import Table
from torchmetrics.functional.text import sacre_bleu_score

from fedpriv.data.batch import collate
from fedpriv.data.encode import NO_LOSS, Example
from fedpriv.files import write_atomic, write_json
from fedpriv.plain_training.scores import score
from fedpriv.private_training.unit_sum import Vectors, sum_of_units
from fedpriv.private_training.worker import Worker
from fedpriv_comparison.runner import open_folder

Array = np.ndarray[Any, np.dtype[np.float32]]
# Units, values, step → new values, and cosines to the sum without noise.
Step = Callable[[Records, Array, int], tuple[Array, tuple[float, float]]]
TUNING, MOST_RATES = 0, 7
PARTS = {"reported": 300, "choosing": 150, "public": 400}  # records
SECONDS = {  # for a record, without AMX; for the last two with SmolLM2
    "sentences": 0.009,
    "abstracts": 0.012,
    "narratives": 0.012,
    "notes": 0.025,
    "meanings": 0.4,
    "answers": 0.8,
}
BEAMS: dict[str, Any] = {  # as published in arXiv 2510.01137
    "num_beams": 10,
    "length_penalty": 0.9,
    "no_repeat_ngram_size": 4,
}
LONGEST, AT_ONCE = 60, 50  # tokens of a text that beams write, and texts at once
ASKED = "Write an abstract of a medical research paper."


def meanings(data: Path) -> list[Group]:
    """Read E2E: facts as a prompt, and a description of them.

    Those of the same facts are a group.
    """
    found = defaultdict[str, Group](list)
    with gzip.open(data / "e2e" / "train_retok.jsonl.gz", "rt", encoding="utf-8") as stream:
        for row in map(json.loads, stream):
            found[row["mr"]].append({"prompt": row["mr"] + "\n", "completion": row["ref"]})
    return [found[facts] for facts in sorted(found)]


def narratives(data: Path) -> list[Group]:
    """Read the first narrative of each diabetic."""
    found: dict[int, str] = {}
    with gzip.open(data / "diabetes" / "narratives.jsonl.gz", "rt", encoding="utf-8") as stream:
        for row in map(json.loads, stream):
            found.setdefault(row["patient_nbr"], row["text"])
    return [[{"text": text}] for text in found.values()]


def answer(text: str) -> Row:
    """Return a text as an instruct model's answer to a constant prompt."""
    said = ({"role": "user", "content": ASKED}, {"role": "assistant", "content": text})
    prompt, completion = (json.dumps([one]) for one in said)
    return {"prompt": prompt, "completion": completion}


def answers(data: Path) -> list[Group]:
    """Read PubMed's abstracts as such answers."""
    return [[answer(row["text"])] for [row] in abstracts(data)]


TEXT, CONDITIONAL = '{ text = "text" }', '{ prompt = "prompt", completion = "completion" }'
OF_THESE: dict[str, tuple[Callable[[Path], list[Group]], str]] = {
    **{name: (kind.groups, kind.settings) for name, kind in KINDS.items()},
    "narratives": (narratives, LANGUAGE_MODEL.format(tokens=64)),
    "meanings": (meanings, LANGUAGE_MODEL.format(tokens=96).replace(TEXT, CONDITIONAL)),
    "answers": (answers, LANGUAGE_MODEL.format(tokens=128).replace(TEXT, CONDITIONAL)),
}


@dataclass(frozen=True)
class Point:
    """Hold what is trained, and at which signal to noise.

    Attributes:
        ratio: B/σ, where B (`batch`) is the expected number of units in a step.
        records: the most records to train on.
        texts: N, public records of a step, where a row uses some.
        seeds: number of seeds that are reported.
        written: for how many reported prompts texts are written at the end, with beams, for BLEU.
    """

    kind: str
    rank: int
    ratio: float
    steps: int = 50
    batch: int = 64
    clip_norm: float = 1.0
    targets: str = '["q_proj", "v_proj"]'
    records: int = 12_000
    texts: int = 0
    seeds: int = 3
    written: int = 0

    @property
    def name(self) -> str:
        """Return the point's name, as on the command line."""
        parts = [self.kind, f"r{self.rank}", f"{self.ratio:g}", f"{self.steps}"]
        parts += [f"c{self.clip_norm:g}"] if self.kind == "sentences" else []
        return "-".join(parts + ([f"n{self.texts}"] if self.texts else []))


class Training(ABC):
    """Hold a point's records and worker, and train its rows.

    Attributes:
        ROWS: the rows' names, and the rates that each begins with.
        noise: standard deviation of the noise of a coordinate of the mean gradient.
    """

    ROWS: ClassVar[dict[str, Sequence[float]]]

    def __init__(self, point: Point, study: Study, worker: Worker) -> None:
        self.point, self.worker, self._kept = point, worker, study.kept
        self.records, self.choosing, self.reported, self.public = (
            study.examples(worker, name) for name in ("train", *PARTS)
        )
        references = json.loads((study.folder / "references.json").read_text())
        self.references: list[list[str]] = references[: point.written]
        self.shapes = worker.vector.shapes
        self.noise = point.clip_norm / point.ratio

    @abstractmethod
    def stepper(self, row: str, rate: float, drawn: np.random.Generator) -> tuple[Array, Step]:
        """Return the values at which a row begins, and a function that makes a step."""

    def answer(self, row: str, values: Array) -> Array:
        """Return the values that are scored. By default they are the values that were reached."""
        return values

    def summed(
        self, units: Records, values: Array, clip_norm: float, vectors: Vectors | None = None,
        size: int | None = None,
    ) -> Any:  # fmt: skip
        """Sum the units' clipped vectors, (size,) float64. By default they are gradients."""
        self.worker.vector.write(values)
        size = self.worker.gradients.size if size is None else size
        of = self.worker.record_gradients
        found = sum_of_units(
            self.worker, units, clip_norm, "default", size=size, values=of, vectors=vectors
        )
        return found.value.cpu().numpy()

    def run(self, row: str, rate: float, seed: int, scored: Records) -> dict[str, Any]:
        """Train a row, or read what was kept: losses by step, mean cosines, and BLEU."""
        path = self._kept / f"{row}-{rate:g}-{seed}.json"
        if not path.exists():
            write_json(path, self._run(row, rate, seed, scored))
        return json.loads(path.read_text())

    def _run(self, row: str, rate: float, seed: int, scored: Records) -> dict[str, Any]:
        """Train a row.

        Return its loss after a fifth, a half and all of the steps, and mean cosines.
        """
        point, drawn = self.point, np.random.default_rng(seed)
        values, step_of = self.stepper(row, rate, drawn)
        losses, cosines, share = {}, [], point.batch / len(self.records)
        for step in range(1, point.steps + 1):
            chosen = np.flatnonzero(drawn.random(len(self.records)) < share)
            values, found = step_of([self.records[i] for i in chosen], values, step)
            cosines.append(found)
            if step in (max(1, point.steps // 5), point.steps // 2, point.steps):
                answer = self.answer(row, values)
                loss = score(self.worker, joined(scored), answer).eval_loss
                if not math.isfinite(loss):  # it diverged, and has no loss from here on
                    break
                losses[step] = loss
        raw, used = np.nanmean(cosines, axis=0)
        result = {"losses": losses, "cosine": float(raw), "cosine_along": float(used)}
        if self.references and scored is self.reported and point.steps in losses:
            result["bleu"] = self.bleu(self.answer(row, values))
        return result

    def bleu(self, values: Array) -> float:
        """Score the texts that the model writes with beams: BLEU in percent, by `sacre_bleu`."""
        self.worker.vector.write(values)
        asked = [_prompt(joined([record])[0]) for record in self.reported[: len(self.references)]]
        made: list[str] = []
        for first in range(0, len(asked), AT_ONCE):
            made += _written(self.worker, asked[first : first + AT_ONCE])
        return 100 * float(sacre_bleu_score(made, self.references))


def _prompt(example: Example) -> list[int]:
    labels = example.labels
    assert isinstance(labels, list)
    return example.input_ids[: sum(label == NO_LOSS for label in labels)]


@torch.inference_mode()
def _written(worker: Worker, asked: Sequence[list[int]]) -> list[str]:
    """Write with beams a continuation of each prompt."""
    tokenizer, width = worker.base.tokenizer, max(map(len, asked))
    examples = [Example(list(ids), list(ids)) for ids in asked]
    batch = collate(examples, tokenizer.pad_token_id, width, "left").to(worker.model.device)
    found = worker.model.generate(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        max_new_tokens=LONGEST,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id,
        **BEAMS,
    )
    return [str(tokenizer.decode(row[width:], skip_special_tokens=True)).strip() for row in found]


def cosine(a: Any, b: Any) -> float:
    """Return the cosine, or 0 if one of the two vectors is 0."""
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.dot(a, b)) / length if length else 0.0


def tuned(training: Training, row: str) -> dict[str, float]:
    """Return the tried rates: rate → loss on records to choose by.

    Try more while an end is best.
    """
    rates, tried = list(training.ROWS[row]), dict[str, float]()
    while rates:
        rate = rates.pop()
        found = training.run(row, rate, TUNING, training.choosing)["losses"]
        tried[f"{rate:g}"] = found.get(f"{training.point.steps}", 1e9)
        order = sorted(map(float, tried))
        best = float(min(tried, key=lambda one: tried[one]))
        if not rates and len(tried) < MOST_RATES and best in (order[0], order[-1]):
            rates = [float(f"{best / 3 if best == order[0] else best * 3:.1g}")]
    return tried


def write_records(folder: Path, point: Point, data: Path, model: str | None) -> Path:
    """Write the point's federation of one site, and its records."""
    groups_of, settings = OF_THESE[point.kind]
    groups = groups_of(data)
    random.Random(0).shuffle(groups)
    drawn: Iterator[list[Row]] = iter(groups)
    parts = {name: [next(drawn) for _ in range(count)] for name, count in PARTS.items()}
    found = {name: [group[0] for group in part] for name, part in parts.items()}
    found["train"] = [row for group in drawn for row in group][: point.records]
    references = [[row.get("completion") for row in group] for group in parts["reported"]]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "references.json", references)
    text = settings.partition("[lora]")[0]
    if "{model}" in text:
        text = text.replace("{model}", model or encoder())
    elif model is not None:
        text = text.replace('"embedded"', f'"{model}"')
    text = f"""[job]
name = "papers"
rounds = 1
min_sites = 1
data_is_public = true

{text}[lora]
r = {point.rank}
alpha = {2 * point.rank}
target_modules = {point.targets}

[privacy]
epsilon = 4
delta = 1e-6
sample_rate = 0.01

[optimizer]
lr = 1e-3

[evaluation]
data = "choosing.jsonl"

[personal]
rates = [1e-3]

[[sites]]
name = "site-0"
data = "train.jsonl"
size = {len(found["train"])}
"""
    for name, rows in found.items():
        write_atomic(folder / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write_atomic(folder / "federation.toml", text)
    return folder / "federation.toml"


def seconds(point: Point, rows: int) -> float:
    """Estimate the seconds of one processor for a point, with four rates a row."""
    gradients = rows * (4 + point.seeds) * point.steps * (point.batch + point.texts)
    return gradients * SECONDS[point.kind]


def measure(
    training_of: type[Training], point: Point, arguments: argparse.Namespace, path: Path,
    console: Console,
) -> None:  # fmt: skip
    """Measure all rows of a point that were not measured yet."""
    folder = arguments.out / point.name
    found = json.loads(path.read_text()) if path.exists() else {}
    wanted = arguments.rows.split(",") if arguments.rows else [*training_of.ROWS]
    said = repr((point, arguments.model, arguments.set)).encode()
    kept = folder / f"runs-{hashlib.sha256(said).hexdigest()[:12]}"
    with open_folder(kept):
        file = write_records(folder, point, arguments.data, arguments.model)
        study = Study(file, kept, arguments.set)
        with study.worker() as worker:
            training = training_of(point, study, worker)
            base = score(worker, joined(training.reported), worker.initial).eval_loss
            for row in (row for row in wanted if row not in found):
                started, tried = time.process_time(), tuned(training, row)
                best = min(tried, key=lambda one: tried[one])
                runs = [
                    training.run(row, float(best), seed, training.reported)
                    for seed in range(1, point.seeds + 1)
                ]
                seconds = round(time.process_time() - started)
                found[row] = {"tried": tried, "rate": best, "runs": runs, "seconds": seconds}
                write_json(path, {"base": base, **found})
                last = [run["losses"].get(f"{point.steps}") for run in runs]
                console.print(f"{point.name} {row}: {last} at {best} of {tried}, {seconds} s")


def show(path: Path, rows: Sequence[str], console: Console) -> None:
    """Print the losses of a point."""
    found = json.loads(path.read_text())
    columns = ("row", "a fifth", "half", "end", "cosine", "along", "±", "rate", "BLEU")
    table = Table(*columns, box=None)
    for row in (row for row in rows if row in found):
        runs, rate = found[row]["runs"], found[row]["rate"]
        if {len(run["losses"]) for run in runs} != {3}:
            table.add_row(row, "diverged in some runs", *[""] * 5, rate, "")
            continue
        losses = [list(at) for at in zip(*(run["losses"].values() for run in runs), strict=True)]
        means = [statistics.fmean(at) for at in losses]
        means += [statistics.fmean(run[key] for run in runs) for key in ("cosine", "cosine_along")]
        first, *_, last = sorted(map(float, found[row]["tried"]))
        table.add_row(
            row,
            *(f"{mean:.3f}" for mean in means),
            f"{statistics.stdev(losses[-1]):.3f}" if len(runs) > 1 else "",
            f"{rate}{'*' if float(rate) in (first, last) else ''}",
            f"{statistics.fmean(run['bleu'] for run in runs):.1f}" if "bleu" in runs[0] else "",
        )
    console.print(f"\n{path.stem}: base {found['base']:.3f}")
    console.print(table)


def main(description: str, training_of: type[Training], points: Sequence[Point]) -> int:
    """Run the command line of a study."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("papers"))
    parser.add_argument("--json", type=Path, default=Path("docs/results/papers"))
    parser.add_argument("--points", default="", help="parts of names, by default all")
    parser.add_argument("--rows", help=f"some of {','.join(training_of.ROWS)}")
    parser.add_argument("--model", help="a language model or encoder, in place of the small one")
    parser.add_argument("--hours", type=float, default=float("inf"), help="begin no point after")
    parser.add_argument("--plan", action="store_true", help="say what it takes, and nothing else")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    console = Console(highlight=False, width=120)
    chosen = [p for p in points if any(part in p.name for part in arguments.points.split(","))]
    plan(((point.name, seconds(point, len(training_of.ROWS))) for point in chosen), console)
    if arguments.plan:
        return 0
    allow_any_size()
    arguments.json.mkdir(parents=True, exist_ok=True)

    def measured(point: Point) -> None:
        path = arguments.json / f"{point.name}.json"
        measure(training_of, point, arguments, path, console)
        show(path, [*training_of.ROWS], console)

    return each(chosen, arguments.hours, measured, console)
