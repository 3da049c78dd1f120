"""The budget report: what a site says it has spent, signed with the site's own key.

Privacy
    Every field is public: settings, sums over the ledger's public rows, and the ledger's
    head. Nothing in a report is computed from records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from fedpriv.errors import ConfigError, LedgerCorruptError, LedgerError
from fedpriv.files import canonical_json, write_json
from fedpriv.names import Name
from fedpriv.pki.points import VerifyingKey, is_signed
from fedpriv.privacy.usual import AnyRule
from fedpriv.secret import load_or_create_secret
from fedpriv.section import Section

if TYPE_CHECKING:
    from fedpriv.privacy.accounting.accountant import Event

Epsilon = Annotated[float, Field(ge=0)]
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
_OF_TWO_CLAIMS = (  # reports of a ledger with one budget don't have them, and are as they were
    "epsilon_alone_spent",
    "epsilon_alone_allocated",
    "epsilon_alone_committed",
    "budget_alone",
    "max_colluding",
)
_WHERE_THERE = (*_OF_TWO_CLAIMS, "filter")


def trust_model(max_colluding: int | None) -> str:
    """Whom the claim of `BudgetReport.epsilon_committed` trusts, in words.

    Args:
        max_colluding: the least of the ledger's secure sums; None where there is none.
    """
    return TRUST_MODEL if max_colluding is None else SECURE_SUM.format(least=max_colluding)


class BudgetEvent(Section):
    """A run of equal consecutive private steps, as the accountant was charged for them."""

    job: str
    round: int = Field(ge=1, description="the first round of the run")
    sample_rate: float = Field(gt=0, le=1)
    noise_multiplier: float = Field(ge=0)
    count: int = Field(ge=1, description="consecutive rounds of this kind")


class FilterUse(Section):
    """What an adaptive plan may take of Rényi divergence, in nats, and what its slots have."""

    order: int = Field(ge=2, description="α, at which debits add up")
    budget: float = Field(gt=0, description="of the plan; paid for in full when it was accepted")
    debited: float = Field(ge=0, description="of it, by the slots that were reserved")


class Signature(Section):
    """Ed25519 over the canonical JSON of everything else in the report."""

    algorithm: Literal["ed25519"] = "ed25519"
    public_key: VerifyingKey
    value: str = Field(pattern=r"^[0-9a-f]{128}$")


class BudgetReport(Section):
    """The content of ``sites/NAME/budget.json``.

    `epsilon_committed` is the claim for the life of the ledger; `guarantee` says what it covers
    under the ledger's rule. `epsilon_allocated` is what the plans accepted so far can cost.
    `epsilon_spent` covers the slots that were executed and is no guarantee if stopping depended
    on what was released. All are upper bounds. The figures `epsilon_alone_…` are the same ones if
    every other site in a secure sum works with the server; they are there for a ledger with a
    budget for that.
    """

    format: Literal[1] = 1
    site: Name
    dataset_id: str = Field(min_length=1, description="random; not a hash of the data")
    unit: str = Field(min_length=1, description="record, or an id column")
    max_records_per_unit: int = Field(ge=1)
    relation: Literal["add-or-remove-one-unit"] = "add-or-remove-one-unit"
    delta: float = Field(gt=0, lt=1)
    declared_size: int = Field(ge=1, description="in units; typed, never derived")
    rule: AnyRule = "plan"
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
    filter: FilterUse | None = Field(
        None, description="of the job's plan, where noise and rates are chosen between its steps"
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

    @model_serializer(mode="wrap")
    def _as_it_was_signed(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what there is none of, in a kind of report that came later: older ones verify."""
        fields: dict[str, Any] = dump(self)
        return {k: v for k, v in fields.items() if v is not None or k not in _WHERE_THERE}


def events_of(job: str, slots: Iterable[tuple[int, Event]]) -> Iterator[BudgetEvent]:
    """Runs of equal consecutive steps of a job.

    Args:
        slots: reserved slots in order, from 0, each with the event that was paid for it.
    """
    numbered = enumerate(slots)
    for _, consecutive in groupby(numbered, key=lambda pair: (pair[1][0] - pair[0], pair[1][1])):
        found = [one for _, one in consecutive]
        first, event = found[0]
        yield BudgetEvent(
            job=job,
            round=first + 1,
            sample_rate=event.sample_rate,
            noise_multiplier=event.noise_multiplier,
            count=len(found),
        )


def sign(report: BudgetReport, private_key: Ed25519PrivateKey) -> BudgetReport:
    """A copy of `report` that carries the signature of `private_key`."""
    signature = Signature(
        public_key=private_key.public_key().public_bytes_raw().hex(),
        value=private_key.sign(_signed_bytes(report)).hex(),
    )
    return report.model_copy(update={"signature": signature})


def verify(report: BudgetReport, public_key: str | None = None) -> None:
    """Check that nothing in `report` changed since it was signed.

    Without `public_key` (hex) this shows that the report is whole, not who signed it:
    anyone can sign with a key of their own. Compare the key with one the site gave you.

    Raises:
        LedgerCorruptError: unsigned, changed after it was signed, or signed by another key.
    """
    whose = f"The budget report of site {report.site!r}"
    advice = "Don't rely on its numbers: ask the site for its budget.json again."
    if report.signature is None:
        raise LedgerCorruptError(f"{whose} is not signed. {advice}")
    key = report.signature.public_key
    if public_key is not None and key != public_key.lower():
        raise LedgerCorruptError(
            f"{whose} is signed by key {key}, not by the expected {public_key}. {advice}"
        )
    if not is_signed(_signed_bytes(report), report.signature.value, key):
        raise LedgerCorruptError(
            f"{whose} does not match its signature by key {key}: it was changed after it was"
            f" signed. {advice}"
        )


def _signed_bytes(report: BudgetReport) -> bytes:
    return canonical_json(report.model_dump(mode="json", exclude={"signature"}))


def write(report: BudgetReport, path: Path) -> None:
    """Replace `path` by `report`, atomically."""
    write_json(path, report.model_dump(mode="json"))


def read(path: Path) -> BudgetReport:
    """The report in `path`; its signature is not checked (see `verify`).

    Raises:
        ConfigError: there is none, or it is malformed; names the file and the key.
    """
    try:
        return BudgetReport.model_validate_json(path.read_bytes(), strict=True)
    except FileNotFoundError:
        raise ConfigError("no such file", file=path) from None
    except OSError as error:
        raise ConfigError(f"can't be read: {error.strerror}", file=path) from None
    except ValidationError as error:
        raise malformed(error, path) from None


def malformed(error: ValidationError, path: Path | str) -> ConfigError:
    """The first problem of a file that a program wrote, so that nobody is told to edit it."""
    problem = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in problem["loc"]) or None
    fix = "The file was edited, cut short, or written by another version of fedpriv."
    if problem["type"] == "json_invalid":
        return ConfigError(f"is not JSON: {problem['ctx']['error']}", file=path, fix=fix)
    if problem["type"] == "missing":
        return ConfigError("is missing", file=path, key=key, fix=fix)
    if problem["type"] == "extra_forbidden":
        return ConfigError("unknown key", file=path, key=key, fix=fix)
    message = problem["msg"][0].lower() + problem["msg"][1:]
    return ConfigError(message, file=path, key=key, value=problem["input"], fix=fix)


def totals(reports: Iterable[BudgetReport]) -> dict[str, float]:
    """Σε and Σδ over sites: what holds for a person whose data is in all of them.

    Basic composition over the sites' ledgers. `epsilon` sums the committed figures, which
    are the claim; `epsilon_spent` sums the executed ones. It covers one unit in each site.
    Basic composition is about mechanisms with noise of their own. The noise of a secure sum is
    common to its sites, so of a ledger that pays for such sums the figures alone are added: what
    they count is the site's own share of the noise.
    """
    listed = list(reports)
    return {
        "sites": len(listed),
        "epsilon": _sum(_by_itself(r.epsilon_committed, r.epsilon_alone_committed) for r in listed),
        "epsilon_spent": _sum(_by_itself(r.epsilon_spent, r.epsilon_alone_spent) for r in listed),
        "delta": _sum(report.delta for report in listed),
    }


def _by_itself(epsilon: float, alone: float | None) -> float:
    """The figure that rests on this site's own noise."""
    return epsilon if alone is None else alone


def _sum(values: Iterable[float]) -> float:
    """The sum of the decimals that the files show: three times 1e-5 is 3e-5."""
    return float(sum(Decimal(repr(value)) for value in values))


def load_or_create_key(path: Path) -> Ed25519PrivateKey:
    """The site's signing key in `path` (PEM, 0600), made on first use.

    Of two processes that make it at once, both get the same key.

    Raises:
        LedgerError: the file may be read by others, or does not hold an Ed25519 key.
    """
    pem = load_or_create_secret(
        path,
        _new_key,
        name="signing key",
        leaked="If someone else may have read it, move it away so that a new one is made, and"
        " tell those who verify your reports.",
    )
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise LedgerError(f"{path}: is not an unencrypted private key in PEM form.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise LedgerError(f"{path}: holds another kind of key than Ed25519.")
    return key


def _new_key() -> bytes:
    return Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
