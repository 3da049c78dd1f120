"""Which curve best predicts what joining is worth: on measured runs, or on made-up federations.

    python benchmarks/forecast.py --table docs/results/border.json
    python benchmarks/forecast.py --made-up 6

Each group of runs (same sites, same records) is predicted from all others. The table has a row for
each question, each way to use the federation's adapter and each curve. It shows the root mean
square of how far predictions were off, the same if the mean of the other runs is the prediction,
and the share of gains in the 90% interval. *kinds* predicts each kind of a task from all others, as
for another base model. *uneven* predicts made-up federations whose sites differ by up to sixteen
times: their mean and each site.

The made-up federations are logistic regressions in 60 dimensions, at sites whose weights differ.
Each site is trained alone, or all together in 30 rounds with clipping, noise and Adam, at rate 0.2.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from fedpriv.files import write_json
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv_forecasting.answers import STARTS
from fedpriv_forecasting.curve import (
    LeftOut,
    fit_curve,
    joint,
    leave_groups_out,
    left_out_of,
    level_of,
    plain,
    runs_of,
)
from fedpriv_forecasting.reading import leave_kinds_out
from fedpriv_forecasting.setting import Setting, noise_to_signal
from fedpriv_forecasting.table import (
    ALONE,
    BASE,
    FEDERATED,
    OUTSIDE,
    OWN,
    OWN_RECORDS,
    SINGLE,
    WAYS,
    Point,
    Table,
    read_table,
)

VALUES, RATE, ROUNDS, DELTA = 60, 0.2, 30, 1e-5
GROUPS, EACH, SEEDS, MOST = 9, 3, 2, 5000  # of a table; records of all sites, at most
SCORED, HELD_OUT, OTHERS = 8, 60, 4
ASKED = [(OWN, way, ALONE) for way in WAYS]
ASKED += [(one, FEDERATED, start) for one in (OUTSIDE, *OWN_RECORDS) for start in STARTS]
PENALTIES, WEIGHTS = (0.3, 1, 3, 10, 30), (0, 0.05, 0.1, 0.2, 0.3, 0.5)


def squared(s: Setting) -> list[float]:
    """Return the terms with a square of the noise."""
    return [*plain(s), math.log2(s.noise) ** 2]


def saturating(s: Setting) -> list[float]:
    """Return terms by which less noise brings less and less. The middle is at usual values."""
    return [1.0, math.log2(s.records), 1 / (1 + s.noise * 2**7)]


def by_sites(s: Setting) -> list[float]:
    """Return the terms with the number of sites."""
    return [*plain(s), math.log2(s.sites)]


CURVES = {one.__name__: one for one in (joint, plain, squared, saturating, by_sites)}


def loss(p: Any, y: Any) -> float:
    """Return the mean negative log likelihood."""
    p = np.clip(p, 1e-6, 1 - 1e-6)
    return float(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))


def trained_from(start: Any, x: Any, y: Any, penalties: Sequence[float] = PENALTIES) -> Any:
    """Return the best of several penalised fits, judged by the last fifth of the records."""
    cut = int(0.8 * len(y))
    kept, of = x[:cut], y[:cut]

    def fit(penalty: float) -> Any:
        def objective(w: Any) -> tuple[float, Any]:
            z, away = kept @ w, w - start
            value = np.logaddexp(0, -(2 * of - 1) * z).sum() + penalty * away @ away / 2
            return value, kept.T @ (expit(z) - of) + penalty * away

        return minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 60}).x

    return min(map(fit, penalties), key=lambda w: loss(expit(x[cut:] @ w), y[cut:]))


def federated(x: Any, y: Any, sigma: float, random: np.random.Generator) -> Any:
    """Train weights by Adam on clipped, noisy sums of all records' gradients."""
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


def measured(sizes: list[int], sigma: float, alone: float, seed: int) -> dict[str, Any]:
    """Measure losses at each scored site and at outside sites.

    The sites are the same for all noise.

    Args:
        sigma, alone: noise of the federation's sum, and of a single site at the same ε.
    """
    sites, records = len(sizes), max(sizes)
    of_sites = np.random.default_rng([seed, sites, records])
    random = np.random.default_rng([seed, sites, records, int(1e6 * sigma)])
    common = np.zeros(VALUES)
    common[:10] = 0.9 * of_sites.normal(size=10)
    truth = common + 0.75 / math.sqrt(VALUES) * of_sites.normal(size=(sites, VALUES))
    x = of_sites.normal(size=(sites, records, VALUES))
    y = (of_sites.random((sites, records)) < expit(np.einsum("nmd,nd->nm", x, truth))).astype(float)
    held = [(x[site, :size], y[site, :size]) for site, size in enumerate(sizes)]
    together = federated(*map(np.concatenate, zip(*held, strict=True)), sigma, random)
    found: dict[str, list[float]] = {row: [] for row in ("alone", *WAYS)}
    for site in range(min(sites, SCORED)):
        test = of_sites.normal(size=(HELD_OUT, VALUES))
        label = (of_sites.random(HELD_OUT) < expit(test @ truth[site])).astype(float)
        by_itself = trained_from(np.zeros(VALUES), *held[site])
        personal = trained_from(together, *held[site])
        cut = int(0.8 * sizes[site])
        kept, of = (part[cut:] for part in held[site])
        mixed = [expit(kept @ w) for w in (by_itself, together)]
        weight = min(WEIGHTS, key=lambda u: loss((1 - u) * mixed[0] + u * mixed[1], of))
        own, other, further = (expit(test @ weights) for weights in (by_itself, together, personal))
        beside = (0.8 * further + 0.2 * other, 0.8 * own + 0.2 * other)
        answers = (own, other, further, *beside)
        for row, p in zip(found, (*answers, (1 - weight) * own + weight * other), strict=True):
            found[row].append(loss(p, label))
    single = federated(*held[0], alone, np.random.default_rng([seed, sites, records]))
    starts = {BASE: np.zeros(VALUES), FEDERATED: together, SINGLE: single}
    return {"own": found, **at_others(starts, common, np.random.default_rng([seed, sites, 9]))}


def at_others(
    starts: dict[str, Any], common: Any, random: np.random.Generator
) -> dict[str, dict[str, Any]]:
    """Measure each start's losses at outside sites: as it is, and trained on with own records."""
    outside: dict[str, list[float]] = {start: [] for start in starts}
    new: dict[str, dict[str, list[float]]] = {
        start: {size: [] for size in OWN_RECORDS} for start in starts
    }
    most = max(map(int, OWN_RECORDS))
    for _ in range(OTHERS):
        truth = common + 0.75 / math.sqrt(VALUES) * random.normal(size=VALUES)
        x = random.normal(size=(most + HELD_OUT, VALUES))
        y = (random.random(len(x)) < expit(x @ truth)).astype(float)
        for start, w in starts.items():
            outside[start].append(loss(expit(x[most:] @ w), y[most:]))
            for size in OWN_RECORDS:
                n = int(size)
                further = trained_from(w, x[:n], y[:n], (1, 10)) if n else w
                new[start][size].append(loss(expit(x[most:] @ further), y[most:]))
    return {"outside": outside, "new": new}


def made_up(seed: int) -> Table:
    """Make up a table of groups, each with several ε and trusts."""
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
                losses = measured([records] * sites, of_sum, noise, 1000 * seed + run)
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
                    **losses,
                }
                points.append(point)
    kind = {"says": "made-up", "task": "classification", "model": "logistic regression"}
    kind |= {"trained": VALUES, "tokens": 1}
    return Table.model_validate({"format": 1, "kinds": {"made-up": kind}, "points": points})


def compared(name: str, tables: list[list[Point]]) -> Iterator[dict[str, Any]]:
    """Give a row for each question, way and curve, over several tables of one kind."""
    for asked in ASKED:
        question, way, over = asked
        for curve, terms in CURVES.items():
            if curve in ("joint", "plain") or question == OWN:
                tried = [
                    leave_groups_out(runs_of(points, way, over, question), terms)
                    for points in tables
                ]
                yield from row(name, curve, asked, tried)


def row(
    name: str, curve: str, asked: tuple[str, str, str], tried: list[LeftOut | None]
) -> Iterator[dict[str, Any]]:
    """Give one row for several tables, or none if all had too few runs."""
    known = [one for one in tried if one is not None]
    if known:
        counts = [one.runs for one in known]

        def mean(values: list[float]) -> float:
            return float(np.average(values, weights=counts))

        yield {
            "kind": name,
            **dict(zip(("question", "way", "over"), asked, strict=True)),
            "curve": curve,
            "runs": sum(counts),
            "miss": math.sqrt(mean([one.miss**2 for one in known])),
            "without": math.sqrt(mean([one.without**2 for one in known])),
            "inside": mean([one.inside for one in known]),
        }


def kinds_left_out(table: Table) -> Iterator[dict[str, Any]]:
    """Give a row for each task and question that was measured for three kinds or more."""
    for task in dict.fromkeys(kind.task for kind in table.kinds.values()):
        names = [name for name, kind in table.kinds.items() if kind.task == task]
        for asked in ASKED:
            question, way, over = asked
            runs = [runs_of(table.of(name), way, over, question) for name in names]
            curves = [curve for one in runs if (curve := fit_curve(one) or level_of(one))]
            yield from row(task, "kinds", asked, [leave_kinds_out(curves)])


def uneven(tables: list[Table]) -> Iterator[dict[str, Any]]:
    """Give a row for each way: federations with uneven sites, by the curves of equal sites."""
    tried: dict[tuple[str, str], list[LeftOut | None]] = {
        (way, of): [] for way in WAYS for of in ("mean", "each site")
    }
    for number, table in enumerate(tables):
        random = np.random.default_rng([7, number])
        curves = {way: fit_curve(runs_of(table.points, way)) for way in WAYS}
        off: dict[tuple[str, str], list[Any]] = {key: [] for key in tried}
        for run in range(GROUPS):
            sites = 2 ** int(random.integers(2, 6))
            sizes = [int(n) for n in np.clip(2 ** random.uniform(4, 8, size=sites), 16, 256)]
            noise = calibrate_noise(4.0, DELTA, RATE, ROUNDS)
            of_sum = noise * math.sqrt(sites / (sites - 1))
            own = measured(sizes, of_sum, noise, 10_000 + 100 * number + run)["own"]
            typical = float(np.exp(np.mean(np.log(sizes[:SCORED]))))
            here = Setting(sites, typical, noise_to_signal(of_sum, RATE * sum(sizes), ROUNDS))
            for way, curve in curves.items():
                if curve is None or curve.outside(here):
                    continue
                usual = float(np.mean([one.mean for one in curve.runs]))
                gains = np.subtract(own[ALONE], own[way])
                told = curve.predict(here, one_site=True)
                off[way, "mean"].append((told, float(np.mean(gains)), usual))
                for size, gain in zip(sizes, gains, strict=False):
                    told = curve.predict(replace(here, records=size), one_site=True)
                    off[way, "each site"].append((told, float(gain), usual))
        for key, found in off.items():
            tried[key].append(left_out_of(len(found), found))
    for (way, of), of_tables in tried.items():
        yield from row("uneven", of, (OWN, way, ALONE), of_tables)


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
        rows = [one for kind in read.kinds for one in compared(kind, [read.of(kind)])]
        rows += kinds_left_out(read)
    else:
        tables = [made_up(seed) for seed in range(1 if asked.quick else asked.made_up)]
        rows = list(compared("made-up", [list(one.points) for one in tables]))
        rows += uneven(tables)
    for one in rows:
        print(
            f"{one['kind']:10} {one['question']:7} {one['way']:20} over {one['over']:10}"
            f" {one['curve']:10}  miss {one['miss']:.4f}"
            f" of {one['without']:.4f}, inside {one['inside']:.0%} of {one['runs']}"
        )
    if asked.json is not None:
        write_json(asked.json, {"format": 1, "rows": rows})


if __name__ == "__main__":
    main()
