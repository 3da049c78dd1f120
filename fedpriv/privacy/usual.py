"""Words and numbers that ledgers, mechanisms, files and command lines share."""

from typing import Literal

RuleName = Literal["plan", "rdp", "sum"]
Numerics = Literal["default", "strict"]
# What is taken if nothing is said.
DELTA = 1e-5
UNIT = "record"
MAX_RECORDS_PER_UNIT = 4
MAX_EMPTY = 0.5  # share of the records
# Bounds on what can be asked for.
MAX_UNITS = 10**10  # units of a population
MAX_PUBLIC_RECORDS = 10_000  # the most that a site may have to hold for a job
MIN_CLIP, MAX_CLIP = 1e-6, 1e6  # far from where float64 squares lose their value
MAX_STEPS, MAX_NOISE = 10**9, 1e9  # limits of what can be computed; a job may have fewer
MAX_MEMBERS = 1_000  # sites of a secure sum
MAX_DRAWN = 100_000  # units of a step on average, in default numerics; see `grid.sum_step`


def clip_norm_of(labels: bool) -> float:
    """Return the default C by task: that of a classifier, or of a language model.

    Source: *The clip norm, by task* in docs/results/defaults.md.

    Args:
        labels: whether the model gives one of several labels.
    """
    return 10.0 if labels else 0.1
