"""What files and command lines share: words, and what is taken where nothing is said."""

from typing import Literal

RuleName = Literal["plan", "envelope", "rdp", "sum"]
DELTA = 1e-5
UNIT = "record"
MAX_RECORDS_PER_UNIT = 4
