"""An audit from outside: what a server that knows everything else can tell of one record.

Of 24 units, 23 are blank and contribute 0; the last, the canary, is there or is not. The server
knows its text and sends the values it likes, so for each of a job's releases it knows the vector v
that the canary adds if it is sampled. Its best test is the likelihood ratio of the two worlds,
which is known exactly. A threshold is chosen on one half of the jobs; on the other, bounds of
Clopper and Pearson on its error rates bound ε from below, for whatever is really done inside
`Site.consider` and `Site.step`.

Source:
    The bound: Jagielski, Ullman & Oprea, "Auditing Differentially Private Machine Learning: How
    Private is Private SGD?", NeurIPS 2020, with δ as in Nasr et al., "Tight Auditing of
    Differentially Private Machine Learning", USENIX Security 2023.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from client_setting import TERMS, Setting, request
from scipy.special import logsumexp
from scipy.stats import beta, binom

from fedpriv.config.job import DenoiseSection, OptimizerSection
from fedpriv.privacy.accounting.accountant import epsilon_upper
from fedpriv.privacy.ledger.rules import RdpRule
from fedpriv.privacy.mechanism import execution
from fedpriv.protocol import LocalSteps, Proposal
from fedpriv.synthetic.records import SetChange, SyntheticSet
from fedpriv_client.site import Site

Scores = npt.NDArray[np.float64]
CANARY = "fever of unknown origin"
UNITS, CLIP, RATE, STEPS = 24, 1e-3, 0.25, 4
EPSILON, DELTA = 2.0, 0.01
ERROR = 0.025  # chance that either bound is wrong
SET = SyntheticSet({"text": text} for text in ("fever and chills", "no pain", "a cough"))
LOCAL = LocalSteps(
    count=2, optimizer=OptimizerSection(name="sgd", lr=1.0), denoise=DenoiseSection()
)
CASES: dict[str, dict[str, Any]] = {
    "dp-lora": {},
    "strict": {"numerics": "strict"},
    "pe-sgd": {"method": "pe-sgd", "settings": {"size": 3}, "public_records": 3},
    "sync=2": {"local": LOCAL},
}


class World:
    """A site with the canary or without it, and a ledger that takes any number of jobs."""

    def __init__(self, setting: Setting, case: str, *, canary: bool) -> None:
        notes = [CANARY] * canary + [""] * (UNITS - 1)
        self.setting = setting
        setting.data = setting.folder / f"{canary}.jsonl"
        setting.data.write_text("".join(json.dumps({"note": note}) + "\n" for note in notes))
        setting.folder = setting.data.parent / f"{case}-{canary}"
        terms = dataclasses.replace(TERMS, delta=DELTA, budget=1e9, rule=RdpRule(2))
        self.site: Site = setting.site(terms=terms, per_job=EPSILON, methods=("dp-lora", "pe-sgd"))
        changes = dict(CASES[case])
        numerics = changes.pop("numerics", "default")
        privacy = setting.proposal.privacy.model_copy(
            update={
                "epsilon": EPSILON,
                "delta": DELTA,
                "sample_rate": RATE,
                "clip_norm": CLIP,
                "numerics": numerics,
            }
        )
        self._proposal = setting.change(privacy=privacy, steps=STEPS, **changes)

    def job(self, number: int) -> tuple[Proposal, list[Any]]:
        """Everything that a whole job releases."""
        proposal = self._proposal.model_copy(update={"job_id": f"job-{number}"})
        self.site.consider(proposal)
        change = None if not proposal.public_records else SetChange.between(None, SET)
        digest = None if change is None else change.digest
        released = []
        for slot in range(0, STEPS, proposal.round_steps):
            asked = request(slot, set_digest=digest).model_copy(update={"job_id": proposal.job_id})
            released.append(self.site.step(asked, self.setting.vector, change)[1].values)
        return proposal, released

    def canary(self) -> Scores:
        """What the canary adds when it is sampled, as the server can compute it, too."""
        job = self.site._job
        assert job is not None
        unit, privacy = job.population.units[0], job.proposal.privacy
        with self.setting.pool.borrow(job.recipe) as worker:
            made: Any = job.half.make()
            made.prepare(worker, self.setting.vector)
            found = made.clipped_sum(worker, [unit], self.setting.vector, CLIP, privacy.numerics)
        step = 1.0 if found.grid is None else found.grid.step
        vector: Scores = found.value.double().numpy() * step
        return vector


def scores(world: World, canary: Scores, jobs: int) -> Scores:
    """The log likelihood ratio of each job: with the canary over without it."""
    found = []
    for number in range(jobs):
        proposal, released = world.job(number)
        plan = world.site.ledger.plan(proposal.job_id)
        assert plan is not None
        steps, spread = proposal.round_steps, plan.noise_multiplier * CLIP
        if proposal.local is not None:  # back from the move to the sum of its steps
            released = [RATE * UNITS * move for move in released]
        times = np.arange(steps + 1)  # that the canary was sampled in a round
        chance = binom.logpmf(times, steps, RATE)
        ratio = 0.0
        for value in released:
            along = float(value.astype(float) @ canary)
            shift = (times * along - times**2 * float(canary @ canary) / 2) / (steps * spread**2)
            ratio += float(logsumexp(chance + shift))
        found.append(ratio)
    return np.array(found)


def bound_at(inside: Scores, outside: Scores, threshold: float, sign: int) -> float:
    """A lower bound on ε by one test: a score beyond the threshold says which world it is."""
    if sign < 0:
        inside, outside = -outside, -inside
    hits, false = int((inside >= threshold * sign).sum()), int((outside >= threshold * sign).sum())
    least = beta.ppf(ERROR, hits, len(inside) - hits + 1) if hits else 0.0
    most = beta.ppf(1 - ERROR, false + 1, len(outside) - false) if false < len(outside) else 1.0
    return float(np.log(max(least - DELTA, 1e-12) / most))


def epsilon_lower(inside: Scores, outside: Scores) -> float:
    """A lower bound on ε at DELTA, right with a chance of 95%."""
    half = len(inside) // 2
    chosen = (inside[:half], outside[:half])
    quantiles = np.quantile(np.concatenate(chosen), np.linspace(0, 1, 200))
    tests = [(threshold, sign) for threshold in quantiles for sign in (1, -1)]
    threshold, sign = max(tests, key=lambda test: bound_at(*chosen, *test))
    return bound_at(inside[half:], outside[half:], threshold, sign)


@pytest.fixture
def audited(
    tmp_path: Path, model_folder: Callable[..., Any]
) -> Callable[[str, int], tuple[float, Scores, Scores]]:
    """A lower bound on ε of a case by so many jobs in each world, and their scores."""

    def run(case: str, jobs: int) -> tuple[float, Scores, Scores]:
        worlds = [World(Setting(tmp_path, model_folder("llama")), case, canary=c) for c in (1, 0)]
        worlds[0].job(-1)
        canary = worlds[0].canary()
        assert 0.999 * CLIP < np.linalg.norm(canary) <= CLIP  # as long as it may be
        inside, outside = (scores(world, canary, jobs) for world in worlds)
        plan = worlds[0].site.ledger.plan("job-0")
        assert plan is not None
        assert 0.98 * EPSILON < epsilon_upper([plan.event()], DELTA) <= EPSILON
        for world in worlds:
            world.site.close()
        return epsilon_lower(inside, outside), inside, outside

    return run


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", CASES)
def test_nobody_can_tell_more_than_was_claimed(case: str, audited: Any) -> None:
    found, inside, outside = audited(case, 1000)
    print(f"{case}: ε ≥ {found:.2f}, claimed {EPSILON}")
    assert found <= EPSILON
    spread = np.hypot(inside.std(), outside.std()) / len(inside) ** 0.5
    assert inside.mean() - outside.mean() > 5 * spread  # and the test is one: it tells something


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("what", ["half of the noise", "everybody is sampled"])
def test_it_catches_a_site_that_does_less(
    what: str, audited: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "half of the noise":
        whole = execution.deviation
        monkeypatch.setattr(execution, "deviation", lambda *a: whole(*a) / 2)
    else:
        monkeypatch.setattr(execution, "poisson_sample", lambda size, *_: np.arange(size))
    found, *_ = audited("dp-lora", 2000)
    print(f"{what}: ε ≥ {found:.2f}, claimed {EPSILON}")
    assert found > EPSILON


def test_the_bound_is_right_where_it_is_known() -> None:
    """Of two Gaussians one deviation apart, and of worlds that are alike, or always differ."""
    rng = np.random.default_rng(0)
    outside = rng.normal(size=40_000)
    assert 0.8 < epsilon_lower(outside + 1, outside) < 2.6  # δ = 0.01 is exact at ε = 2.55
    assert epsilon_lower(rng.normal(size=4000), rng.normal(size=4000)) < 0.3
    assert epsilon_lower(np.ones(4000), np.zeros(4000)) > 6
