"""Make the dossier of a run directory, and read it back as a stranger would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpriv.adapter_facts import AdapterFacts, read_facts
from fedpriv.base_model import FACTS as ADAPTER_FACTS
from fedpriv.dossier.adapter import adapter_digests
from fedpriv.dossier.answers import answers_of
from fedpriv.dossier.facts import (
    ANSWERS,
    AUDIT,
    FACTS,
    PAGE,
    Evaluated,
    Facts,
    Looked,
    Participant,
    Scores,
    contents_of,
    json_of,
    ledger_file,
    report_file,
)
from fedpriv.dossier.findings import Finding
from fedpriv.dossier.package import pack, unpack
from fedpriv.dossier.page import page_of
from fedpriv.dossier.prices import prices
from fedpriv.dossier.verify import Given, verify_package
from fedpriv.errors import ConfigError, RunError
from fedpriv.files import write_atomic
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.protocol import Proposal
from fedpriv.report.ledger_export import canonical_export, exported_rows, is_export
from fedpriv.report.rundir import Evaluation, RunDirectory, finite, read_run
from fedpriv.software import software


def export_run(
    run: Path, out: Path, key: Ed25519PrivateKey, ledgers: Mapping[str, Path] | None = None
) -> list[Finding]:
    """Write `out`, and beside it its page for people to read, with the ending ``.html``.

    A dossier that does not hold is never written. It is checked first, as `fedpriv verify` does,
    but with our own accountant alone.

    Args:
        run, ledgers: as in `files_of`.
        key: the coordinator's private key.

    Returns:
        The findings of that check.

    Raises:
        FedprivError: as in `files_of`; or the run's own reports and ledgers contradict each other.
    """
    page = out.with_suffix(".html")
    if page == out:
        raise ConfigError(
            "is the name that its page gets",
            key="--out",
            value=str(out),
            fix="Name it *.zip, for example.",
        )
    content = pack(files_of(run, ledgers), key)
    package = unpack(content, out)
    found = list(verify_package(package, out, Given(adapter=run / "adapter", third=None)))
    write_atomic(out, content)
    write_atomic(page, package.files[PAGE])
    return found


def files_of(run: Path, ledgers: Mapping[str, Path] | None = None) -> dict[str, bytes]:
    """Return the files of the dossier of a run, in their order.

    Args:
        run: a run directory whose job has ended, of a simulation or over the network.
        ledgers: site → its ledger, or what ``fedpriv ledger export`` wrote. The ledgers of a
            simulation are found in the run directory, unless they outlive the run.

    Raises:
        RunError: it is no such directory, or its run promises nothing (NOT PRIVATE).
        ConfigError: a file in it is malformed, or a ledger belongs to no site with a report.
        LedgerError: a ledger can't be read.

    Privacy:
        Reads nothing below the run's folder ``private``.
    """
    directory = read_run(run)
    _check_is_of_use(run, directory)
    adapter = _adapter_facts(run / "adapter")
    exports = _exports(run, directory, ledgers or {})
    facts = _facts(run, directory, adapter, exports)
    files = {PAGE: b"", FACTS: json_of(facts), ANSWERS: b""}
    if (run / AUDIT).exists():
        files[AUDIT] = (run / AUDIT).read_bytes()
    reports = {report.site: report for report in directory.reports}
    for site in facts.sites:
        if site.report:
            files[report_file(site.name)] = json_of(reports[site.name])
        if site.ledger:
            files[ledger_file(site.name)] = exports[site.name]
    contents = contents_of(files, run)
    files[ANSWERS] = answers_of(contents)
    files[PAGE] = page_of(contents)
    return files


def _check_is_of_use(run: Path, directory: RunDirectory) -> None:
    if directory.run.status == "running":
        raise RunError(
            f"{run}: the job is still running, and its ledgers go on. Wait for its end, or stop it."
        )
    if not directory.run.private or not all(report.private for report in directory.reports):
        raise RunError(
            f"{run}: was NOT PRIVATE, so there is no claim that a dossier could show. Run it"
            " without --insecure-seed."
        )


def _adapter_facts(folder: Path) -> AdapterFacts:
    """Read the facts of a run's adapter.

    Raises:
        ConfigError: there is no adapter that a dossier can be about, or it was changed.
    """
    facts = read_facts(folder)
    if facts.kind != "federated":
        problem = "is made of one site's own records, without noise"
        fix = "It must not be handed on, and a dossier does not change that."
        raise ConfigError(
            problem, file=folder / ADAPTER_FACTS, key="kind", value=facts.kind, fix=fix
        )
    return facts


def _exports(run: Path, directory: RunDirectory, given: Mapping[str, Path]) -> dict[str, bytes]:
    """Return the rows of each available ledger, in the form of ``fedpriv ledger export``."""
    reports = {report.site: report for report in directory.reports}
    for name in given.keys() - reports.keys():
        problem = "is of no site that has a budget report in this run"
        fix = f"There are reports of {', '.join(reports) or 'nobody'}."
        raise ConfigError(problem, key="--ledger", value=name, fix=fix)
    found = {}
    for name in reports:
        path = given.get(name, run / "sites" / name / "ledger.db")
        if name in given or path.exists():
            found[name] = _export(path)
    return found


def _export(path: Path) -> bytes:
    if not is_export(path):
        with Ledger.open(path, reading=True) as ledger:
            return canonical_export(ledger.rows())
    return canonical_export(exported_rows(path.read_bytes(), path))


def _facts(
    run: Path, directory: RunDirectory, adapter: AdapterFacts, exports: Mapping[str, bytes]
) -> Facts:
    info = directory.run
    return Facts(
        job=info.job_id,
        name=info.job.name,
        engine=info.job.engine,
        status="finished" if info.status == "finished" else "interrupted",
        rounds=len(directory.rounds),
        started=info.started,
        finished=info.finished,
        settings=info.config_digest,
        base=info.model.digest,
        model=info.model.name,
        task=info.model.task,
        adapter=adapter_digests(run / "adapter"),
        proposal=adapter.proposal,
        versions=info.versions,
        software=info.software,
        written_by=software()["fedpriv"],
        sites=_participants(directory, exports),
        evaluation=_evaluated(directory, adapter.proposal),
    )


def _participants(directory: RunDirectory, exports: Mapping[str, bytes]) -> tuple[Participant, ...]:
    reported = {report.site for report in directory.reports}
    looks = [row.held_out for row in directory.rounds if row.held_out is not None]
    return tuple(
        Participant(
            name=name,
            rounds=sum(
                name in row.sites and row.sites[name].status == "ok" for row in directory.rounds
            ),
            looks=sum(name in look.sites and look.sites[name].status == "ok" for look in looks),
            report=name in reported,
            ledger=name in exports,
        )
        for name in directory.site_names
    )


def _evaluated(directory: RunDirectory, proposal: Proposal) -> Evaluated:
    before = directory.run.baseline
    rows = [] if before is None else [_scores(0, before)]
    rows += [_scores(row.round, row) for row in directory.rounds if row.eval_loss is not None]
    return Evaluated(
        scores=tuple(rows),
        looks=tuple(
            Looked(round=row.round, found=row.held_out)
            for row in directory.rounds
            if row.held_out is not None
        ),
        steps=proposal.steps - proposal.training_steps,
        prices=tuple(prices(proposal, {one.site: one for one in directory.reports})),
    )


def _scores(number: int, found: Evaluation) -> Scores:
    scores = {
        name: getattr(found, f"eval_{name}") for name in Scores.model_fields if name != "round"
    }
    return Scores(round=number, **{k: v for k, v in scores.items() if finite(v)})
