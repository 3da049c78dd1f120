"""Tables of measured runs that nobody measured, of which the curve is known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv_forecasting.table import ALONE, BASE, FEDERATED, OWN_RECORDS, WAYS, Point, Table

GRID = ((4, 16), (4, 64), (4, 256), (16, 16), (16, 64), (16, 256), (64, 16), (64, 64), (64, 256))
NOISES = (1.0, 2.0, 4.0)  # noise multipliers of a group's runs
Gain = Callable[[float, float], float]


def plain(records: float, noise: float) -> float:
    """A gain that falls with one's own records and with noise."""
    return 0.1 - 0.03 * math.log2(records) - 0.05 * math.log2(noise)


def point(sites: int, records: int, noise_multiplier: float, **other: Any) -> dict[str, Any]:
    """A run without its losses."""
    usual = {
        "kind": "notes",
        "sites": sites,
        "records": records,
        "epsilon": 4.0,
        "delta": 1e-5,
        "trust": "local",
        "sample_rate": 0.2,
        "rounds": 30,
        "noise_multiplier": noise_multiplier,
        "seed": 1,
        "scored": 4,
    }
    return usual | other


def runs(
    gain: Gain = plain,
    *,
    groups: Sequence[tuple[int, int]] = GRID,
    noises: Sequence[float] = NOISES,
    seeds: int = 2,
    scatter: float = 0.0,
    seed: int = 0,
    others: Gain | None = None,
    **other: Any,
) -> list[dict[str, Any]]:
    """Runs around a curve.

    Args:
        others: the gain at outside sites, and half of it at new ones with own records.
        scatter: standard deviation of each: of a group, of a setting, of a seed, of a site.
    """
    random = np.random.default_rng(seed)
    made = []
    for sites, records in groups:
        of_group = scatter * random.normal()
        for noise_multiplier in noises:
            of_setting = of_group + scatter * random.normal()
            for one in range(1, seeds + 1):
                run = point(sites, records, noise_multiplier, seed=one, **other)
                noise = Point(**run, own={ALONE: [0.0] * 4}).noise
                mean = gain(records, noise) + of_setting + scatter * random.normal()
                gains = mean + scatter * random.normal(size=4)
                own = {ALONE: [2.0] * 4}
                own |= {way: list(2.0 - gains) for way in WAYS}
                run |= {"own": own}
                if others is not None:
                    mean += others(records, noise) - gain(records, noise)
                    run |= at_others(mean + scatter * random.normal(size=3))
                made.append(run)
    return made


def at_others(gains: NDArray[np.float64]) -> dict[str, Any]:
    """The rows of sites outside."""
    base = [4.0] * len(gains)
    of_new = {size: list(base - gains / (1 if size == "0" else 2)) for size in OWN_RECORDS}
    return {
        "outside": {BASE: [*base], FEDERATED: list(base - gains)},
        "new": {BASE: {size: [*base] for size in OWN_RECORDS}, FEDERATED: of_new},
    }


def table(points: Sequence[dict[str, Any]], **kind: Any) -> dict[str, Any]:
    """A table of one kind."""
    usual = {"says": "made-up notes", "task": "causal-lm", "model": "embedded"}
    usual |= {"trained": 100, "tokens": 128}
    return {
        "format": 1,
        "command": "none",
        "kinds": {"notes": usual | kind},
        "points": list(points),
    }


def read(points: Sequence[dict[str, Any]], **kind: Any) -> Table:
    """The same, as it is when it was read."""
    return Table.model_validate(table(points, **kind))


def write(path: Path, points: Sequence[dict[str, Any]], **kind: Any) -> Path:
    """The same in a file."""
    path.write_text(json.dumps(table(points, **kind)))
    return path
