"""Print what public ticks cost: the length of a tick over the time of an average sample.

    python benchmarks/ticks.py

It prints the figures that docs/explanation/privacy.md quotes. It is arithmetic, and nothing is
timed: both times are multiples of the time of one record of the greatest length.
"""

from __future__ import annotations

from fedpriv.privacy.ledger.terms import Terms
from fedpriv_client.ticks import SLOWER, most_units

SHAPES = ((16, 1 / 2), (64, 1 / 8), (200, 1 / 10), (1_000, 1 / 20), (10_000, 1 / 50))


def main() -> None:
    """Print a row for each size of a site."""
    print("| declared units | sample rate | drawn on average | at most (k) | tick over average |")
    print("|---|---|---|---|---|")
    for units, rate in SHAPES:
        terms = Terms("0" * 32, units, "record", 1, 1e-5, 8.0, simulated=False)
        most, average = most_units(units, rate, terms), units * rate
        share = SLOWER * most / average
        print(f"| {units:,} | {rate:g} | {average:g} | {most:,} | {share:.1f} |")


if __name__ == "__main__":
    main()
