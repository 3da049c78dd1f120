"""Solve for the number that is missing from a plan, and price the plan.

A plan is five numbers: ε, δ, the sample rate, the steps and the noise multiplier. Four of them
give the fifth; all five can be checked. Everything here is computed from public numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fedpriv.errors import AccountingError, ConfigError
from fedpriv.privacy import usual
from fedpriv.privacy.accounting.accountant import (
    ACCOUNTANT,
    Event,
    OnlineAccountant,
    epsilon_of_group,
    epsilon_replace_one,
    epsilon_upper,
)
from fedpriv.privacy.accounting.calibration import (
    calibrate_delta,
    calibrate_noise,
    calibrate_rate,
    calibrate_steps,
)
from fedpriv.privacy.usual import MAX_STEPS

DEFAULT_RECORDS = (2, 3, 5)
MAX_RECORDS = 100  # records of one person; the time grows with them
ASSUMPTIONS = (
    "ε is an upper bound, at δ, for adding or removing one unit, over all steps together.",
    "Each unit is in each step on its own, with the sample rate as its chance, and nobody outside"
    " the site learns who was in (secret Poisson sampling).",
    "Each step adds fresh Gaussian noise of noise multiplier × clip norm to a sum of vectors"
    " clipped to that norm.",
    "Rate, noise and number of steps are fixed before the first step; steps left out stay paid.",
    "The figures are those of one site: who is in several loses the sum; where their noise is that"
    " of one secure sum, the sum of what each costs alone.",
)
_SOLVERS: dict[str, Callable[..., float]] = {  # each takes the other four by name
    "delta": calibrate_delta,
    "sample_rate": calibrate_rate,
    "steps": calibrate_steps,
    "noise_multiplier": calibrate_noise,
}


def _whole(most: int) -> Callable[[float], bool]:
    return lambda x: 1 <= x <= most and x == int(x)


_LIMITS: dict[str, tuple[Callable[[float], bool], str, str]] = {
    "epsilon": (lambda x: 0 < x < math.inf, "must be above 0 and finite", "8"),
    "delta": (lambda x: 0 < x < 1, "must be between 0 and 1", "1e-5"),
    "sample_rate": (lambda x: 0 < x <= 1, "must be above 0 and at most 1", "0.05"),
    "steps": (_whole(MAX_STEPS), f"must be a whole number from 1 to {MAX_STEPS:g}", "60"),
    "noise_multiplier": (
        lambda x: 1e-3 <= x < math.inf,
        "must be at least 0.001, which is next to no noise, and finite",
        "1",
    ),
    "batch": (lambda x: 0 < x < math.inf, "must be above 0 and finite", "16"),
    "size": (
        _whole(usual.MAX_UNITS),
        f"must be a whole number of units, at most {usual.MAX_UNITS:g}",
        "250",
    ),
    "records": (_whole(MAX_RECORDS), f"must be a whole number from 1 to {MAX_RECORDS}", "5"),
}


@dataclass(frozen=True)
class Planned:
    """Equal steps with all five numbers known.

    Attributes:
        event: the steps.
        delta: δ of every figure.
        target_epsilon: the requested ε; None if ε is what was solved for.
        solved_for: the field that was missing; None when the plan was only checked.
        delta_is_default: whether nobody gave δ, and something else was missing.
        size: declared number of units, if it was given.
    """

    event: Event
    delta: float
    target_epsilon: float | None
    solved_for: str | None
    delta_is_default: bool
    size: int | None

    @cached_property
    def epsilon(self) -> float:
        """The cost of the plan: an upper bound, for add/remove of one unit."""
        return epsilon_upper([self.event], self.delta)

    def curve(self) -> list[tuple[int, float]]:
        """Return (steps, ε) in tenths of the planned steps, up to half as many again."""
        counts = sorted({math.ceil(tenths * self.event.count / 10) for tenths in range(1, 16)})
        steps = (replace(self.event, count=count) for count in counts)
        return [(event.count, epsilon_upper([event], self.delta)) for event in steps]

    def one_more_round(self) -> float:
        """Return ε(T + 1) − ε(T).

        Both are on one grid: two grids may differ by as much as a step costs.
        """
        one = replace(self.event, count=1)
        online = OnlineAccountant([self.event, one], self.delta)
        online.add(self.event)
        planned = online.epsilon()
        online.add(one)
        return online.epsilon() - planned

    def figures(self, records: Sequence[int] = DEFAULT_RECORDS) -> dict[str, Any]:
        """Return the plan and what it means, ready for JSON; None where there is no finite bound.

        Args:
            records: how many records people may have, each of them a unit of its own.

        Raises:
            ConfigError: for records outside 1 to `MAX_RECORDS`.
        """
        for k in records:
            _check("records", k)
        q, target = self.event.sample_rate, self.target_epsilon
        return {
            "solved_for": self.solved_for,
            "epsilon": self.epsilon,
            "target_epsilon": target,
            "within_target": None if target is None else self.epsilon <= target,
            "delta": self.delta,
            "delta_is_default": self.delta_is_default,
            "sample_rate": q,
            "steps": self.event.count,
            "noise_multiplier": self.event.noise_multiplier,
            "size": self.size,
            "expected_batch": None if self.size is None else q * self.size,
            "one_more_round": self.one_more_round(),
            "group": [
                {"records": k, "epsilon": finite(epsilon_of_group(self.event, self.delta, k))}
                for k in records
            ],
            "replace_one_epsilon": finite(epsilon_replace_one(self.event, self.delta)),
            "curve": [{"steps": steps, "epsilon": epsilon} for steps, epsilon in self.curve()],
            "accountant": ACCOUNTANT,
            "assumptions": list(ASSUMPTIONS),
        }


def solve(
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    noise_multiplier: float | None = None,
    batch: float | None = None,
    size: int | None = None,
) -> Planned:
    """Make a plan, from all but one of its five numbers or from all of them.

    Args:
        epsilon: target that the plan may cost at most.
        delta: `usual.DELTA` if it is missing and something else is missing, too.
        sample_rate: chance of a unit to be in a step.
        steps: number of equal steps.
        noise_multiplier: standard deviation of the noise over the clip norm.
        batch: expected batch, in units; with `size` it stands for the sample rate.
        size: declared number of units. Public, as everything here.

    Raises:
        ConfigError: a value out of range, contradictory values, or too few of them.
        AccountingError: no value of what is missing meets the target.

    Source:
        `fedpriv.privacy.accounting.calibration`.
    """
    given: dict[str, Any] = dict(locals())
    for name, value in given.items():
        if value is not None:
            _check(name, value)
    del given["batch"], given["size"]
    if batch is not None:
        given["sample_rate"] = _rate(batch, size, sample_rate)
    missing = [name for name, value in given.items() if value is None]
    delta_is_default = "delta" in missing and len(missing) > 1
    if delta_is_default:
        given["delta"] = usual.DELTA
        missing.remove("delta")
    if len(missing) > 1:
        raise _too_few(missing)
    plan = {name: value for name, value in given.items() if value is not None}
    if size is not None and "delta" in plan:
        _check_delta(plan["delta"], size, delta_is_default)
    solved_for = missing[0] if missing else None
    if solved_for in _SOLVERS:
        plan[solved_for] = _SOLVERS[solved_for](**plan)
    if plan["steps"] == 0:
        step = Event(plan["sample_rate"], plan["noise_multiplier"], 1)
        raise AccountingError(
            f"Expected epsilon={epsilon!r} to pay for a step with delta={plan['delta']!r},"
            f" sample_rate={step.sample_rate!r} and noise_multiplier={step.noise_multiplier!r}:"
            f" one costs {epsilon_upper([step], plan['delta']):.4g}. Use more noise or a smaller"
            " rate."
        )
    if size is not None and solved_for == "delta" and plan["delta"] >= 1 / size:
        raise AccountingError(
            f"Expected delta={plan['delta']!r}, the least at which the plan costs at most"
            f" epsilon={epsilon!r}, to be below 1/size = {1 / size:.4g}. Use more noise or fewer"
            " steps, or allow a larger epsilon."
        )
    return Planned(
        event=Event(plan["sample_rate"], plan["noise_multiplier"], int(plan["steps"])),
        delta=plan["delta"],
        target_epsilon=epsilon,
        solved_for=solved_for,
        delta_is_default=delta_is_default,
        size=size,
    )


@dataclass(frozen=True)
class Looks:
    """The cost of a plan's steps that look at held-out records.

    Attributes:
        steps: the number of steps that look.
        training_steps: the number of the others.
        epsilon_without: ε of the others alone, with the noise of the plan.
        noise_multiplier_without: the noise that the others alone need for the ε of the plan.
    """

    steps: int
    training_steps: int
    epsilon_without: float
    noise_multiplier_without: float


def solve_with_looks(
    look_steps: int, *, steps: int | None = None, **given: Any
) -> tuple[Planned, Looks | None]:
    """Solve as `solve` does, for a plan with steps that look besides those that train.

    Args:
        look_steps: steps of all looks together; 0 without any.
        steps: the number of steps that train.

    Raises:
        ConfigError, AccountingError: see `solve`; or ε pays for no step to train.
    """
    planned = solve(steps=None if steps is None else steps + look_steps, **given)
    if not look_steps:
        return planned, None
    event, delta = planned.event, planned.delta
    training = event.count - look_steps
    if training < 1:
        raise AccountingError(
            f"Expected ε to pay for more than the {look_steps} steps of the looks, and it pays for"
            f" {event.count} steps. Use fewer looks, more noise or a smaller rate."
        )
    target = planned.epsilon if planned.target_epsilon is None else planned.target_epsilon
    without = epsilon_upper([replace(event, count=training)], delta)
    noise = calibrate_noise(target, delta, event.sample_rate, training)
    return planned, Looks(look_steps, training, without, noise)


def _too_few(missing: Sequence[str]) -> ConfigError:
    fix = f"Add any {len(missing) - 1} of these {len(missing)}; the one left out is solved for."
    if "sample_rate" in missing:
        fix += " A batch with a size stands for the sample rate."
    return ConfigError("too few values", key=", ".join(missing), fix=fix)


def _rate(batch: float, size: int | None, sample_rate: float | None) -> float:
    if sample_rate is not None:
        problem = f"contradicts the batch of {batch:g}, which says the rate too"
        fix = "Leave one of them out."
        raise ConfigError(problem, key="sample_rate", value=sample_rate, fix=fix)
    if size is None:
        raise ConfigError(
            "says no rate without the number of units it is drawn from",
            key="batch",
            value=batch,
            fix="Add the size, the declared number of units, or give the sample rate instead.",
        )
    if batch > size:
        problem = f"is more than the size of {size}"
        raise ConfigError(problem, key="batch", value=batch, fix="Make it smaller.")
    return batch / size


def _check_delta(delta: float, size: int, is_default: bool) -> None:
    if delta >= 1 / size:
        problem = f"must be below 1/size = {1 / size:.4g}" + (
            ", and its default is not" if is_default else ""
        )
        fix = f"Such as 1e-{len(str(size)) + 1}."
        raise ConfigError(problem, key="delta", value=delta, fix=fix)


def _check(name: str, value: float) -> None:
    fits, problem, example = _LIMITS[name]
    if not fits(value):
        raise ConfigError(problem, key=name, value=value, fix=f"Such as {example}.")


def finite(value: float) -> float | None:
    """Return a bound, or None if it is not finite."""
    return value if math.isfinite(value) else None
