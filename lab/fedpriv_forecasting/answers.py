"""The three questions: own patients, other hospitals' patients, and new hospitals."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from fedpriv_forecasting.curve import Interval, LeftOut
from fedpriv_forecasting.federation import Federation
from fedpriv_forecasting.reading import Basis
from fedpriv_forecasting.table import BASE, FEDERATED, OUTSIDE, OWN_RECORDS, SINGLE

PAYS, PAYS_NOT, UNKNOWN = "is expected to pay", "is expected not to pay", "can't be told"
LEVEL = "is expected to change next to nothing"
EVEN = 0.02  # nats: a change of the perplexity by two per cent
UNEVENLY = (
    "The sites are uneven, but equal ones were measured: each is forecast by its own size, and the"
    " brackets of a mean are those of a single site."
)
STARTS = {  # what an adapter of a federation is compared with at a site outside of it
    BASE: "the base model",
    SINGLE: "the adapter that the best single hospital could hand on at the same ε",
}


@dataclass(frozen=True)
class Answer:
    """Hold what joining is expected to bring for one question. More is better.

    Attributes:
        question: ``own``, ``outside``, or the number of own records that a new site has.
        way: the way to use the adapter.
        over: what the way is compared with.
        gain: mean over the sites; None where too little was measured for a curve.
        verdict: None without a curve, and outside of what was measured.
        outside: the figures in which the federation is outside what was measured.
        widened: why the interval is wider than the curve's own, in words.
        federations: number of federations that were measured.
        measured: the least and the most that they gained; None without any.
        left_out: how well the curve predicts what it has not seen.
    """

    question: str
    way: str
    over: str
    gain: Interval | None
    verdict: str | None
    outside: tuple[str, ...]
    widened: tuple[str, ...]
    federations: int
    measured: tuple[float, float] | None
    left_out: LeftOut | None


def sign(gain: Interval) -> str:
    """Say whether joining pays. It is said only where the whole interval agrees."""
    if gain.high < 0:
        return PAYS_NOT
    if gain.low > 0:
        return PAYS
    return LEVEL if max(-gain.low, gain.high) <= EVEN else UNKNOWN


def answer(
    basis: Basis,
    federation: Federation,
    unlike: tuple[str, ...],
    question: str,
    way: str,
    over: str,
) -> Answer:
    """Answer one question by its curve.

    Args:
        unlike: what of the job was not measured at all.
    """
    here = federation.setting
    points = basis.points(question, way, over)
    means: dict[object, list[float]] = {}
    for point in points:
        of_seed = statistics.fmean(point.gains(way, over, question) or ())
        means.setdefault((point.setting, point.epsilon), []).append(of_seed)
    reading = basis.reading(federation, way, over, question)
    gain, outside, widened = None, unlike, []
    if reading is not None:
        gain = reading.predict(here, one_site=federation.uneven)
        outside = (*unlike, *reading.outside(*federation.settings))
        widened = [*reading.widened, *([UNEVENLY] if federation.uneven else [])]
    of_each = [statistics.fmean(seeds) for seeds in means.values()]
    return Answer(
        question=question,
        way=way,
        over=over,
        gain=gain,
        verdict=None if gain is None or outside else sign(gain),
        outside=outside,
        widened=tuple(widened),
        federations=len(of_each),
        measured=(min(of_each), max(of_each)) if of_each else None,
        left_out=None if reading is None else reading.left_out(),
    )


def of_others(basis: Basis, federation: Federation, unlike: tuple[str, ...]) -> Iterator[Answer]:
    """Answer for outside sites' patients and new sites: over the base model and the best single."""
    for question in (OUTSIDE, *OWN_RECORDS):
        for start in STARTS:
            if start == BASE or basis.points(question, FEDERATED, start):
                yield answer(basis, federation, unlike, question, FEDERATED, start)


@dataclass(frozen=True)
class Price:
    """Hold what a site pays for joining.

    Attributes:
        epsilon: the largest ε that a site pays. With a secure sum it is the ε with trust.
        epsilon_alone: ε if all others work with the server; None where it is not finite.
        megabytes: megabytes that come to a site in the job, at 4 bytes a value. No more go back.
            None where it is not known how many values are trained.
    """

    epsilon: float
    epsilon_alone: float | None
    megabytes: float | None
