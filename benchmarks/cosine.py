"""How near released gradients are to the true ones over a training, before and after denoising.

    python benchmarks/cosine.py sst2-1/federation.toml --set privacy.clip_norm=1 --json cosine.json

Trains as `fedpriv simulate` would, on public records with seeded noise, but keeps each round's sum
before the noise too. Every few rounds it prints the cosine of the released gradient with that one,
as it is and denoised, over the whole vector; in how many matrices the denoiser found something, and
in how many it would by chance; and the loss on the reported records. Which of the two gradients
moves the model is what the file says (`denoise.where`). A higher cosine is not a lower loss: for
that, use `fedpriv compare`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from unit_noise import unit_noise

from fedpriv.config.job import JobConfig
from fedpriv.config.load import HOSPITALS, load_job
from fedpriv.methods.proposal import job_recipe
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv.privacy.mechanism.csprng import InsecureRandomness
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.private_training.pool import make_worker
from fedpriv.public_update.denoise import Denoiser
from fedpriv.public_update.post_processing import denoise_of
from fedpriv.public_update.schedule import learning_rate
from fedpriv.public_update.update import Aggregate, Update
from fedpriv_comparison.public_training import load, raw_sum, untrained
from fedpriv_server.evaluation import evaluate


def run(config: JobConfig, seed: int) -> list[dict[str, Any]]:
    """Return a row for every evaluated round: means over the rounds since the last one."""
    privacy, worker = config.privacy, make_worker(job_recipe(config))
    populations, reported, _ = load(config, worker)
    noise = calibrate_noise(privacy.epsilon, privacy.delta, privacy.sample_rate, config.steps)
    denoise = denoise_of(config.denoise, worker.vector.shapes)
    update = Update(config.optimizer, untrained(worker), denoise)
    denoiser = Denoiser(worker.vector.shapes, config.denoise.model_copy(update={"where": "server"}))
    units = privacy.sample_rate * sum(site.size or 0 for site in config.sites)
    deviation = noise * privacy.clip_norm * len(populations) ** 0.5 / units
    rows, seen = [], []
    for number in range(1, config.steps + 1):
        true, released = np.zeros(worker.vector.size), np.zeros(worker.vector.size)
        for name, population in populations.items():
            csprng = InsecureRandomness(seed, name, number - 1)
            total = raw_sum(
                worker, population, update.vector.value, config, privacy.clip_norm, csprng
            )
            true += total
            released += total + unit_noise(total.size, csprng) * noise * privacy.clip_norm
        gradient = public((released / units).astype(np.float32))
        denoised = denoiser(gradient, deviation).value
        seen.append(
            {
                "raw": cosine(gradient.value, true),
                "denoised": cosine(denoised.vector, true),
                "on": denoised.on / denoiser.matrices,
            }
        )
        rate = learning_rate(config.optimizer, number, config.steps)
        update.move(Aggregate(gradient, deviation**2, units), lr=rate)
        if number % config.evaluation.every == 0 or number == config.steps:
            row = {key: float(np.mean([one[key] for one in seen])) for key in seen[0]}
            loss = evaluate(worker, reported, update.vector).eval_loss
            chance = denoiser.by_chance / denoiser.matrices
            rows.append({"round": number, **row, "by_chance": chance, "loss": loss})
            seen.clear()
    return rows


def cosine(a: Any, b: Any) -> float:
    return float(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", default=HOSPITALS)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    config = load_job(arguments.file, arguments.set + ["job.rounds=2"] * arguments.quick)
    if not config.job.data_is_public or config.job.sync > 1:
        parser.error("needs public data, and one step a round")
    rows = run(config, arguments.seed)
    table = Table("round", "cosine raw", "cosine denoised", "on", "by chance", "loss")
    for row in rows:
        table.add_row(
            str(row["round"]),
            *(f"{row[key]:.3f}" for key in ("raw", "denoised")),
            *(f"{row[key]:.1%}" for key in ("on", "by_chance")),
            f"{row['loss']:.3f}",
        )
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
