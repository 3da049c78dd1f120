"""Define `fedpriv.plan`, which does in Python what the command `fedpriv plan` does."""

from __future__ import annotations

from fedpriv.arguments import checked
from fedpriv.privacy.accounting.planning import Planned, solve


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
        ConfigError, AccountingError: see `solve`.

    Privacy:
        Reads public numbers alone.
    """
    return solve(**locals())
