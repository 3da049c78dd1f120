"""Compare the accountant with its peers: one plan, a query a round, and 500 noise levels.

    python benchmarks/accountant.py --json accountant.json

All run interleaved in one process; times are medians. Every ε is shown beside its time, because a
bound that is found fast must also be tight. `opacus` and `prv-accountant` are the same algorithm
(Gopi et al. 2021), so only the second is here. `rdp` is the Rényi bound at integer orders.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dp_accounting.pld import privacy_loss_distribution as pld
from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

from fedpriv.privacy.accounting import accountant
from fedpriv.privacy.accounting.accountant import Event, OnlineAccountant, epsilon_upper
from fedpriv.privacy.accounting.rdp import epsilon_from_rdp, rdp

DELTA = 1e-5
PLANS = [
    ("q=.01 σ=1 T=1000", Event(0.01, 1.0, 1000)),
    ("q=.2 σ=1.5 T=30", Event(0.2, 1.5, 30)),
    ("q=.2 σ=.5 T=1000", Event(0.2, 0.5, 1000)),
    ("q=1e-4 σ=1 T=1e5", Event(1e-4, 1.0, 10**5)),
]


def ours(events: list[Event]) -> float:
    accountant._epsilon.cache_clear()
    return epsilon_upper(events, DELTA)


def prv(events: list[Event]) -> float:
    """Return the upper bound of prv-accountant, at an error of 1% of ε."""
    error = max(0.01 * ours(events), 0.01)
    mechanisms = [
        PoissonSubsampledGaussianMechanism(event.sample_rate, event.noise_multiplier)
        for event in events
    ]
    counts = [event.count for event in events]
    found = PRVAccountant(mechanisms, error, DELTA / 1000, counts)
    return float(found.compute_epsilon(DELTA, counts)[2])


def plds(events: list[Event]) -> float:
    """Return the pessimistic estimate of dp-accounting at its default interval."""
    total: Any = None
    for event in events:
        step = pld.from_gaussian_mechanism(
            event.noise_multiplier, sampling_prob=event.sample_rate
        ).self_compose(event.count)
        total = step if total is None else total.compose(step)
    return float(total.get_epsilon_for_delta(DELTA))


def renyi(events: list[Event]) -> float:
    curve = sum(rdp(e.sample_rate, e.noise_multiplier) * e.count for e in events)
    return epsilon_from_rdp(curve, DELTA)[0]  # type: ignore[arg-type]


PEERS: dict[str, Callable[[list[Event]], float]] = {
    "fedpriv": ours,
    "prv-accountant": prv,
    "dp-accounting": plds,
    "rdp": renyi,
}


def timed(method: Callable[[list[Event]], float], events: list[Event]) -> tuple[float, float]:
    """Return seconds and ε. ε is NaN where the package raises an error."""
    started = time.perf_counter()
    try:
        epsilon = method(events)
    except (RuntimeError, ValueError):
        epsilon = float("nan")
    return time.perf_counter() - started, epsilon


def compare(name: str, events: list[Event], repeats: int, peers: list[str]) -> list[dict[str, Any]]:
    seconds: dict[str, list[float]] = {peer: [] for peer in peers}
    found: dict[str, float] = {}
    for _ in range(repeats):
        for peer in peers:
            spent, found[peer] = timed(PEERS[peer], events)
            seconds[peer].append(spent)
    base = statistics.median(seconds["fedpriv"])
    return [
        {
            "plan": name,
            "method": peer,
            "epsilon": found[peer],
            "seconds": statistics.median(seconds[peer]),
            "ratio": statistics.median(seconds[peer]) / base,
        }
        for peer in peers
    ]


def online() -> dict[str, float]:
    """Time 500 noise levels: composing them, and a query after each."""
    plan = [Event(0.02, 1 + 0.002 * i, 1) for i in range(500)]
    started = time.perf_counter()
    accountant_ = OnlineAccountant(plan, DELTA)
    for event in plan:
        accountant_.add(event)
    composed = time.perf_counter() - started
    queries = []
    accountant_ = OnlineAccountant(plan, DELTA)
    for event in plan:
        accountant_.add(event)
        started = time.perf_counter()
        epsilon = accountant_.epsilon()
        queries.append(time.perf_counter() - started)
    return {
        "levels_composed_s": composed,
        "query_median_s": statistics.median(queries),
        "query_max_s": max(queries),
        "epsilon": epsilon,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    plans = PLANS[:2] if arguments.quick else PLANS
    rows = []
    for name, event in plans:
        rows += compare(name, [event], 1 if arguments.quick else 3, list(PEERS))
    figures = online()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    levels = [Event(0.02, 1 + 0.002 * i, 1) for i in range(50 if arguments.quick else 500)]
    peers = ["fedpriv", "rdp"] if arguments.quick else ["fedpriv", "prv-accountant", "rdp"]
    rows += compare(f"{len(levels)} noise levels", levels, 1, peers)
    for row in rows:
        print(
            f"{row['plan']:<18} {row['method']:<15} ε ≤ {row['epsilon']:<10.4f}"
            f" {1e3 * row['seconds']:>10.1f} ms  × {row['ratio']:.1f}"
        )
    print(
        f"500 noise levels online: {figures['levels_composed_s']:.2f} s; a query"
        f" {1e3 * figures['query_median_s']:.2f} ms (median),"
        f" {1e3 * figures['query_max_s']:.2f} ms (worst); peak memory {memory / 1024:.0f} MB"
    )
    if arguments.json:
        document = {"rows": rows, "online": figures}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
