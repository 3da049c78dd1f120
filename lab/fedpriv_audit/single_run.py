"""Many canaries at one site, each there or not by a coin, and one job that tries to tell which.

The server knows all canaries and the vector that each adds. From the mean of all releases it takes
the best linear estimate of the coins, which accounts for the other canaries' vectors. Then it
guesses.

Privacy
    The site holds made-up texts alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from fedpriv.auditing.result import TITLES, WORLDS, Measure, Part, World, WorldName
from fedpriv_audit.canaries import random_texts
from fedpriv_audit.made_up_site import CLIP, AuditPlan, Server, Values, made_up_site
from fedpriv_audit.one_run import Coins, audit
from fedpriv_audit.pipeline import Tell, part_of

# Each world has a name and a share of the noise.
AS_CLAIMED: tuple[WorldName, float] = ("as-claimed", 1.0)
HALF: tuple[WorldName, float] = ("half-noise", 0.5)
WORDS = 4  # words of a canary


def one_run_plan(canaries: int) -> AuditPlan:
    """Plan steps that each sample every canary, with the small δ that this many canaries need."""
    return AuditPlan(epsilon=1.0, delta=0.1 / canaries, sample_rate=1.0, steps=4)


@dataclass(frozen=True)
class OneRunSize:
    """Hold the number of canaries, about half of which are in, and the noise share of each world.

    One run proves about half of the ε that its noise costs. So it can't tell half of the noise from
    all of it, and does not have to.
    """

    canaries: int = 1000
    seed: int = 0
    worlds: tuple[tuple[WorldName, float], ...] = (AS_CLAIMED, HALF, ("tenth-noise", 0.1))


def audit_one_run(
    server: Server, folder: Path, size: OneRunSize, tell: Tell = lambda text: None
) -> Part:
    """Audit the claim of `server.plan`, and hold twins with less noise to the same claim.

    Each world is one run with coins of its own. `server.plan` should be `one_run_plan`.
    """
    started, plan, worlds = time.monotonic(), server.plan, []
    texts = random_texts(size.canaries, WORDS, f"one run {size.seed}")
    tell(f"{TITLES['one-run']}: {size.canaries} canaries")
    vectors = server.vectors(texts) / CLIP
    gram = vectors @ vectors.T
    for number, (name, share) in enumerate(size.worlds):
        tell(f"{TITLES['one-run']}, {WORLDS[name]}")
        coins = np.random.default_rng([size.seed, number]).random(size.canaries) < 0.5
        chosen = [text for text, there in zip(texts, coins, strict=True) if there]
        with made_up_site(server, folder / name, chosen, size.canaries) as site:
            releases, noise = server.releases(site, name, share)
        each = plan.sample_rate * plan.steps
        mean = np.sum(releases, 0) / (CLIP * each)
        scores = estimate(vectors, gram, mean, noise * plan.steps**0.5 / each)
        worlds.append(_world(name, plan, share, scores, coins))
    said = {"canaries": size.canaries, "seed": size.seed}
    return part_of("one-run", plan, worlds, started, **said)


def estimate(vectors: Values, gram: Values, mean: Values, deviation: float) -> Values:
    """Return the best linear estimate of who is in, (m,), minus one half.

    It estimates the coins x, each 0 or 1 with equal chance, from Σ x_i v_i seen through Gaussian
    noise.

    Args:
        vectors: (m, K) the vector v_i of each canary. `gram` holds their products (m, m).
        mean: (K,) the noisy sum that was seen.
        deviation: standard deviation of the noise in each value.
    """
    surplus = vectors @ mean - gram.sum(1) / 2
    noisy = gram / 4 + deviation**2 * np.eye(len(gram))
    found: Values = cho_solve(cho_factor(noisy), surplus) / 4
    return found


def _world(name: WorldName, plan: AuditPlan, share: float, scores: Values, coins: Coins) -> World:
    found = audit(scores, coins, plan.delta)
    right = found.correct / found.guesses
    return World(
        name=name,
        private=True,
        epsilon=plan.epsilon_with(share),
        epsilon_lower=found.epsilon_lower,
        found=found.epsilon_lower > plan.epsilon,
        wanted=name == "tenth-noise",
        trials={"canaries": len(coins), "guesses": found.guesses, "correct": found.correct},
        measures=(Measure(name="guesses that are right", value=right, by_chance=0.5),),
    )
