"""Find what pays most for the same ε at hospital size, one setting at a time.

    python benchmarks/levers.py DATA --out joining --kind sentences
    python benchmarks/levers.py DATA --out joining --kind abstracts --plan     # hours, nothing else

There is one federation of `benchmarks/joining.py` for each kind, at its ε = 4 with a secure sum.
Every row changes one setting. It has rates of its own to choose from, with a seed of their own and
on records that are not reported. Loss is that of the adapter on 150 records of no site and on the
outside sites' own records. `eva` begins the matrices A at the principal directions of a layer's
inputs on the 200 public records, by PEFT (arXiv 2410.07170): an adapter that a job begins at,
`model.begin`. With `views` a unit is a record and three copies of it, each without a tenth of its
words. Their gradients are added up before the one clip, at four times the clip norm. A measured row
is kept, and the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joining import SECONDS
from joining_data import KINDS, OUTSIDE, ROUNDS, sample_rate, write_federation
from joining_runs import TUNING, Point, Study, allow_any_size, joined, terms_of
from peft import EvaConfig, LoraConfig, get_peft_model, initialize_lora_eva_weights
from resumable import each, plan
from rich.console import Console
from rich.table import Table

from fedpriv.files import write_atomic, write_json
from fedpriv.models.base import load_base
from fedpriv.models.vector import Vector
from fedpriv_comparison.held_out_scores import as_it_is
from fedpriv_comparison.runner import open_folder
from fedpriv_comparison.trial import Result

Row = dict[str, Any]  # a row's figures, as they are kept
SIZES = {
    "sentences": (16, 1000),
    "descriptions": (8, 1000),
    "abstracts": (4, 1000),
    "notes": (64, 16),
}
LINEAR = [  # by name, as in an adapter that a job begins at
    'lora.target_modules=["q_proj","k_proj","v_proj","o_proj","gate_proj","up_proj","down_proj"]'
]
PE_SGD = "PE-SGD"  # the row of another method
VIEWS = "4 views of a record"  # the row of other files
WINDOWS = 4  # of a note
DROPPED = 0.1  # of the words of a view
MOST_RATES = 9  # of a row, which starts at the point's rate and tries half and twice its best one


def levers(point: Point) -> dict[str, list[str]]:
    """Return the rows: a name, and what the row changes."""
    rate = sample_rate(point.kind, point.sites * point.records)
    clip = 10.0 if point.kind.name == "sentences" else 0.1
    public = ["synthetic.data=public.jsonl", f"synthetic.size={point.kind.apart.public}"]
    found = {
        "defaults": [],
        "twice the steps of half the records": _steps(2 * ROUNDS, rate / 2),
        "half the steps of twice the records": _steps(ROUNDS // 2, 2 * rate),
        "four times the work": _steps(ROUNDS, 4 * rate),
        "clip norm / 3": [f"privacy.clip_norm={clip / 3:.3g}"],
        "clip norm × 3": [f"privacy.clip_norm={clip * 3:.3g}"],
        "rank × 4": ["lora.r=16", "lora.alpha=16"] if clip == 10 else ["lora.r=8", "lora.alpha=16"],
        "public warm start": [*public, "synthetic.warm_start=4"],
        "denoising": ["denoise.where=server"],
        PE_SGD: [*public, "synthetic.every=1000"],
        "eva": ["model.begin=eva", *(LINEAR if clip < 1 else [])],
    }
    if point.kind.name in ("abstracts", "notes"):
        found["4 windows of a note"] = [f"privacy.max_records_per_unit={WINDOWS}"]
    else:
        sums = [f"privacy.max_records_per_unit={WINDOWS}", f"privacy.clip_norm={WINDOWS * clip:g}"]
        found[VIEWS] = ["privacy.unit=of", *sums]
    return found


def write_views(folder: Path) -> Path:
    """Write a federation's files again, with the views of each record that a site trains on."""
    views = folder / "views"
    if (views / "federation.toml").exists():
        return views / "federation.toml"
    views.mkdir(exist_ok=True)
    drawn = random.Random("views")
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_text().splitlines(keepends=True)
        kind = path.stem.partition("-")[0]
        if kind in ("site", "own"):  # these files are read by unit
            count = WINDOWS if kind == "site" else 1
            lines = [
                json.dumps(view | {"of": f"{kind}-{at}"}, ensure_ascii=False) + "\n"
                for at, line in enumerate(lines)
                for view in _views(json.loads(line), count, drawn)
            ]
        write_atomic(views / path.name, "".join(lines))
    write_atomic(views / "federation.toml", (folder / "federation.toml").read_text())
    return views / "federation.toml"


def _views(record: dict[str, str], count: int, drawn: random.Random) -> list[dict[str, str]]:
    """Return a record and copies of it. Each copy lacks a tenth of the words, but not the label."""
    copies = [
        {key: text if key == "label" else _thinned(text, drawn) for key, text in record.items()}
        for _ in range(count - 1)
    ]
    return [record, *copies]


def _thinned(text: str, drawn: random.Random) -> str:
    """Leave some words out, but never all of them."""
    return " ".join(word for word in text.split() if drawn.random() >= DROPPED) or text


def _steps(rounds: int, rate: float) -> list[str]:
    return [
        f"job.rounds={rounds}",
        f"evaluation.every={rounds}",
        f"privacy.sample_rate={rate:.4g}",
    ]


def seconds(point: Point, study: Study, name: str, runs: int) -> float:
    """Estimate the seconds of one processor for a row."""
    changed = [term for term in levers(point)[name] if not term.startswith("model.begin")]
    config = study.trial("dp-lora", [*terms_of(point), *changed], TUNING).config
    privacy = config.privacy
    drawn = config.job.rounds * privacy.sample_rate * point.sites * point.records
    return SECONDS[point.kind.name] * drawn * privacy.max_records_per_unit * runs


def write_eva(study: Study, folder: Path) -> None:
    """Write an adapter whose matrices A are the principal directions of public inputs."""
    with study.worker() as worker:
        asked = worker.model.peft_config["default"]
        asked_layers = sorted(asked.target_modules)
        kept = ("r", "lora_alpha", "target_modules", "modules_to_save", "task_type")
        base = load_base(worker.recipe.model).model
        settings = LoraConfig(
            **{key: getattr(asked, key) for key in kept},
            init_lora_weights="eva",
            eva_config=EvaConfig(rho=1.0, adjust_scaling_factors=False),
        )
        texts = [example.input_ids for example in joined(study.examples(worker, "public"))]
        batches = [
            {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids))}
            for ids in texts
        ]
        model = get_peft_model(base, settings, low_cpu_mem_usage=True)
        initialize_lora_eva_weights(model, batches, show_progress_bar=False)
        model.save_pretrained(folder)
        path = folder / "adapter_config.json"  # here PEFT lists each layer that it found
        write_json(path, json.loads(path.read_text()) | {"target_modules": asked_layers})


def _is_whole(row: Row, seeds: int) -> bool:
    """Tell whether a row has all seeds, and a best rate within its grid, if that can be."""
    rates = sorted(map(float, row["tried"]))
    is_inside = rates[0] < float(row["rate"]) < rates[-1]
    return len(row["runs"]) >= seeds and (is_inside or len(rates) >= MOST_RATES)


def _measured(
    study: Study, point: Point, name: str, usual: float, seeds: int, before: Row | None
) -> Row:
    """Measure a row at its own rate, chosen by another seed on records that are not reported.

    Args:
        before: the same row with fewer rates. Its figures are kept.
    """
    changed = levers(point)[name]
    method = "pe-sgd" if name == PE_SGD else "dp-lora"

    def trained(rate: str, seed: int) -> tuple[Result, Vector]:
        terms = [*terms_of(point), *changed, f"optimizer.lr={rate}"]
        return study.trained(study.trial(method, terms, seed))

    tried = {} if before is None else dict(before["tried"])
    best = f"{usual:g}" if before is None else before["rate"]
    while len(tried) < MOST_RATES:
        near = {f"{factor * float(best):g}" for factor in (0.5, 1, 2)} - tried.keys()
        if not near:
            break
        tried |= {rate: trained(rate, TUNING)[0].last("tuning_loss") for rate in sorted(near)}
        best = min(tried, key=tried.__getitem__)
    found = list(before["runs"]) if before is not None and best == before["rate"] else []
    for seed in range(len(found) + 1, seeds + 1):
        result, values = trained(best, seed)
        with study.worker(changed) as worker:
            outside = []
            for index in range(OUTSIDE):
                apart = study.examples(worker, f"apart-{index}", WINDOWS)
                reported = joined(apart[point.kind.apart.choose :])
                outside.append(as_it_is(worker, values)(reported).eval_loss)
        found.append(
            {
                "seed": seed,
                "everyone": result.last("eval_loss"),
                "outside": outside,
                "noise_multiplier": result.noise_multiplier,
                "bytes_up": result.bytes_up,
                "seconds": result.seconds,
            }
        )
    return {"changes": changed, "tried": tried, "rate": best, "runs": found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("joining"))
    parser.add_argument("--json", type=Path, default=Path("docs/results/joining"))
    parser.add_argument("--kind", choices=sorted(SIZES), default="sentences")
    parser.add_argument("--rows", help="names of rows, by default all")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--plan", action="store_true", help="say what it takes, and nothing else")
    arguments = parser.parse_args()
    logging.getLogger("fedpriv_client").setLevel(logging.ERROR)
    allow_any_size()
    point = Point(KINDS[arguments.kind], *SIZES[arguments.kind])
    folder, path = arguments.out / point.folder, arguments.json / f"levers-{arguments.kind}.json"
    file = write_federation(folder, point.kind, arguments.data, point.sites, point.records)
    tuned = arguments.json / "tuned" / f"{point.folder}.json"
    losses = json.loads(tuned.read_text())["federation"] if tuned.exists() else {}
    usual = float(min(losses, key=losses.__getitem__, default=point.kind.rates[1]))
    rows: dict[str, Row] = json.loads(path.read_text()) if path.exists() else {}
    console = Console(highlight=False, width=100)
    with open_folder(folder / "runs"):
        study = Study(file, folder / "runs")
        views = Study(write_views(folder), folder / "runs")
        wanted = [
            name
            for name in levers(point)
            if not (name in rows and _is_whole(rows[name], arguments.seeds))
            and (not arguments.rows or name in arguments.rows.split(","))
        ]
        runs = 3 + arguments.seeds
        plan(((name, seconds(point, study, name, runs)) for name in wanted), console)
        if arguments.plan:
            return 0
        if not (folder / "eva").exists():
            write_eva(study, folder / "eva")

        def measure(name: str) -> None:
            of = views if name == VIEWS else study
            row = _measured(of, point, name, usual, arguments.seeds, rows.get(name))
            rows[name] = row
            write_json(path, rows)
            console.print(f"{name}: {row['runs'][0]['everyone']:.4f} at {row['rate']}")

        code = each(wanted, float("inf"), measure, console)
    table = Table("row", "of no site", "outside", "rate", box=None)
    for name, row in rows.items():
        of_all = np.mean([run["everyone"] for run in row["runs"]])
        outside = np.mean([run["outside"] for run in row["runs"]])
        table.add_row(name, f"{of_all:.3f}", f"{outside:.3f}", row["rate"])
    console.print(table)
    return code


if __name__ == "__main__":
    sys.exit(main())
