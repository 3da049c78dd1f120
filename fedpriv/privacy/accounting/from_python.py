"""`fedpriv.plan`: as `fedpriv plan`, with errors that name arguments in place of options."""

from __future__ import annotations

import re

from fedpriv.arguments import checked
from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting.planning import Planned, solve

_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)(?: ([\d.]+(?:e-?\d+)?))?")


@checked
def plan(
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    noise_multiplier: float | None = None,
    batch: float | None = None,
    size: int | None = None,
) -> Planned:
    """Solve for the one of ε, δ, sample rate, steps and noise that is left out, and price the plan.

    Args:
        epsilon, delta, sample_rate, steps, noise_multiplier, batch, size: see `solve`.

    Raises:
        ConfigError, AccountingError: as of `solve`.

    Privacy:
        Reads public numbers alone.
    """
    try:
        return solve(
            epsilon=epsilon,
            delta=delta,
            sample_rate=sample_rate,
            steps=steps,
            noise_multiplier=noise_multiplier,
            batch=batch,
            size=size,
        )
    except ConfigError as error:
        key = None if error.key is None else _as_arguments(error.key)
        raise ConfigError(
            _as_arguments(error.problem), key=key, value=error.value, fix=_as_arguments(error.fix)
        ) from None


def _as_arguments(text: str) -> str:
    """Write ``--sample-rate 0.05`` as ``sample_rate=0.05``."""

    def argument(found: re.Match[str]) -> str:
        name, value = found[1].replace("-", "_"), found[2]
        if value is None:
            return name
        number = value.rstrip(".")
        return f"{name}={number}{value[len(number) :]}"

    return _OPTION.sub(argument, text)
