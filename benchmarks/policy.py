"""Train the controller that learns on made-up tasks, and see whether that helps on new ones.

    python benchmarks/policy.py --groups 4 --out policy.safetensors --json policy.json

A task is a federation without a model: K groups of parameters, each with a curvature, a distance
from its optimum and a size of its units' own deviations, all drawn at random over two orders of
magnitude. In a round some units are drawn; their gradients are scaled and clipped in groups, added
up, noised and scaled back by the product's own code, and AdamW moves along the mean. sac goes from
task to task with what it has learned and remembers. Afterwards every controller has the same new
tasks, each at the best of three learning rates, and what is reported is the last loss over that of
the job without a controller: its geometric mean over tasks, and in how many it is lower. The policy
is worth using if sac with it is clearly below sac without, and below the simpler ones.
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
from safetensors.numpy import save_file

from fedpriv.config.groups import GroupTerms
from fedpriv.controllers.base import Controller, Setting, State
from fedpriv.controllers.config import ControllerSection
from fedpriv.controllers.registry import make_controller
from fedpriv.controllers.sac import policy_of
from fedpriv.gradients.groups import Groups
from fedpriv.privacy.mechanism.clip import clip_and_sum
from fedpriv.privacy.mechanism.privatised import Privatised, public, received, restored
from fedpriv.public_update.config import OptimizerSection
from fedpriv.public_update.controller_run import ControllerRun
from fedpriv.public_update.update import Aggregate, Update

ROUNDS, UNITS, NOISE, SIZE = 40, 64, 1.0, 64  # of a task; units in a round, σ, parameters a group
RATES = (0.01, 0.03, 0.1)
NAMES = ("fixed", "normalise", "quantile", "geometry", "sac")


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
    return play(task, controller, groups, rate, seed)


def play(task: Task, controller: Controller | None, groups: int, rate: float, seed: int) -> float:
    """Run a task with a controller that may have learned before, and return its last loss."""
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
    terms = GroupTerms(
        by="matrices", count=groups, together=controller.together, bits=controller.bits
    )

    def judge(vector: Privatised[Any]) -> float:
        return math.log(task.loss(vector.value) + 1e-12)

    return ControllerRun(controller, layout, terms, clip_norm=1.0, rounds=ROUNDS, judge=judge)


def pretrain(groups: int, episodes: int) -> State:
    """Return a controller's state after so many tasks."""
    section, carried = ControllerSection(name="sac"), None
    for episode in track(range(episodes), "learning"):
        controller = make_controller(section, setting_of(groups, episode))
        if carried is not None:
            fresh = controller.state().value
            keep = {n: v for n, v in carried.items() if n.startswith(("network.", "memory."))}
            numbers = np.array([carried["numbers"][0], math.nan, 0.0])  # decisions go on
            controller.restore(restored({**fresh, **keep, "numbers": numbers}))
        play(Task.drawn(groups, episode), controller, groups, RATES[episode % 3], episode)
        carried = controller.state().value
    assert carried is not None
    return carried


def compare(groups: int, tasks: int, policy: Path) -> list[dict[str, Any]]:
    """Compare every controller on new tasks, and none."""
    sections: dict[str, ControllerSection | None] = {"none": None}
    sections |= {name: ControllerSection.model_validate({"name": name}) for name in NAMES}
    learned = {"name": "sac", "sac": {"policy": policy}}
    sections["sac, pre-trained"] = ControllerSection.model_validate(learned)
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
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("policy.safetensors"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    episodes, tasks = (2, 2) if arguments.quick else (arguments.episodes, arguments.tasks)
    learned = pretrain(arguments.groups, episodes)
    save_file(policy_of(learned), arguments.out)
    rows = compare(arguments.groups, tasks, arguments.out.resolve())
    table = Table("controller", "loss over that without one", "lower")
    for row in rows:
        table.add_row(row["controller"], f"{row['ratio']:.3f}", f"{row['lower']} of {tasks}")
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
