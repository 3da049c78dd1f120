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
    given = dict(locals())
    try:
        return solve(**given)
    except ConfigError as error:
        texts = {"problem": error.problem, "key": error.key or "", "fix": error.fix}
        raise error.but(**{name: _as_arguments(text) for name, text in texts.items()}) from None


def _as_arguments(text: str) -> str:
    """Write ``--sample-rate 0.05`` as ``sample_rate=0.05``."""

    def argument(found: re.Match[str]) -> str:
        name, value = found[1].replace("-", "_"), found[2]
        if value is None:
            return name
        number = value.rstrip(".")
        return f"{name}={number}{value[len(number) :]}"

    return _OPTION.sub(argument, text)
