"""Compare the controllers on made-up tasks.

    python benchmarks/policy.py --groups 4 --json policy.json

A task is a federation without a model: K groups of parameters, each with a curvature, a distance
from its optimum and a size of its units' own deviations, all drawn at random over two orders of
magnitude. In a round some units are drawn; their gradients are scaled and clipped in groups, added
up, noised and scaled back by the product's own code, and AdamW moves along the mean. Every
controller has the same tasks, each at the best of three learning rates, and what is reported is the
last loss over that of the job without a controller: its geometric mean over tasks, and in how many
it is lower. Version 0.2.0 also had the row geometry, and one of a sac that had learned before on
other tasks.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fedpriv.config.groups import GroupTerms
from fedpriv.controllers.base import Controller, Setting
from fedpriv.controllers.config import ControllerSection
from fedpriv.controllers.registry import make_controller
from fedpriv.gradients.groups import Groups
from fedpriv.privacy.mechanism.clip import clip_and_sum
from fedpriv.privacy.mechanism.privatised import Privatised, public, received
from fedpriv.public_update.config import OptimizerSection
from fedpriv.public_update.controller_run import ControllerRun
from fedpriv.public_update.update import Aggregate, Update

ROUNDS, UNITS, NOISE, SIZE = 40, 64, 1.0, 64  # of a task; units in a round, σ, parameters a group
RATES = (0.01, 0.03, 0.1)
NAMES = ("fixed", "normalise", "quantile", "sac")


@dataclass(frozen=True)
class Task:
    """A quadratic loss, and units whose own optima lie around its own.

    Attributes:
        curvature, spread: of each parameter (P,).
        start: where it begins, the optimum being 0.
    """

    curvature: np.ndarray[Any, Any]
    spread: np.ndarray[Any, Any]
    start: np.ndarray[Any, Any]

    @classmethod
    def drawn(cls, groups: int, seed: int) -> Task:
        """Draw a task, with everything over two orders of magnitude from group to group."""
        random = np.random.default_rng(seed)

        def each() -> np.ndarray[Any, Any]:
            return np.repeat(10 ** random.uniform(-1, 1, groups), SIZE)

        start = each() * random.standard_normal(groups * SIZE) / math.sqrt(SIZE)
        return cls(each(), each() / math.sqrt(SIZE), start)

    def loss(self, values: np.ndarray[Any, Any]) -> float:
        """Return the loss at these values."""
        return float((self.curvature * np.square(values)).sum() / 2)

    def gradients(self, values: Any, random: np.random.Generator) -> torch.Tensor:
        """Return the gradients of the units of a round, (U, P)."""
        around = random.standard_normal((UNITS, len(values))) * self.spread
        return torch.from_numpy((self.curvature * (values + around)).astype(np.float32))


def setting_of(groups: int, seed: int) -> Setting:
    names = tuple(f"group {index}" for index in range(groups))
    return Setting(names, (SIZE,) * groups, ROUNDS, 1.0, seed=seed)


def run(
    task: Task, section: ControllerSection | None, groups: int, rate: float, seed: int
) -> float:
    """Return the last loss of a task, with one clip norm for all where there is no controller."""
    controller = None if section is None else make_controller(section, setting_of(groups, seed))
    random = np.random.default_rng(seed)
    update = Update(OptimizerSection(name="adamw", lr=rate), public(task.start.astype(np.float32)))
    control = None if controller is None else control_of(controller, task, groups)
    for number in range(1, ROUNDS + 1):
        rows = task.gradients(update.vector.value, random)
        if control is not None:
            rows = control.scaling(control.decide(number)).vectors(rows)
        total = clip_and_sum(rows, 1.0).numpy()
        released = (total + NOISE * random.standard_normal(len(total))) / UNITS
        mean = Aggregate(received(released.astype(np.float32)), (NOISE / UNITS) ** 2, UNITS)
        if control is not None:
            mean = control.gradient(number, mean, update.vector)
        update.move(mean, lr=rate)
        if control is not None:
            control.see(update.vector)
    return task.loss(update.vector.value)


def control_of(controller: Controller, task: Task, groups: int) -> ControllerRun:
    """Start a controller that is rewarded by the logarithm of the task's own loss."""
    layout = Groups.of([f"g{index}" for index in range(groups)], [(SIZE,)] * groups, "matrices")
    terms = GroupTerms(by="matrices", count=groups, bits=controller.bits)

    def judge(vector: Privatised[Any]) -> float:
        return math.log(task.loss(vector.value) + 1e-12)

    return ControllerRun(controller, layout, terms, clip_norm=1.0, rounds=ROUNDS, judge=judge)


def compare(groups: int, tasks: int) -> list[dict[str, Any]]:
    """Compare every controller, and none."""
    sections: dict[str, ControllerSection | None] = {"none": None}
    sections |= {name: ControllerSection.model_validate({"name": name}) for name in NAMES}
    found: dict[str, list[float]] = {name: [] for name in sections}
    for seed in track(range(10**6, 10**6 + tasks), "comparing"):
        task = Task.drawn(groups, seed)
        last = {
            name: min(run(task, section, groups, rate, seed) for rate in RATES)
            for name, section in sections.items()
        }
        for name, loss in last.items():
            found[name].append(loss / last["none"])
    return [
        {
            "controller": name,
            "ratio": math.exp(statistics.fmean(map(math.log, ratios))),
            "lower": sum(ratio < 1 for ratio in ratios),
            "tasks": tasks,
        }
        for name, ratios in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tasks = 2 if arguments.quick else arguments.tasks
    rows = compare(arguments.groups, tasks)
    table = Table("controller", "loss over that without one", "lower")
    for row in rows:
        table.add_row(row["controller"], f"{row['ratio']:.3f}", f"{row['lower']} of {tasks}")
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
