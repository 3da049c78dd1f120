"""Write numbers for people to read. Bounds are rounded up, never down."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from itertools import groupby
from typing import Any

TIE = 0.0005  # in a loss: half a unit of the last digit that is shown


def upper(value: float) -> str:
    """Write an upper bound to three decimals or two significant digits, rounded up."""
    exact = Decimal(repr(value))
    if exact == 0:
        return "0"
    digits = max(3, 1 - exact.adjusted())
    return f"{exact.quantize(Decimal(1).scaleb(-digits), ROUND_CEILING)}"


def lower(value: float) -> str:
    """Write what is left of a budget, to three decimals, rounded down."""
    return f"{Decimal(repr(value)).quantize(Decimal('0.001'), ROUND_FLOOR)}"


def small(value: float) -> str:
    """Write a δ to three significant digits, rounded up, such as 1e-5."""
    exact = Decimal(repr(value))
    places = exact.adjusted() - 2
    digits = exact.quantize(Decimal(1).scaleb(places), ROUND_CEILING)
    mantissa = digits.scaleb(-digits.adjusted()).normalize()
    return f"{mantissa}e{digits.adjusted()}" if digits.adjusted() < -2 else f"{digits.normalize()}"


def score(value: float | None) -> str:
    """Write a loss, accuracy or AUC to three decimals."""
    if value is None:
        return "–"
    return f"{value:.3f}" if math.isfinite(value) else "not finite"


def worse(before: float | None, after: float | None) -> str:
    """Say that a model's loss is higher than before training. Return "" if it is not, or a tie."""
    if before is None or after is None or not (after > before + TIE or math.isnan(after)):
        return ""
    return (
        f"The model is worse than before: its loss on held-out records was {score(before)} and is"
        f" {score(after)}. Use the base model as it is. A lower learning rate, fewer rounds or more"
        " records may help; ε was spent all the same."
    )


def worse_by_now(before: float, rounds: Sequence[Mapping[str, Any]]) -> str:
    """Say that the model is worse after the last round than before, or return "".

    It is also worse if the sites' loss in the last round's look is above that of the first look, by
    more than twice the noise of their difference. Rows are as in metrics.jsonl.
    """
    now, then = score(rounds[-1]["eval_loss"]), score(before)
    looks = [row["held_out"]["loss"] for row in rounds if row["held_out"] is not None]
    if not worse(before, rounds[-1]["eval_loss"]):
        if rounds[-1]["held_out"] is None or None in (looks[0], looks[-1]):
            return ""
        first, last = looks[0], looks[-1]
        if last["mean"] - first["mean"] <= 2 * math.hypot(first["deviation"], last["deviation"]):
            return ""
        now, then = (f"{give_or_take(**look)} at the sites" for look in (last, first))
    since = "before training" if worse(before, rounds[-1]["eval_loss"]) else "at the first look"
    return (
        f"The model is worse than {since}: its loss is {now}, and was {then}. What is"
        " spent stays spent. Stop with Ctrl-C, or begin anew with a lower learning rate."
    )


def last_loss(rounds: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the loss after the last evaluated round; rows are as in metrics.jsonl."""
    losses = (row["eval_loss"] for row in reversed(rounds))
    return next((loss for loss in losses if loss is not None), None)


def give_or_take(mean: float, deviation: float) -> str:
    """Write a mean and the standard deviation of the noise in it."""
    return f"{score(mean)} ± {score(deviation)}"


def look_line(look: Mapping[str, Any] | None) -> str:
    """Say in a few words what a look at the sites' held-out records found, as in metrics.jsonl."""
    if look is None:
        return ""
    if look["loss"] is None:
        return "too few sites answered a look at their held-out records"
    shown = (f"{key} {give_or_take(**look[key])}" for key in ("loss", "accuracy"))
    sites = "1 site" if look["counted"] == 1 else f"{look['counted']} sites"
    return f"on held-out records of {sites}, {', '.join(shown)} (noise alone; mean over units)"


def amount(count: float) -> str:
    """Write bytes in the unit a person would use (powers of 1000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float) -> str:
    """Write a duration in seconds, or in the two largest units that it needs."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest} s"


def ranges(numbers: Iterable[int], at_most: int = 12) -> str:
    """Write whole numbers in order, consecutive ones as a range: 1–4, 7."""
    runs = groupby(enumerate(sorted(set(numbers))), key=lambda pair: pair[1] - pair[0])
    found = [[number for _, number in run] for _, run in runs]
    shown = [f"{one[0]}–{one[-1]}" if len(one) > 1 else f"{one[0]}" for one in found[:at_most]]
    return ", ".join([*shown, "…"] if len(found) > at_most else shown)


def when(moment: date) -> str:
    """Write a time as people do, in UTC if its zone is known. For a date, write only the day."""
    if not isinstance(moment, datetime):
        return f"{moment.day} {moment:%B %Y}"
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC)
    zone = " UTC" if moment.tzinfo is not None else ""
    return f"{moment.day} {moment:%B %Y, %H:%M}{zone}"
