"""What the administrator of a site has set, and where the site keeps its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedpriv.config.sources import Source
from fedpriv.config.task import Task
from fedpriv.data.spec import DataSpec
from fedpriv.errors import LimitError
from fedpriv.models.config import ModelSection
from fedpriv.privacy import usual
from fedpriv.privacy.ledger.terms import Terms
from fedpriv.private_training.config import ComputeSection
from fedpriv.protocol import Proposal
from fedpriv_client.limits import Limits

SIGNING_KEY, REPORT = "report.key", "budget.json"  # in the site's folder


@dataclass(frozen=True)
class SiteSettings:
    """Hold what the administrator of a site has set.

    Attributes:
        data: file, folder or dataset name of the records, or the table that describes them.
        columns: the records' column for each field.
        state_dir: a private folder for the site's key and data cache, and by default for all else.
        ledger: path of the ledger. The ledgers of one folder are one site's: no unit may be in two
            of them.
        terms: what the ledger is about. In a simulation its dataset id, budget and rule are for a
            new ledger.
        lasting: whether the ledger outlives the job. Then it was made beforehand, with a budget for
            life; else it is made at first use.
        witness: file on another disk that is told of every row of the ledger.
        model: the model to load, whatever the server calls it; None, in a simulation, takes the one
            that the proposal names.
        begin: the adapter that a job may begin at, if `model` is not None.
        held_out: records that no job trains on: a file of further ones, or a share of the units.
        transform: the function that every text goes through, ``package.module:function``.
        server: host:port from which proposals come; None in a simulation, which keeps none of them.
        authority: file of the certificate that vouches for the coordinator; None without TLS.
        ask: whether a job waits until `approvals` persons have approved its proposal.
        approvers: the names of those who may approve; if empty, all who can give orders.
        report_folder: the folder for the newest report, to be handed on; None for `state_dir`.
        max_empty: the largest share of the records that may give no example.
        preparation: seconds until the records are ready for a proposal, if there are ticks.
    """

    name: str
    data: Source
    columns: Mapping[str, str]
    state_dir: Path
    ledger: Path
    terms: Terms
    limits: Limits
    compute: ComputeSection
    lasting: bool = False
    witness: Path | None = None
    model: str | None = None
    begin: str | None = None
    held_out: Path | float | None = None
    transform: str | None = None
    server: str | None = None
    authority: Path | None = None
    ask: bool = False
    approvers: tuple[str, ...] = ()
    approvals: int = 1
    report_folder: Path | None = None
    max_empty: float = usual.MAX_EMPTY
    preparation: float | None = None

    def spec_of(self, model: ModelSection) -> DataSpec:
        """Return how the records are prepared for the model of a job."""
        limit = self.terms.max_records_per_unit
        return DataSpec.of(self.columns, model, unit=self.terms.unit, max_records_per_unit=limit)

    @property
    def longest(self) -> DataSpec:
        """Return how the records are prepared for the longest examples that the site allows."""
        task: Task = "classification" if "label" in self.columns else "causal-lm"
        limits, unit, most = self.limits, self.terms.unit, self.terms.max_records_per_unit
        return DataSpec(self.columns, task, limits.labels, limits.max_length, unit, most)

    def check_fields(self, proposal: Proposal) -> None:
        """Check that the records have the fields that a job needs, and no others.

        Raises:
            LimitError: the fields differ.
        """
        if set(proposal.fields) != set(self.columns):
            needed = f"data.columns: the job needs {', '.join(sorted(proposal.fields))}"
            here = f"; this site has {', '.join(sorted(self.columns))}."
            raise LimitError(needed + here, "columns")

    @property
    def report(self) -> Path:
        """Return the path of the newest report, from any of the ledgers."""
        return (self.report_folder or self.state_dir) / REPORT


def cache_folder(state_dir: Path) -> Path:
    """Return the folder for clear text of records while a site is open. Opening empties it."""
    return state_dir / "cache"


def work_folder(state_dir: Path) -> Path:
    """Return the folder of what a site computes for itself, while no client runs."""
    return state_dir / "personal-work"


def adapters_folder(state_dir: Path) -> Path:
    """Return the folder with the adapters of finished jobs, each in a folder of its job's name.

    Adapters that the site trains for itself are elsewhere: see `fedpriv.serving.folder`.
    """
    return state_dir / "adapters"


def last_report(settings: SiteSettings, dataset_id: str) -> Path:
    """Return the path of the newest report from a ledger, to compare the ledger with.

    Each ledger of a folder has its own report, because the report of one says nothing about
    another. If many runs use a ledger, the report is beside it, where the next run finds it.
    """
    if not settings.terms.simulated:
        return settings.state_dir / "reports" / f"{dataset_id}.json"
    if settings.lasting:
        return settings.ledger.resolve().parent / "reports" / f"{dataset_id}.json"
    return settings.report
