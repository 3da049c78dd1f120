"""Audit with one canary, at a site or not: the best test of whether the site keeps its claim.

All other records are blank and add nothing. So for each release the server knows the vector v that
the canary adds if it is sampled. Its best test of the two worlds, the likelihood ratio, is then
known exactly. A lower bound on ε holds for all that really happens between `Site.consider` and the
releases of `Site.step`: sampling, clipping, noise, rounding, and payment.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import logsumexp
from scipy.stats import binom

from fedpriv.auditing.result import TITLES, WORLDS, Measure, Part, PartName, World, WorldName
from fedpriv_audit.made_up_site import CLIP, AuditPlan, Server, Values, made_up_site
from fedpriv_audit.two_worlds import CONFIDENCE, Scores, epsilon_lower

CANARY, UNITS = "fever of unknown origin", 24
AT_ONCE = 50  # jobs of one site
PLAN = AuditPlan(epsilon=2.0, delta=0.03, sample_rate=0.25, steps=4)
TENTH: tuple[WorldName, float, int] = ("tenth-noise", 0.1, 200)
Tell = Callable[[str], None]


@dataclass(frozen=True)
class PipelineSize:
    """Hold the claim, and for each world its share of the noise and its number of jobs.

    The jobs run once with the canary and once without. A twin with half of the noise takes the most
    jobs to catch.
    """

    worlds: tuple[tuple[WorldName, float, int], ...]
    plan: AuditPlan = PLAN

    @classmethod
    def of(cls, jobs: int) -> PipelineSize:
        """Return `jobs` jobs as claimed, and twins to go with them."""
        return cls((("as-claimed", 1.0, jobs), ("half-noise", 0.5, 2 * jobs), TENTH))


def two_worlds(
    server: Server, folder: Path, canary: Values, jobs: int, noise_share: float = 1.0
) -> tuple[Scores, Scores]:
    """Return the log likelihood ratios of jobs at a site with the canary, and at a site without it.

    Args:
        folder: where the sites are made. They are removed afterwards.
        canary: what the canary adds to a sum when it is sampled, (K,).
        noise_share: share of the noise that the claim asks for.
    """
    found, blank = [], [""] * (UNITS - 1)
    for world, first in (("with", CANARY), ("without", "")):
        scores = list[float]()
        while len(scores) < jobs:  # a ledger with many plans takes long to add them up
            place = folder / f"{world}-{len(scores)}"
            with made_up_site(server, place, [first, *blank], UNITS) as site:
                for number in range(min(AT_ONCE, jobs - len(scores))):
                    released, noise = server.releases(site, f"job-{number}", noise_share)
                    scores.append(log_ratio(released, canary, server.plan, noise * CLIP))
            shutil.rmtree(place)
        found.append(np.array(scores))
    return found[0], found[1]


def log_ratio(released: list[Values], canary: Values, plan: AuditPlan, spread: float) -> float:
    """Return the log likelihood ratio of releases: with the canary over without it.

    With the canary, each step samples it or not.

    Args:
        released: the sum over the steps of each round.
        spread: standard deviation of the noise in one step's sum.
    """
    square, ratio = float(canary @ canary), 0.0
    times = np.arange(plan.local + 1)  # how often the canary may be sampled in a round
    chance = binom.logpmf(times, plan.local, plan.sample_rate)
    for value in released:
        along = float(value @ canary)
        shift = (times * along - times**2 * square / 2) / (plan.local * spread**2)
        ratio += float(logsumexp(chance + shift))
    return ratio


def audit_pipeline(
    server: Server, folder: Path, size: PipelineSize, tell: Tell = lambda text: None
) -> Part:
    """Audit the claim of `server.plan`, and hold twins with less noise to the same claim.

    Args:
        folder: where the two sites are made. They hold made-up records alone.

    Privacy:
        Nobody's record is read.
    """
    started, plan, worlds = time.monotonic(), server.plan, []
    canary = server.vectors([CANARY])[0]
    for name, share, jobs in size.worlds:
        tell(f"{TITLES['pipeline']}, {WORLDS[name]}: {2 * jobs} jobs")
        inside, outside = two_worlds(server, folder / name, canary, jobs, share)
        bound, _ = epsilon_lower(inside, outside, plan.delta)
        worlds.append(
            World(
                name=name,
                private=True,
                epsilon=plan.epsilon_with(share),
                epsilon_lower=max(0.0, bound),
                found=bound > plan.epsilon,
                wanted=name != "as-claimed",
                trials={"jobs": 2 * jobs},
                measures=(_distance(inside, outside),),
            )
        )
    norm = float(np.linalg.norm(canary) / CLIP)
    said = {"local_steps": plan.local, "records": UNITS, "canary_norm": norm}
    return part_of("pipeline", plan, worlds, started, **said)


def part_of(
    name: PartName, plan: AuditPlan, worlds: Sequence[World], started: float, **settings: float
) -> Part:
    """Return the part of an audit that held worlds to the claim of a plan.

    Args:
        started: start time by the monotonic clock.
        settings: settings to state besides those of the plan.
    """
    of_plan = {name: getattr(plan, name) for name in ("sample_rate", "steps", "noise_multiplier")}
    return Part(
        name=name,
        epsilon=plan.epsilon,
        delta=plan.delta,
        confidence=CONFIDENCE,
        settings=of_plan | settings,
        worlds=tuple(worlds),
        seconds=round(time.monotonic() - started, 1),
    )


def _distance(inside: Scores, outside: Scores) -> Measure:
    """Measure how far apart the scores of the two worlds are.

    So a test that tells nothing is seen.
    """
    spread = float(np.hypot(inside.std(), outside.std())) or 1.0
    return Measure(
        name="deviations between the worlds",
        value=float(inside.mean() - outside.mean()) / spread * 2**0.5,
        by_chance=0.0,
    )
