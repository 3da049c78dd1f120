"""Solve for the number that is missing from a plan, and price the plan.

A plan is five numbers: ε, δ, the sample rate, the steps and the noise multiplier. δ and three of
the others give the fourth; all can be checked. Everything here is computed from public numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field

from fedpriv.arguments import checked
from fedpriv.errors import AccountingError, ConfigError
from fedpriv.privacy import usual
from fedpriv.privacy.accounting.accountant import (
    ACCOUNTANT,
    Event,
    OnlineAccountant,
    epsilon_of_group,
    epsilon_upper,
)
from fedpriv.privacy.accounting.calibration import (
    calibrate_noise,
    calibrate_rate,
    calibrate_steps,
)
from fedpriv.privacy.usual import MAX_STEPS

DEFAULT_RECORDS = (2, 3, 5)
MAX_RECORDS = 100  # records of one person; the time grows with them
Records = Sequence[Annotated[int, Field(ge=1, le=MAX_RECORDS)]]
LEAST_NOISE = 1e-3  # less is next to no noise
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
    "sample_rate": calibrate_rate,
    "steps": calibrate_steps,
    "noise_multiplier": calibrate_noise,
}


@dataclass(frozen=True)
class Planned:
    """Equal steps with all five numbers known.

    Attributes:
        event: the steps.
        delta: δ of every figure.
        target_epsilon: the requested ε; None if ε is what was solved for.
        solved_for: the field that was missing; None when the plan was only checked.
        delta_is_default: whether nobody gave δ.
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

    @checked
    def figures(self, records: Records = DEFAULT_RECORDS) -> dict[str, Any]:
        """Return the plan and what it means, ready for JSON; None where there is no finite bound.

        Args:
            records: how many records people may have, each of them a unit of its own.

        Raises:
            ConfigError: for records outside 1 to `MAX_RECORDS`.
        """
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
            "curve": [{"steps": steps, "epsilon": epsilon} for steps, epsilon in self.curve()],
            "accountant": ACCOUNTANT,
            "assumptions": list(ASSUMPTIONS),
        }


@checked
def plan(
    *,
    epsilon: Annotated[float, Field(gt=0)] | None = None,
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None,
    sample_rate: Annotated[float, Field(gt=0, le=1)] | None = None,
    steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None = None,
    noise_multiplier: Annotated[float, Field(ge=LEAST_NOISE)] | None = None,
    batch: Annotated[float, Field(gt=0)] | None = None,
    size: Annotated[int, Field(ge=1, le=usual.MAX_UNITS)] | None = None,
) -> Planned:
    """Make a plan: solve for the one of ε, sample rate, steps and noise that is left out.

    With all of them it is only checked.

    Args:
        epsilon: target that the plan may cost at most.
        delta: `usual.DELTA` if it is missing.
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
    del given["batch"], given["size"]
    given["delta"] = usual.DELTA if delta is None else delta
    if batch is not None:
        given["sample_rate"] = _rate(batch, size, sample_rate)
    missing = [name for name, value in given.items() if value is None]
    if len(missing) > 1:
        raise _too_few(missing)
    whole = {name: value for name, value in given.items() if value is not None}
    if size is not None:
        _check_delta(whole["delta"], size, delta is None)
    solved_for = missing[0] if missing else None
    if solved_for in _SOLVERS:
        whole[solved_for] = _SOLVERS[solved_for](**whole)
    if whole["steps"] == 0:
        step = Event(whole["sample_rate"], whole["noise_multiplier"], 1)
        raise AccountingError(
            f"Expected epsilon={epsilon!r} to pay for a step with delta={whole['delta']!r},"
            f" sample_rate={step.sample_rate!r} and noise_multiplier={step.noise_multiplier!r}:"
            f" one costs {epsilon_upper([step], whole['delta']):.4g}. Use more noise or a smaller"
            " rate."
        )
    return Planned(
        event=Event(whole["sample_rate"], whole["noise_multiplier"], int(whole["steps"])),
        delta=whole["delta"],
        target_epsilon=epsilon,
        solved_for=solved_for,
        delta_is_default=delta is None,
        size=size,
    )


def solve_with_looks(
    look_steps: int, *, steps: int | None = None, **given: Any
) -> tuple[Planned, dict[str, Any] | None]:
    """Solve as `plan` does, for a plan with steps that look besides those that train.

    Args:
        look_steps: steps of all looks together; 0 without any.
        steps: the number of steps that train.

    Returns:
        The plan. And, for JSON, the number of steps that look and of those that train, ε of the
        latter alone with the same noise, and their noise for the same ε; None without looks.

    Raises:
        ConfigError, AccountingError: see `plan`; or ε pays for no step to train.
    """
    planned = plan(steps=None if steps is None else steps + look_steps, **given)
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
    return planned, {
        "steps": look_steps,
        "training_steps": training,
        "epsilon_without": without,
        "noise_multiplier_without": noise,
    }


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


def finite(value: float) -> float | None:
    """Return a bound, or None if it is not finite."""
    return value if math.isfinite(value) else None
