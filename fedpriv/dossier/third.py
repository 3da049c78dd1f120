"""The third accountant: dp-accounting, by other authors, if it is installed.

It is no part of fedpriv, and fedpriv's own figures never rest on it. It is asked whether a figure
that somebody states can be true.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, reduce
from importlib.util import find_spec

from fedpriv.dossier.sums import Term, epsilon_of
from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.accountant import Event

_POINTS = 1000  # points of the first grid of privacy losses, from 0 to our ε
_FINEST, _CLOSE = 1e-5, 1.002  # width of the last grid; how near our ε an earlier one must come
_MOST, _CELLS = 1e5, 2e6  # the largest ε, and most points of a grid, for which the library is asked
_TINY = 1e-300  # a δ at which no ε is 0, so that a divergence can be read from it


def third_accountant() -> Callable[[Term], float] | None:
    """Return a function that bounds a term's ε by dp-accounting. None if it is not installed.

    The function raises an AccountingError for a term that its grids have no room for.
    """
    return _epsilon if find_spec("dp_accounting") is not None else None


@lru_cache(maxsize=1024)
def _epsilon(term: Term) -> float:
    return _numerical(term) if term.order is None else _renyi(term, term.order)


def _numerical(term: Term) -> float:
    """Return the larger ε of adding and removing, on ever finer grids until one comes near ours.

    Each grid gives an upper bound, so the least of several is taken.

    Source:
        Doroshenko et al. 2022, "Connect the Dots: Tighter Discrete Approximations of Privacy Loss
        Distributions", which the library follows.
    """
    if not term.events:
        return 0.0
    ours = epsilon_of(term)
    found, width = math.inf, max(ours / _POINTS, _FINEST)
    finest = max(_FINEST, max(map(_largest_loss, term.events)) / _CELLS)
    if not ours < _MOST or width < finest:
        raise AccountingError(
            f"For ε of about {ours:.3g} a grid of privacy losses would need too many points."
        )
    while found > ours * _CLOSE and width >= finest:
        found, width = min(found, _on_grid(term, width)), width / 4
    if not found < math.inf:
        raise AccountingError(f"At δ = {term.delta:g} its grids leave out more than δ.")
    return found


def _largest_loss(event: Event) -> float:
    """Estimate the largest privacy loss of a step that a grid has to hold."""
    noise = max(event.noise_multiplier, 1e-6)
    return (0.5 / noise + 10) / noise


def _on_grid(term: Term, width: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution as pld

    steps = [
        pld.from_gaussian_mechanism(
            event.noise_multiplier,
            sampling_prob=event.sample_rate,
            value_discretization_interval=width,
        ).self_compose(event.count)
        for event in term.events
    ]
    whole = reduce(lambda one, other: one.compose(other), steps)
    return float(whole.get_epsilon_for_delta(term.delta))


def _renyi(term: Term, order: int) -> float:
    """Return ε at the order that was fixed before, as a filter adds up.

    Source:
        Mironov, Talwar and Zhang 2019, "Rényi Differential Privacy of the Sampled Gaussian
        Mechanism".
    """
    import dp_accounting
    from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant, compute_epsilon

    accountant = RdpAccountant(orders=[order])
    for event in term.events:
        step = dp_accounting.PoissonSampledDpEvent(
            event.sample_rate, dp_accounting.GaussianDpEvent(event.noise_multiplier)
        )
        accountant.compose(dp_accounting.SelfComposedDpEvent(step, event.count))
    converted = math.log1p(-1 / order) - math.log(_TINY * order) / (order - 1)
    divergence = float(accountant.get_epsilon(_TINY)) - converted
    return float(compute_epsilon([order], [divergence], term.delta)[0])
