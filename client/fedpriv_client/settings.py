"""Turn a site's own file into the settings of a site of a network, whose ledger lasts."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from fedpriv.config.looks import held_out_units
from fedpriv.config.site_file import AllowSection, SiteFile
from fedpriv.errors import ConfigError, LedgerCorruptError, LedgerError
from fedpriv.pki.enrolment import Enrolment, read_enrolment
from fedpriv.privacy.ledger.ledger import Terms
from fedpriv.secure_sum.roster import Roster, accepted
from fedpriv.secure_sum.roster import read as read_roster
from fedpriv_client.limits import Limits
from fedpriv_client.site_settings import SiteSettings

# Limits that are keys of `[allow]`, with the same values.
SAME = {field.name for field in fields(Limits)} & {*AllowSection.model_fields} - {"max_basis"}


def site_settings(file: SiteFile, config_path: Path) -> SiteSettings:
    """Return the settings of the site that a file describes, with the ledger made for it.

    Args:
        config_path: path of the file, for messages.

    Raises:
        LedgerError: there is no ledger yet, or it is missing.
        ConfigError: there are several ledgers, and none is named.
    """
    found, stated = ledgers(file), file.data.dataset_id
    if stated is None and not found:
        check_no_ledger_is_missing(file)
        raise LedgerError(
            f"{file.site.state_dir}: holds no ledger yet. Make it, once:"
            f" fedpriv-client init --config {config_path}"
        )
    if stated is None and len(found) > 1:
        problem = "is missing, and this site has several ledgers"
        fix = f"State the one of these records: {', '.join(found)}."
        raise ConfigError(problem, file=config_path, key="data.dataset_id", fix=fix)
    return settings_of(file, stated or next(iter(found)))


def settings_of(file: SiteFile, dataset_id: str) -> SiteSettings:
    """Return the settings that a file describes, for a population's ledger, made or not."""
    allow, budget = file.allow, file.budget
    return SiteSettings(
        name=file.site.name,
        data=file.data.records,
        columns=file.data.columns,
        state_dir=file.site.state_dir,
        ledger=ledger_path(file, dataset_id),
        terms=terms_of(file, dataset_id),
        limits=Limits(
            per_job=budget.per_job,
            per_job_alone=budget.per_job_alone,
            base_digest=allow.model_digest,
            labels=file.data.labels,
            ticks=file.site.ticks and file.compute.devices == 1,
            held_out=held_out_units(file.data.held_out, file.data.size, file.data.held_out_size),
            roster=roster_of(file),
            **{key: value for key, value in allow if key in SAME},
            max_basis=int(allow.max_basis * 1e9),
        ),
        compute=file.compute,
        lasting=True,
        witness=budget.witness,
        model=allow.model,
        begin=allow.begin,
        held_out=file.data.held_out,
        transform=file.data.transform,
        server=file.server.address,
        authority=None if file.server.plain else file.server.ca,
        ask=allow.approve == "ask",
        approvers=allow.approvers,
        approvals=allow.approvals,
        max_empty=file.data.max_empty,
        preparation=file.site.preparation,
    )


def terms_of(file: SiteFile, dataset_id: str) -> Terms:
    """Return the terms that a file states for a population's ledger. They are never simulated.

    Raises:
        LedgerError: the terms promise nothing, or no plan could keep to them.
    """
    return Terms(
        dataset_id=dataset_id,
        declared_size=file.data.size,
        unit=file.data.unit,
        max_records_per_unit=file.data.max_records_per_unit,
        delta=file.budget.delta,
        budget=file.budget.epsilon,
        simulated=False,
        witnessed=file.budget.witness is not None,
        rule=file.budget.new_rule(),
        budget_alone=file.budget.epsilon_alone,
    )


def ledger_path(file: SiteFile, dataset_id: str) -> Path:
    """Return the path of a population's ledger."""
    return file.site.state_dir / "ledgers" / f"{dataset_id}.db"


def ledgers(file: SiteFile) -> dict[str, Path]:
    """Return every ledger of the site, by its dataset id."""
    found = sorted((file.site.state_dir / "ledgers").glob("*.db"))
    return {path.stem: path for path in found if re.fullmatch(r"[0-9a-f]{32}", path.stem)}


def check_no_ledger_is_missing(file: SiteFile) -> None:
    """Check that a site without a ledger never had one.

    Raises:
        LedgerCorruptError: it had one. A new one would be a fresh budget for the same people.
    """
    traces = [file.site.state_dir / name for name in ("budget.json", "ledgers/units.db")]
    left = next((path for path in traces if path.exists()), None)
    if left is not None:
        raise LedgerCorruptError(
            f"{left}: was written from a ledger that is missing. Restore its newest copy; a new"
            " one would be a fresh budget for the same people."
        )


def accepted_path(file: SiteFile) -> Path:
    """Return the path of the accepted roster that follows the one in the site's file."""
    return file.site.state_dir / "roster.json"


def roster_of(file: SiteFile) -> Roster | None:
    """Read the roster of the sites for secure sums, whose keys the administrator compared.

    Raises:
        ConfigError: the file is not the one whose digest is stated, or this site is not in it.
    """
    section = file.secure_sum
    if section is None:
        return None
    roster = accepted(accepted_path(file), read_roster(section.roster, section.digest))
    if roster.key_of(file.site.name) is None:
        problem = f"does not name this site, {file.site.name!r}"
        fix = "Send the coordinator this site's entry: fedpriv-client roster-entry."
        raise ConfigError(problem, file=section.roster, key="secure_sum.roster", fix=fix)
    return roster


def enrolment_of(file: SiteFile) -> Enrolment:
    """Read and check the enrolment of a site that does not use plain HTTP.

    Raises:
        EnrolmentError: as `read_enrolment`.
    """
    server = file.server
    return read_enrolment(
        server.enrolment, key=server.key, ca=server.ca, certificate=server.certificate
    )
