"""What `fedpriv forecast` says of the same file, beside what a comparison measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedpriv.errors import FedprivError
from fedpriv_comparison.comparison import Comparison
from fedpriv_comparison.figures import Figures
from fedpriv_comparison.personalisation import FIFTH, PERSONAL
from fedpriv_comparison.variants import PUBLIC
from fedpriv_forecasting.of_file import forecast

WAY_OF = {"": "federated", PERSONAL: "federated+personal", FIFTH: "federated+fifth"}


def expected(comparison: Comparison, rows: Sequence[Figures]) -> Iterator[str]:
    """A sentence for each row of which a forecast has a verdict.

    A forecast rests on other records and a comparison on these, so they may differ. Then it is said
    which of the two holds.

    Args:
        rows: in the order of the comparison's variants.
    """
    for variant, row in zip(comparison.variants, rows, strict=True):
        measured = row.home and row.home.difference
        if not measured or variant.method in PUBLIC or variant.place != "federated":
            continue
        config = comparison.config(variant, row.settings or variant.grid[0], 1)
        try:
            ways = {one.way: one for one in forecast(config).ways}
        except FedprivError:  # such as a single site, which a forecast knows nothing of
            continue
        one = ways.get(WAY_OF[variant.way])
        if one is None or one.verdict is None:
            continue
        gain, said = one.over_alone, row.home and row.home.verdict
        yield (
            f"{row.name}: by other records, fedpriv forecast says that joining {one.verdict}"
            f" ({gain.gain:+.3f} over training alone, {gain.low:+.3f} to {gain.high:+.3f})."
            f" Measured on these it is {-measured.mean:+.3f}{f', {said}' if said else ''}, which"
            " holds where the two differ."
        )
