"""What a dossier holds, as data: ``dossier.json``, and the files of the sites beside it.

dossier.html              all of it as a page, made from the other files
dossier.json              `Facts`: model, adapter, proposal, code, who took part, scores
answers.json              claims in plain words, and the table of clauses, made from the others
audit.json                what attacks achieved, if the run was audited
sites/NAME/budget.json    what the site signed
sites/NAME/ledger.json    the public rows of its ledger, if they are available
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from fedpriv.auditing.result import Audit
from fedpriv.documents import malformed
from fedpriv.dossier.package import MAX_FILES
from fedpriv.errors import DossierError, LedgerError
from fedpriv.files import each_once
from fedpriv.names import Digest, Name
from fedpriv.privacy.ledger.chain import Row
from fedpriv.protocol import MAX_EPSILON, JobId, Proposal
from fedpriv.report.budget import BudgetReport
from fedpriv.report.ledger_export import canonical_export, exported_rows
from fedpriv.report.received import claims_of
from fedpriv.report.rundir import Look
from fedpriv.section import Section
from fedpriv.software import Installed

Kind = TypeVar("Kind", bound=BaseModel)
Moment = Annotated[
    AwareDatetime, Field(ge=datetime(2000, 1, 1, tzinfo=UTC), lt=datetime(3000, 1, 1, tzinfo=UTC))
]
Day = Annotated[date, Field(ge=date(2000, 1, 1), lt=date(3000, 1, 1))]
FACTS, ANSWERS, AUDIT, PAGE = "dossier.json", "answers.json", "audit.json", "dossier.html"


def report_file(site: str) -> str:
    """Return the name of the file with a site's budget report."""
    return f"sites/{site}/budget.json"


def ledger_file(site: str) -> str:
    """Return the name of the file with the rows of a site's ledger. A dossier may lack it."""
    return f"sites/{site}/ledger.json"


def json_of(content: BaseModel) -> bytes:
    """Return the bytes of a dossier's JSON file with this content."""
    fields = content.model_dump(mode="json")
    return (json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


class Participant(Section):
    """A site, as the coordinator saw it.

    Attributes:
        rounds: the rounds of the job in which it released something.
        looks: the looks at its held-out records that it answered.
        report, ledger: whether the dossier has its budget report, and its ledger's rows.
    """

    name: Name
    rounds: int = Field(ge=0)
    looks: int = Field(0, ge=0)
    report: bool
    ledger: bool


class Scores(Section):
    """Scores on records that are public or the coordinator's own; null where not finite."""

    round: int = Field(ge=0, description="after which they were taken; 0 is before the first")
    loss: float | None = None
    accuracy: float | None = None
    auc: float | None = None
    hardest: float | None = None


class Looked(Section):
    """A look at the sites' own held-out records."""

    round: int = Field(ge=1)
    found: Look


class Price(Section):
    """What looks cost a site: ε of the job's plan with looks, and of the training steps alone."""

    site: Name
    epsilon: float = Field(ge=0, le=MAX_EPSILON)
    without: float = Field(ge=0, le=MAX_EPSILON)


class Evaluated(Section):
    """How good the adapter is, and what it cost to know.

    Attributes:
        scores: scores on the coordinator's own or public records, at no cost in privacy.
        looks: looks at the sites' held-out records, each through noise that the sites paid for.
        steps: the steps of the plan that all looks take together.
        prices: prices of the looks, for each site whose report states its steps.
    """

    scores: tuple[Scores, ...] = ()
    looks: tuple[Looked, ...] = ()
    steps: int = Field(0, ge=0)
    prices: tuple[Price, ...] = ()


class Facts(Section):
    """The content of ``dossier.json``, all of it the coordinator's word.

    Attributes:
        rounds: the completed rounds.
        settings: the digest of the federation file.
        adapter: file name → digest, for each of its files except the card.
        versions, software: those of the coordinator's process at the start; a site runs its own.
        written_by: the version of fedpriv that wrote the dossier.
    """

    format: Literal[1] = 1
    job: JobId
    name: str = Field(max_length=128)
    engine: str = Field(max_length=64)
    status: Literal["interrupted", "finished"]
    rounds: int = Field(ge=0)
    started: Moment
    finished: Moment | Day | None
    settings: Digest
    base: Digest
    model: str = Field(max_length=4096)
    task: str = Field(max_length=64)
    adapter: dict[str, Digest] = Field(min_length=1, max_length=100)
    proposal: Proposal
    versions: dict[str, str | None]
    software: dict[str, Installed]
    written_by: Installed
    sites: tuple[Participant, ...] = Field(max_length=MAX_FILES)
    evaluation: Evaluated


@dataclass(frozen=True)
class Contents:
    """The content of a dossier, before anything in it is believed.

    Attributes:
        reports: the sites' reports, by name; signatures are not checked.
        rows: the rows of the included ledgers, by site; their hashes follow one another.
    """

    facts: Facts
    reports: dict[str, BudgetReport]
    rows: dict[str, list[Row]]
    audit: Audit | None


def contents_of(files: Mapping[str, bytes], path: Path) -> Contents:
    """Read what the files of a dossier say. `answers.json` and the page are not read.

    Args:
        path: the dossier's path, for messages.

    Raises:
        ConfigError: a file is malformed; the error names the file and the key.
        LedgerError: rows of a ledger were edited, or some are missing.
        DossierError: files are missing, or some files belong to nothing.
    """
    facts = _parse(Facts, files, FACTS, path)
    expected = [PAGE, FACTS, ANSWERS, *([AUDIT] if AUDIT in files else [])]
    reports, rows = {}, {}
    if len({site.name for site in facts.sites}) < len(facts.sites):
        raise DossierError(f"{path}: {FACTS} names a site twice.")
    for site in facts.sites:
        if site.ledger and not site.report:
            raise DossierError(f"{path}: has rows of site {site.name}, and no report on them.")
        if site.report:
            expected.append(report_file(site.name))
            reports[site.name] = _report(files, expected[-1], path)
        if site.ledger:
            expected.append(ledger_file(site.name))
            rows[site.name] = _rows(files, expected[-1], path)
    if list(files) != expected:
        odd = sorted(set(files) ^ set(expected)) or ["an order of its own"]
        raise DossierError(f"{path}: its files are not those that it should have: {odd[0]}.")
    audit = _parse(Audit, files, AUDIT, path) if AUDIT in files else None
    return Contents(facts, reports, rows, audit)


def _parse(kind: type[Kind], files: Mapping[str, bytes], name: str, path: Path) -> Kind:
    if name not in files:
        raise DossierError(f"{path}: {name} is missing.")
    try:
        found = kind.model_validate_json(files[name], strict=True)
        json.loads(files[name], object_pairs_hook=each_once)
    except ValidationError as error:
        raise malformed(error, f"{path}, {name}") from None
    except (ValueError, RecursionError) as error:
        raise DossierError(f"{path}: {name} can be read in two ways ({error}).") from None
    return found


def _report(files: Mapping[str, bytes], name: str, path: Path) -> BudgetReport:
    report = _parse(BudgetReport, files, name, path)
    stated = [value for claim in claims_of(report) for value in claim[1:]]
    if not all(value <= MAX_EPSILON for value in stated):
        raise DossierError(f"{path}: {name} states an impossible ε.")
    return report


def _rows(files: Mapping[str, bytes], name: str, path: Path) -> list[Row]:
    if name not in files:
        raise DossierError(f"{path}: {name} is missing.")
    rows = exported_rows(files[name], path / name)
    if not rows:
        raise LedgerError(f"{path / name}: has no rows.")
    if canonical_export(rows) != files[name]:
        raise DossierError(f"{path}: {name} holds something beside the rows of a ledger.")
    return rows
