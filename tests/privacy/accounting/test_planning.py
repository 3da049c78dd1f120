from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.errors import AccountingError, ConfigError
from fedpriv.privacy import usual
from fedpriv.privacy.accounting.accountant import ACCOUNTANT, Event, epsilon_of_group, epsilon_upper
from fedpriv.privacy.accounting.planning import Planned, solve_with_looks
from fedpriv.privacy.accounting.planning import plan as solve
from fedpriv.privacy.config import PrivacySection

PLAN: dict[str, Any] = {
    "epsilon": 3.0,
    "delta": 1e-6,
    "sample_rate": 0.02,
    "steps": 400,
    "noise_multiplier": 0.9,
}


def numbers(planned: Planned) -> dict[str, float]:
    return {
        "epsilon": planned.epsilon,
        "delta": planned.delta,
        "sample_rate": planned.event.sample_rate,
        "steps": planned.event.count,
        "noise_multiplier": planned.event.noise_multiplier,
    }


@pytest.mark.parametrize("missing", [name for name in PLAN if name != "delta"])
def test_each_but_delta_is_solved_for_and_solves_back(missing: str) -> None:
    planned = solve(**{**PLAN, missing: None})
    found = numbers(planned)
    assert planned.solved_for == missing
    assert not planned.delta_is_default
    assert all(found[name] == PLAN[name] for name in PLAN if name not in (missing, "epsilon"))
    assert planned.epsilon == epsilon_upper([planned.event], planned.delta)
    if missing == "epsilon":
        assert planned.target_epsilon is None
        return
    assert 0.99 * PLAN["epsilon"] <= planned.epsilon <= PLAN["epsilon"] == planned.target_epsilon
    for other in set(PLAN) - {missing, "delta"}:
        back = numbers(solve(**{**found, other: None}))
        assert back[other] == pytest.approx(found[other], rel=0.01)


def test_five_are_checked() -> None:
    for epsilon, kept in ((100.0, True), (0.1, False)):
        planned = solve(**{**PLAN, "epsilon": epsilon})
        assert planned.solved_for is None
        assert planned.figures()["within_target"] is kept
        assert numbers(planned) == {**PLAN, "epsilon": planned.epsilon}


def test_delta_is_by_default_that_of_a_federation_file() -> None:
    assert PrivacySection().delta == usual.DELTA
    for missing, solved_for in (({}, None), ({"noise_multiplier": None}, "noise_multiplier")):
        planned = solve(**{**PLAN, "delta": None, **missing})
        assert planned.delta_is_default
        assert planned.delta == usual.DELTA
        assert planned.solved_for == solved_for


def test_a_batch_of_a_size_is_a_rate() -> None:
    planned = solve(epsilon=2, steps=100, batch=16, size=1000)
    assert planned.event.sample_rate == 0.016
    assert planned.figures()["expected_batch"] == 16
    assert planned == solve(epsilon=2, steps=100, sample_rate=0.016, size=1000)
    assert solve(epsilon=2, steps=100, batch=50, size=50).event.sample_rate == 1


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"epsilon": 0.0}, r"^epsilon: is float 0\.0\. It should be greater than 0"),
        ({"epsilon": math.inf}, "^epsilon: "),
        ({"epsilon": math.nan}, "^epsilon: "),
        ({"delta": 0.0}, "^delta: "),
        ({"delta": 1.0}, "^delta: "),
        ({"sample_rate": 0.0}, "^sample_rate: "),
        ({"sample_rate": 1.2}, r"^sample_rate: is float 1\.2"),
        ({"steps": 0}, "^steps: "),
        ({"steps": 2.5}, "^steps: "),
        ({"steps": 10**10}, "^steps: "),
        ({"noise_multiplier": 0.0}, "^noise_multiplier: "),
        ({"noise_multiplier": math.inf}, "^noise_multiplier: "),
        ({"size": 0}, "^size: "),
        ({"batch": 0.0, "size": 10}, "^batch: "),
        (
            {"batch": 16, "size": 1000},
            r"^sample_rate: contradicts the batch of 16.*got 0\.02.*Leave",
        ),
        ({"batch": 16, "sample_rate": None}, "^batch: .*Add the size"),
        ({"batch": 16, "size": 10, "sample_rate": None}, "^batch: is more than the size of 10"),
        ({"size": 10**6}, r"^delta: must be below 1/size = 1e-06 \(got 1e-06\)\. Such as 1e-8\."),
        ({"size": 10**6, "delta": None, "steps": None}, r"default is not \(got 1e-05\)"),
        (
            {"sample_rate": None, "steps": None},
            "^sample_rate, steps: too few values. Add any 1 of these 2; .*batch with a size",
        ),
        (dict.fromkeys(PLAN), "^epsilon, sample_rate, steps, noise_multiplier: too few"),
    ],
)
def test_what_makes_no_plan_is_refused_by_name(changed: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        solve(**{**PLAN, **changed})


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"epsilon": 0.01, "steps": None}, "epsilon=0.01 to pay for a step .* one costs"),
        (
            {
                "epsilon": 1e-4,
                "delta": 1e-12,
                "steps": 10**6,
                "noise_multiplier": 0.3,
                "sample_rate": None,
            },
            "to be reachable .* even a sample_rate",
        ),
    ],
)
def test_a_target_out_of_reach_is_refused(changed: dict[str, Any], match: str) -> None:
    with pytest.raises(AccountingError, match=match):
        solve(**{**PLAN, **changed})


def test_no_suggested_delta_is_too_large() -> None:
    for size in (2, 9, 10, 99_999, 100_000, 123_456):
        with pytest.raises(ConfigError) as caught:
            solve(**{**PLAN, "size": size, "delta": 1 / size})
        suggested = float(caught.value.fix.removeprefix("Such as ").removesuffix("."))
        assert solve(**{**PLAN, "size": size, "delta": suggested}).delta < 1 / size


@settings(max_examples=20, deadline=None)
@given(
    q=st.floats(-4, 0).map(lambda x: 10**x),
    sigma=st.floats(-0.3, 1).map(lambda x: 10**x),
    steps=st.integers(1, 2000),
)
def test_the_curve_rises_through_the_plan_and_each_round_costs(
    q: float, sigma: float, steps: int
) -> None:
    planned = solve(delta=1e-5, sample_rate=q, noise_multiplier=sigma, steps=steps)
    curve = planned.curve()
    assert (steps, planned.epsilon) in curve
    assert curve[-1][0] > steps
    assert len(curve) <= 15
    for (fewer, less), (more, costly) in pairwise(curve):
        assert fewer < more
        assert less <= costly * 1.002  # two grids
    one_more = planned.one_more_round()
    assert one_more >= 0
    after = epsilon_upper([Event(q, sigma, steps + 1)], 1e-5)
    # Upper bounds on two grids: where ε is a thousandth, the grids differ by more than a hundredth.
    assert planned.epsilon + one_more == pytest.approx(after, rel=0.01, abs=5e-4)


@pytest.mark.parametrize(
    ("q", "sigma", "steps"),
    [
        (0.001, 0.8, 50_000),
        (0.007229844959224329, 1.5249977935474643, 1255),  # a grid of its own costs 1.8 times it
    ],
)
def test_one_more_round_costs_the_slope(q: float, sigma: float, steps: int) -> None:
    planned = solve(delta=1e-5, sample_rate=q, noise_multiplier=sigma, steps=steps)
    low, high = int(0.8 * steps), int(1.2 * steps)
    rise = epsilon_upper([Event(q, sigma, high)], 1e-5) - epsilon_upper(
        [Event(q, sigma, low)], 1e-5
    )
    assert planned.one_more_round() == pytest.approx(rise / (high - low), rel=0.05)


def test_figures_are_json_and_agree_with_each_other() -> None:
    planned = solve(**{**PLAN, "noise_multiplier": None}, size=250)
    figures = json.loads(json.dumps(planned.figures(records=(1, 2, 6)), allow_nan=False))
    assert {name: figures[name] for name in PLAN} == numbers(planned)
    assert figures["target_epsilon"] == PLAN["epsilon"]
    assert figures["within_target"] is True
    assert figures["solved_for"] == "noise_multiplier"
    assert figures["accountant"] == ACCOUNTANT
    assert figures["expected_batch"] == 5
    one, two, six = (row["epsilon"] for row in figures["group"])
    assert [row["records"] for row in figures["group"]] == [1, 2, 6]
    assert one == figures["epsilon"] < 2 * one < two < six
    assert two == epsilon_of_group(planned.event, planned.delta, 2)
    assert {"steps": 400, "epsilon": figures["epsilon"]} in figures["curve"]
    assert [row["records"] for row in planned.figures()["group"]] == [2, 3, 5]


@pytest.mark.parametrize("records", [0, 1.5, 101])
def test_records_out_of_range_are_refused(records: Any) -> None:
    with pytest.raises(ConfigError, match=r"^records\.1: "):
        solve(**PLAN).figures((2, records))


def test_a_tiny_delta_has_figures() -> None:
    figures = solve(**{**PLAN, "epsilon": None, "delta": 1e-300}).figures()
    assert math.isfinite(figures["epsilon"])
    assert all(math.isfinite(row["epsilon"]) for row in figures["group"])
    json.dumps(figures, allow_nan=False)


def test_looks_are_steps_of_the_same_plan() -> None:
    plan = {"epsilon": 4.0, "delta": 1e-5, "sample_rate": 0.1}
    planned, looks = solve_with_looks(12, steps=60, **plan)
    assert planned == solve(steps=72, **plan)
    assert looks is not None and (looks["steps"], looks["training_steps"]) == (12, 60)
    alone = solve(steps=60, **plan)
    assert looks["noise_multiplier_without"] == alone.event.noise_multiplier
    assert looks["noise_multiplier_without"] < planned.event.noise_multiplier
    same_noise = solve(
        delta=1e-5, sample_rate=0.1, steps=60, noise_multiplier=planned.event.noise_multiplier
    )
    assert looks["epsilon_without"] == same_noise.epsilon < planned.epsilon
    assert solve_with_looks(0, steps=60, **plan) == (alone, None)


def test_steps_that_are_solved_for_hold_the_looks() -> None:
    plan = {"epsilon": 4.0, "delta": 1e-5, "sample_rate": 0.1, "noise_multiplier": 1.5}
    planned, looks = solve_with_looks(12, **plan)
    assert planned == solve(**plan)
    assert looks is not None and looks["training_steps"] == planned.event.count - 12
    with pytest.raises(AccountingError, match="looks"):
        solve_with_looks(planned.event.count, **plan)
