"""The sentences of a site's budget report. The site and its readers make them from values.

A sentence that rests on values can be made again from them. So a report that contradicts its own
values, its ledger's rows or its job's proposal is recognised, no matter who signed it.

Privacy
    Made from public fields of a ledger, and from what administrators typed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedpriv.privacy.accounting.accountant import ACCOUNTANT
from fedpriv.privacy.ledger.rules import RULES
from fedpriv.privacy.usual import RuleName
from fedpriv.report.budget import NUMERICS, STRICT_NUMERICS, TICKS, TIMING, trust_model

ASSUMPTIONS = (
    "The declared size and the sample rate are typed by people, never derived from records.",
    "Preparation is a function of one unit's own records and public settings.",
    "Ledger and witnesses are not restored together from older copies, nor is a witness cut short.",
    "The operating system's random numbers are secret, and AES-256 and HMAC-SHA-256 are"
    " pseudorandom functions.",
    "The normal quantile function of scipy errs by less than ten times what is measured.",
)
ONE_RUN = "No other run used these records: this ledger covers one run and knows of no other."
GROWN = "That the declared size was raised, or delta lowered, did not depend on what was released."
BESIDE_OTHERS = (
    "A gradient computed beside others depends on its own unit, public settings and chance only."
)
LOST_SUMS = (
    "In plans that were lost with a newer copy of the ledger, no more sites of a secure sum were"
    " taken to collude than in those that are known."
)
SECURE_SUM = (
    "X25519, HKDF-SHA256, AES-256 and Ed25519 hide the parts of a secure sum from whoever has"
    " polynomial time; the figures alone need none of them."
)
ON_TIME = (
    "There are at most a tenth more units than declared, the site's machine is at most a quarter"
    " slower than when it was tried, and nobody outside measures how busy it is."
)
ALONE = "A gradient computed alone depends on its own record, public settings and chance only."
DISTINCT = "{by} states that units which look like some of data set {other} are other people."


@dataclass(frozen=True)
class Basis:
    """The values from which the sentences of a report follow.

    Attributes:
        strict: whether all that the claim is about was, and will be, computed strictly.
        max_colluding: the least of the secure sums that the claim is about; None without one.
        lost_sums: whether secure sums may be among the plans lost with a copy of the ledger.
        distinct: pairs of another ledger's data set, and who states that units that look like
            some of it are other people.
        grown: whether the declared size was raised, or delta lowered.
        one_run: whether the ledger was made for one run.
        at_ticks: whether all replies that the claim is about leave at public ticks.
    """

    rule: RuleName
    strict: bool
    max_colluding: int | None
    lost_sums: bool
    distinct: tuple[tuple[str, str], ...]
    grown: bool
    one_run: bool
    at_ticks: bool = False


def words(of: Basis) -> dict[str, Any]:
    """Return field of a report → its sentences."""
    assumptions = (
        *ASSUMPTIONS,
        ALONE if of.strict else BESIDE_OTHERS,
        *((ON_TIME,) if of.at_ticks else ()),
        *((SECURE_SUM,) if of.max_colluding is not None else ()),
        *((LOST_SUMS,) if of.lost_sums else ()),
        *(DISTINCT.format(by=by, other=other) for other, by in of.distinct),
        *((GROWN,) if of.grown else ()),
        *((ONE_RUN,) if of.one_run else ()),
    )
    return {
        "guarantee": RULES[of.rule].guarantee,
        "accountant": ACCOUNTANT,
        "timing": TICKS if of.at_ticks else TIMING,
        "numerics": STRICT_NUMERICS if of.strict else NUMERICS,
        "trust_model": trust_model(of.max_colluding),
        "assumptions": assumptions,
    }
