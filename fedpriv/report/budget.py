"""The budget report: what a site says it has spent, signed with the site's own key.

Privacy
    Every field is public: settings, sums over the ledger's public rows, and the ledger's
    head. Nothing in a report is computed from records.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import Field, model_validator

from fedpriv.documents import read_json
from fedpriv.files import canonical_json
from fedpriv.names import Name
from fedpriv.pki.points import VerifyingKey
from fedpriv.privacy.life import Life
from fedpriv.privacy.usual import MAX_STEPS, RuleName
from fedpriv.section import Section

if TYPE_CHECKING:
    from fedpriv.privacy.ledger.plan import Plan

Epsilon = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1, le=MAX_STEPS)]
MOST_EVENTS = 10_000  # in a report, where they take 2.6 MB
TIMING = "not covered: replies leave when they are ready"
TICKS = (
    "public ticks: what is computed from records ends at a time that depends on public settings and"
    " random texts alone; that a sample takes longer adds less than a thousandth of delta in a"
    " million steps, up to epsilon = 50"
)
NUMERICS = (
    "default: norms and sums in float64, each sum rounded to a grid, noise Gaussian rounded to the"
    " grid; the sampler adds less than 1e-40 to delta up to epsilon = 50; that a gradient computed"
    " in the model's precision, beside others, is a function of its own unit alone is an assumption"
)
STRICT_NUMERICS = (
    "strict: each record's gradient computed alone, each unit's clipped vector rounded to an"
    " integer grid, sums exact, noise Gaussian rounded to the grid; the sampler adds less than"
    " 1e-40 to delta up to epsilon = 50"
)
TRUST_MODEL = "local: the site adds its own noise"
SECURE_SUM = (
    "secure sum: the noise is that of all sites of a sum together, and epsilon holds if at most"
    " {least} of them work with the server or leave out their noise; the figures alone assume"
    " nothing of any other site, as if all of them did"
)


def figure_names(alone: bool) -> tuple[str, ...]:
    """Return the fields of a claim's figures: spent, allocated, committed."""
    prefix = "epsilon_alone_" if alone else "epsilon_"
    return tuple(f"{prefix}{key}" for key in ("spent", "allocated", "committed"))


# Reports of a ledger with one budget don't have these fields, and are as they were before.
_OF_TWO_CLAIMS = (*figure_names(True), "budget_alone", "max_colluding")


def trust_model(max_colluding: int | None) -> str:
    """Say in words whom the claim of `BudgetReport.epsilon_committed` trusts.

    Args:
        max_colluding: the least of the ledger's secure sums; None if it has none.
    """
    return TRUST_MODEL if max_colluding is None else SECURE_SUM.format(least=max_colluding)


class BudgetEvent(Section):
    """Consecutive equal private steps, as they were charged to the accountant."""

    job: str
    round: Count = Field(description="the first round of the run")
    sample_rate: float = Field(gt=0, le=1)
    noise_multiplier: float = Field(ge=0)
    count: Count = Field(description="consecutive rounds of this kind")


class Signature(Section):
    """An Ed25519 signature over the canonical JSON of everything else in the report."""

    algorithm: Literal["ed25519"] = "ed25519"
    public_key: VerifyingKey
    value: str = Field(pattern=r"^[0-9a-f]{128}$")


class BudgetReport(Section):
    """The content of ``sites/NAME/budget.json``.

    `epsilon_committed` is the claim for the life of the ledger; `guarantee` says what it covers
    under the ledger's rule. `epsilon_allocated` is what the plans accepted so far can cost.
    `epsilon_spent` covers the slots that were executed. It is no guarantee if stopping depended
    on what was released. All are upper bounds. The figures `epsilon_alone_…` hold if every other
    site in a secure sum works with the server. Only a ledger with a budget for that has them.
    """

    later: ClassVar[tuple[str, ...]] = (*_OF_TWO_CLAIMS, "life")
    format: Literal[1] = 1
    site: Name
    dataset_id: str = Field(min_length=1, description="random; not a hash of the data")
    unit: str = Field(min_length=1, description="record, or an id column")
    max_records_per_unit: int = Field(ge=1)
    relation: Literal["add-or-remove-one-unit"] = "add-or-remove-one-unit"
    delta: float = Field(gt=0, lt=1)
    declared_size: int = Field(ge=1, description="in units; typed, never derived")
    rule: RuleName = "plan"
    accountant: str = Field(min_length=1)
    timing: str = TIMING
    numerics: str = NUMERICS
    trust_model: str = TRUST_MODEL
    assumptions: tuple[str, ...] = ()
    private: bool = Field(description="false: stamped NOT PRIVATE, whatever epsilon says")
    simulated: bool
    guarantee: str = Field(min_length=1, description="what epsilon_committed covers")
    epsilon_spent: Epsilon
    epsilon_allocated: Epsilon
    epsilon_committed: Epsilon
    budget: Epsilon = Field(description="lifetime epsilon of the ledger")
    epsilon_alone_spent: Epsilon | None = None
    epsilon_alone_allocated: Epsilon | None = None
    epsilon_alone_committed: Epsilon | None = None
    budget_alone: Epsilon | None = Field(
        None, description="lifetime epsilon if all other sites work with the server"
    )
    max_colluding: int | None = Field(
        None, ge=0, description="the least of the ledger's secure sums; none without one"
    )
    events: tuple[BudgetEvent, ...] = ()
    life: Life | None = Field(
        None, description="of the job's plan, where the ledger is for more than one"
    )
    ledger_head: str = Field(pattern=r"^[0-9a-f]{1,128}$")
    ledger_rows: int = Field(ge=0)
    job: str
    signature: Signature | None = None

    @model_validator(mode="after")
    def _both_claims_or_one(self) -> Self:
        figures = [getattr(self, key) for key in _OF_TWO_CLAIMS[:4]]
        if None in figures and (set(figures) != {None} or self.max_colluding is not None):
            raise ValueError("the figures alone belong together, and to every secure sum")
        return self


def events_of(plan: Plan, slots: Sequence[int]) -> tuple[BudgetEvent, ...]:
    """Return the runs of consecutive steps of a plan. If there are too many, return one for all.

    So a server that leaves out every other slot can't make a report too large to be written.

    Args:
        slots: numbers of the reserved slots in order, from 0.
    """
    numbered = groupby(enumerate(slots), key=lambda pair: pair[1] - pair[0])
    runs = [[slot for _, slot in run] for _, run in numbered]
    return tuple(
        BudgetEvent(
            job=plan.job,
            round=run[0] + 1,
            sample_rate=plan.sample_rate,
            noise_multiplier=plan.noise_multiplier,
            count=len(run),
        )
        for run in (runs if len(runs) <= MOST_EVENTS else [slots])
    )


def sign(report: BudgetReport, private_key: Ed25519PrivateKey) -> BudgetReport:
    """Return a copy of `report` with a signature by `private_key`."""
    return report.model_copy(update={"signature": signature(signed_bytes(report), private_key)})


def signature(content: bytes, private_key: Ed25519PrivateKey) -> Signature:
    """Return the signature of these bytes, with the public key of `private_key`."""
    public = private_key.public_key().public_bytes_raw().hex()
    return Signature(public_key=public, value=private_key.sign(content).hex())


def signed_bytes(report: BudgetReport) -> bytes:
    """Return the bytes that are signed: the canonical JSON of everything but the signature."""
    return canonical_json(report.model_dump(mode="json", exclude={"signature"}))


def read(path: Path) -> BudgetReport:
    """Read the report in `path`. Its signature is not checked (see `received.verify`).

    Raises:
        ConfigError: there is no report, or it is malformed; the error names the file and the key.
    """
    return read_json(path, BudgetReport)
