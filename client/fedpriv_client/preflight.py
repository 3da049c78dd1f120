"""Everything that can be found wrong before joining, one line each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedpriv.config.load import load_site
from fedpriv.config.site import SiteFile
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.process import is_running


@dataclass(frozen=True)
class Row:
    """One thing that was looked at.

    Attributes:
        ok: None if it could not be looked at.
        exit_code: of the error, if it is wrong.
    """

    what: str
    ok: bool | None
    found: str
    exit_code: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def preflight(config: Path, job: Path | None = None, *, offline: bool = False) -> list[Row]:
    """Look at everything that a site needs to take part, and at a job if one is given.

    The server is dialled and told goodbye. Nothing is committed, spent or changed.

    Args:
        job: a federation file, or a proposal as JSON.
        offline: leave the server alone.

    Raises:
        ConfigError: the site's file can't be read; there is nothing to look at then.
    """
    file = load_site(config)
    rows = [Row("site file", True, f"{file.site.name}, {config}")]
    running = is_running(file.site.state_dir)
    if running:
        text = "runs, so neither server nor ledger were asked: see fedpriv-client status"
        rows.append(Row("client", None, text))
    looks: list[tuple[str, Callable[[], str]]] = [("kit", lambda: _kit(file))]
    if not offline and not running:
        looks.append(("server", lambda: _server(file)))
    if not running:
        looks.append(("ledger", lambda: _ledger(file, config)))
    looks += [("records", lambda: _records(file)), ("model", lambda: _model(file))]
    rows += [_look(what, how) for what, how in looks]
    if job is not None:
        rows += _job(file, config, job)
    return rows


def _look(what: str, how: Callable[[], str]) -> Row:
    try:
        return Row(what, True, how())
    except FedprivError as error:
        return Row(what, False, str(error), error.exit_code)


def _kit(file: SiteFile) -> str:
    from fedpriv.pki.kit import read_kit
    from fedpriv_client.serve import identity

    identity(file)
    if file.server.plain:
        return "no TLS, on this machine only"
    server = file.server
    manifest = read_kit(
        server.kit, key=server.key, ca=server.ca, certificate=server.certificate
    ).manifest
    return (
        f"of {manifest.federation_name}, until {manifest.expires:%Y-%m-%d}; compare its authority"
        f" with the coordinator's, by telephone: {manifest.ca}"
    )


def _server(file: SiteFile) -> str:
    from fedpriv_client.serve import link_of

    link = link_of(file)
    try:
        link.connect()
    finally:
        link.close()
    return f"{file.server.address} is the kit's server and knows this site"


def _ledger(file: SiteFile, config: Path) -> str:
    from fedpriv.privacy.ledger import Ledger
    from fedpriv_client.settings import site_settings
    from fedpriv_client.site import check_terms

    settings = site_settings(file, config)
    with Ledger.open(settings.ledger, reading=True) as ledger:
        check_terms(settings.terms, ledger)
        return (
            f"ε = {ledger.epsilon_spent:.3f} spent, {ledger.epsilon_allocated:.3f} allocated of"
            f" {ledger.terms.budget:g} for life"
        )


def _records(file: SiteFile) -> str:
    from fedpriv.data import check_labels, read_records
    from fedpriv.files import private_folder

    state = private_folder(file.site.state_dir)
    with tempfile.TemporaryDirectory(dir=state, prefix="check-") as cache:
        records = read_records(
            file.data.path,
            file.data.columns,
            unit=file.data.unit,
            cache_dir=Path(cache),
            key="data.path",
        )
        if "label" in file.data.columns:
            check_labels(records, file.data.labels, file.data.path)
        return f"{len(records)} rows, readable; {file.data.size} units declared"


def _model(file: SiteFile) -> str:
    from fedpriv.models.base import digest_of

    found = digest_of(file.allow.model)
    if found != file.allow.model_digest:
        raise ConfigError(
            f"is not the digest of {file.allow.model!r}, which is {found}",
            key="allow.model_digest",
            value=file.allow.model_digest,
            fix="State the one that you mean to allow.",
        )
    return f"{file.allow.model}, {found}"


def _job(file: SiteFile, config: Path, job: Path) -> list[Row]:
    from fedpriv.training.worker import WorkerPool
    from fedpriv_client.check import check_proposal, read_proposal
    from fedpriv_client.settings import site_settings

    try:
        settings = site_settings(file, config)
        verdict = check_proposal(settings, read_proposal(job, settings), WorkerPool(1))
    except FedprivError as error:
        return [Row("job", False, str(error), error.exit_code)]
    rows = [Row("job", False, refusal, 4) for refusal in verdict.refusals]
    rows += [Row("job", None, text) for text in verdict.unchecked]
    if verdict.plan is not None and not verdict.refusals:
        plan = verdict.plan
        rows.append(
            Row(
                "job",
                True,
                f"{plan.steps} steps at rate {plan.sample_rate:g} with noise"
                f" {plan.noise_multiplier:.3f}: ε = {verdict.epsilon:.3f} by itself"
                + (
                    ""
                    if verdict.allocated is None
                    else f", {verdict.allocated:.3f} of {verdict.budget:g} with all before"
                ),
            )
        )
    return rows
