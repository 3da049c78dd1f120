"""Which curve predicts best what joining is worth: on measured runs, or on made-up federations.

    python benchmarks/forecast.py --table docs/results/border.json
    python benchmarks/forecast.py --made-up 6

Each group of runs (same sites, same records) is predicted from all others. For each way to use the
federation's adapter and each curve: the root mean square of what predictions were off by, the same
if the mean of the other runs is the prediction, and the share of gains in the 90% interval.

The made-up federations are logistic regressions in 60 dimensions, at sites whose weights differ,
each trained alone, or together in 30 rounds with clipping, noise and Adam, at rate 0.2.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from fedpriv.files import write_json
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv_forecasting.curve import joint, leave_groups_out, plain, runs_of
from fedpriv_forecasting.setting import Setting
from fedpriv_forecasting.table import WAYS, Point, Table, read_table

VALUES, RATE, ROUNDS, DELTA = 60, 0.2, 30, 1e-5
GROUPS, EACH, SEEDS, MOST = 9, 3, 2, 5000  # of a table; records of all sites, at most
SCORED, HELD_OUT = 8, 60
PENALTIES, WEIGHTS = (0.3, 1, 3, 10, 30), (0, 0.05, 0.1, 0.2, 0.3, 0.5)


def squared(s: Setting) -> list[float]:
    """With a square of the noise."""
    return [*plain(s), math.log2(s.noise) ** 2]


def saturating(s: Setting) -> list[float]:
    """Of which less noise brings less and less, in the middle of what is usual here."""
    return [1.0, math.log2(s.records), 1 / (1 + s.noise * 2**7)]


def by_sites(s: Setting) -> list[float]:
    """With the number of sites."""
    return [*plain(s), math.log2(s.sites)]


CURVES = {one.__name__: one for one in (joint, plain, squared, saturating, by_sites)}


def loss(p: Any, y: Any) -> float:
    """Mean negative log likelihood."""
    p = np.clip(p, 1e-6, 1 - 1e-6)
    return float(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))


def trained_from(start: Any, x: Any, y: Any) -> Any:
    """The best of several penalised fits, by the last fifth of the records."""
    cut = int(0.8 * len(y))
    kept, of = x[:cut], y[:cut]

    def fit(penalty: float) -> Any:
        def objective(w: Any) -> tuple[float, Any]:
            z, away = kept @ w, w - start
            value = np.logaddexp(0, -(2 * of - 1) * z).sum() + penalty * away @ away / 2
            return value, kept.T @ (expit(z) - of) + penalty * away

        return minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 60}).x

    return min(map(fit, PENALTIES), key=lambda w: loss(expit(x[cut:] @ w), y[cut:]))


def federated(x: Any, y: Any, sigma: float, random: np.random.Generator) -> Any:
    """Weights by Adam on clipped, noisy sums of all records' gradients."""
    w, first, second = np.zeros(VALUES), np.zeros(VALUES), np.zeros(VALUES)
    for step in range(1, ROUNDS + 1):
        drawn = random.random(len(y)) < RATE
        rows = (expit(x[drawn] @ w) - y[drawn])[:, None] * x[drawn]
        rows /= np.maximum(1, np.linalg.norm(rows, axis=1))[:, None]
        gradient = (rows.sum(0) + sigma * random.normal(size=VALUES)) / (RATE * len(y))
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        scale = np.sqrt(second / (1 - 0.999**step)) + 1e-8
        w -= 0.05 * first / (1 - 0.9**step) / scale
    return w


def own_losses(sites: int, records: int, sigma: float, seed: int) -> dict[str, list[float]]:
    """Losses at each scored site; sites are the same for all noise."""
    of_sites = np.random.default_rng([seed, sites, records])
    random = np.random.default_rng([seed, sites, records, int(1e6 * sigma)])
    common = np.zeros(VALUES)
    common[:10] = 0.9 * of_sites.normal(size=10)
    truth = common + 0.75 / math.sqrt(VALUES) * of_sites.normal(size=(sites, VALUES))
    x = of_sites.normal(size=(sites, records, VALUES))
    y = (of_sites.random((sites, records)) < expit(np.einsum("nmd,nd->nm", x, truth))).astype(float)
    together = federated(x.reshape(-1, VALUES), y.reshape(-1), sigma, random)
    found: dict[str, list[float]] = {row: [] for row in ("alone", *WAYS)}
    for site in range(min(sites, SCORED)):
        test = of_sites.normal(size=(HELD_OUT, VALUES))
        label = (of_sites.random(HELD_OUT) < expit(test @ truth[site])).astype(float)
        alone = trained_from(np.zeros(VALUES), x[site], y[site])
        personal = trained_from(together, x[site], y[site])
        cut = int(0.8 * records)
        mixed = [expit(x[site, cut:] @ w) for w in (alone, together)]
        weight = min(WEIGHTS, key=lambda u: loss((1 - u) * mixed[0] + u * mixed[1], y[site, cut:]))
        own, other, further = (expit(test @ weights) for weights in (alone, together, personal))
        beside = (0.8 * further + 0.2 * other, 0.8 * own + 0.2 * other)
        answers = (own, other, further, *beside)
        for row, p in zip(found, (*answers, (1 - weight) * own + weight * other), strict=True):
            found[row].append(loss(p, label))
    return found


def made_up(seed: int) -> Table:
    """A table of groups, each with several ε and trusts."""
    random = np.random.default_rng(seed)
    groups: dict[tuple[int, int], None] = {}
    while len(groups) < GROUPS:
        sites, records = 2 ** int(random.integers(2, 7)), 2 ** int(random.integers(4, 9))
        if sites * records <= MOST:
            groups[sites, records] = None
    points = []
    for sites, records in groups:
        for which in random.permutation(8)[:EACH]:
            epsilon, trust = float(2 ** (which // 2)), ("local", "secure-sum")[which % 2]
            noise = calibrate_noise(epsilon, DELTA, RATE, ROUNDS)
            of_sum = noise * math.sqrt(sites if trust == "local" else sites / (sites - 1))
            for run in range(SEEDS):
                own = own_losses(sites, records, of_sum, 1000 * seed + run)
                point = {
                    "kind": "made-up",
                    "sites": sites,
                    "records": records,
                    "epsilon": epsilon,
                    "delta": DELTA,
                    "trust": trust,
                    "max_colluding": 1 if trust == "secure-sum" else None,
                    "sample_rate": RATE,
                    "rounds": ROUNDS,
                    "noise_multiplier": noise,
                    "seed": run,
                    "scored": min(sites, SCORED),
                    "own": own,
                }
                points.append(point)
    kind = {"says": "made-up", "task": "classification", "model": "logistic regression"}
    kind |= {"trained": VALUES, "tokens": 1}
    return Table.model_validate({"format": 1, "kinds": {"made-up": kind}, "points": points})


def compared(name: str, tables: list[list[Point]]) -> Iterator[dict[str, Any]]:
    """A row for each way and curve, over several tables of one kind."""
    for way in WAYS:
        for curve, terms in CURVES.items():
            tried = [leave_groups_out(runs_of(points, way), terms) for points in tables]
            known = [one for one in tried if one is not None]
            if known:
                counts = [one.runs for one in known]

                def mean(values: list[float], counts: list[int] = counts) -> float:
                    return float(np.average(values, weights=counts))

                yield {
                    "kind": name,
                    "way": way,
                    "curve": curve,
                    "runs": sum(counts),
                    "miss": math.sqrt(mean([one.miss**2 for one in known])),
                    "without": math.sqrt(mean([one.without**2 for one in known])),
                    "inside": mean([one.inside for one in known]),
                }


def main() -> None:
    """Compare, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, help="measured runs")
    parser.add_argument("--made-up", type=int, default=1, help="tables to make up without one")
    parser.add_argument("--quick", action="store_true", help="one made-up table")
    parser.add_argument("--json", type=Path, help="file for the figures")
    asked = parser.parse_args()
    if asked.table is not None:
        read = read_table(asked.table)
        rows = [row for kind in read.kinds for row in compared(kind, [read.of(kind)])]
    else:
        tables = [made_up(seed) for seed in range(1 if asked.quick else asked.made_up)]
        rows = list(compared("made-up", [list(one.points) for one in tables]))
    for row in rows:
        print(
            f"{row['kind']:10} {row['way']:20} {row['curve']:10}  miss {row['miss']:.4f}"
            f" of {row['without']:.4f}, inside {row['inside']:.0%} of {row['runs']}"
        )
    if asked.json is not None:
        write_json(asked.json, {"format": 1, "rows": rows})


if __name__ == "__main__":
    main()
