"""Look, one by one, at the things that a coordinator's machine needs to run a job."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from fedpriv.config.job import JobConfig
from fedpriv.config.load import load_job
from fedpriv.config.server import ServerSection
from fedpriv.data.population import SHOWN, tally_records
from fedpriv.doctor import machine, memory
from fedpriv.doctor.finding import DoubtError, Finding, look
from fedpriv.doctor.studies import advice
from fedpriv.errors import ConfigError, EnrolmentError
from fedpriv.methods.proposal import job_recipe
from fedpriv.metrics import HOST
from fedpriv.models.base import Base
from fedpriv.models.vector import TrainableVector
from fedpriv.pki.certificates import SOON, load_certificate
from fedpriv.pki.keys import is_encrypted
from fedpriv.private_training.pool import load_model, with_gradients
from fedpriv.private_training.worker import Worker
from fedpriv_server.consortium import roster_of
from fedpriv_server.evaluation import evaluation_records
from fedpriv_server.listen import checked_certificate
from fedpriv_server.own_records import read_site, spec_of
from fedpriv_server.provision import server_names
from fedpriv_server.site_keys import SiteKeys

# Trained vectors in a run directory: the present one, a checkpoint and its successor with moments.
_VECTORS = 6
RUNS = Path("runs")


def examine(source: Path, job: Path | None = None, *, offline: bool = False) -> Iterator[Finding]:
    """Look at everything that a federation file needs on this machine. Nothing is changed.

    Args:
        job: a job for a site to try. It is refused here, as a federation file is itself a job.
        offline: meant for a site's file. It has no effect here, where nobody is dialled.

    Raises:
        ConfigError: the file can't be read, so there is nothing to look at; or a job was given.
    """
    if job is not None:
        raise ConfigError(
            "is for a site's file", key="--job", value=str(job), fix=f"{source} is a job itself."
        )
    config = load_job(source)
    server = config.server
    engine, sites = config.job.engine, len(config.sites)
    about = f"{config.job.name}, {sites} sites, engine {engine}, {source}"
    yield Finding("federation", True, about)
    yield from (Finding("method", None, said) for said in advice(config))
    yield look("packages", machine.packages)
    yield look("device", lambda: machine.device(config.compute))
    yield look("clock", machine.clock)
    looks: list[tuple[str, Callable[[], str]]] = []
    if server is not None and engine == "network":
        authority = server.pki / "ca.key"
        metrics = None if server.metrics_port is None else f"{HOST}:{server.metrics_port}"
        ports = {"listen": server.bound, "health": server.health, "metrics_port": metrics}
        looks += [
            ("certificate", lambda: _certificate(server)),
            *([("ca.key", lambda: _in_clear(authority))] if authority.exists() else []),
            ("sites", lambda: _sites(config, server)),
            *([("roster", lambda: _roster(config))] if config.privacy.roster is not None else []),
            *(("port", partial(_port, at, f"server.{key}")) for key, at in ports.items() if at),
        ]
    model, compute = config.model, config.compute
    if compute.is_halved:
        looks.append(("number format", lambda: machine.number_format(model, compute)))
    looks.append(("memory", lambda: memory.weights(model.name, compute, model.quantize)))
    for what, how in looks:
        seen = look(what, how)
        yield seen
    # A model that does not fit into memory, the last thing looked at, is not loaded.
    trained, found = (0, []) if seen.ok is False else _model(config)
    yield from found
    needed = (_VECTORS + sites) * 4 * trained
    yield look("disk", lambda: machine.disk(RUNS, needed, "--out"))


def _in_clear(authority: Path) -> str:
    """Raise DoubtError if the authority's key is on a server's machine without a passphrase."""
    if is_encrypted(authority.read_bytes()):
        return f"{authority} is under a passphrase"
    raise DoubtError(
        f"{authority} is here unencrypted, and anyone who reads it can act as the coordinator. Only"
        " provision needs it: fedpriv provision FILE --encrypt-ca, or keep it on another machine"
    )


def _certificate(server: ServerSection) -> str:
    found = checked_certificate(server)
    if found.names != server_names(server):
        raise EnrolmentError(
            f"{server.pki / 'server.crt'}: is for {', '.join(found.names)}, and sites dial"
            f" {server.address}. Type: fedpriv provision federation.toml"
        )
    now, end = datetime.now(UTC), load_certificate(server.pki / "ca.crt").not_valid_after_utc
    text = f"for {', '.join(found.names)}, until {found.expires:%Y-%m-%d}"
    if found.expires < min(now + SOON, end):  # it can't outlast the authority
        raise DoubtError(f"{text}. Type: fedpriv provision federation.toml --renew server")
    if end - now < 12 * SOON:
        raise DoubtError(
            f"{text}. The authority ends on {end:%Y-%m-%d}, and all certificates with it: provision"
            " into a new folder before then"
        )
    return text


def _port(address: str, key: str) -> str:
    """Raise DoubtError if the port is taken. Perhaps this federation's own server has it."""
    try:
        return machine.port(address, key)
    except ConfigError as error:
        if error.fix != machine.TAKEN:
            raise
        raise DoubtError(f"{error} If the coordinator itself is running, this is fine.") from None


def _sites(config: JobConfig, server: ServerSection) -> str:
    """Raise EnrolmentError if a site can't take part.

    Raise DoubtError if a site still waits for approval, or a certificate ends soon.
    """
    known, now = SiteKeys.read(server.pki / "sites.json").sites, datetime.now(UTC)
    stands = {
        name: known[name].status(now) if name in known else "not provisioned"
        for name in (site.name for site in config.sites)
    }
    shown = ", ".join(f"{name}: {status}" for name, status in stands.items())
    advice = {
        "not provisioned": "Type: fedpriv provision federation.toml",
        "expired": "Type: fedpriv provision federation.toml --renew NAME",
        "revoked": "Take it out of the file, or renew it with a new key.",
    }
    for status, what in advice.items():
        if status in stands.values():
            raise EnrolmentError(f"{shown}. {what}")
    if "waiting" in stands.values():
        raise DoubtError(f"{shown}. Approve its request: fedpriv provision FILE --approve REQUEST")
    expires = {name: known[name].expires for name in stands}
    soon = [name for name, when in expires.items() if when is not None and when - now < SOON]
    if soon:
        raise DoubtError(f"{shown}; renew within 30 days: {', '.join(soon)}")
    return shown


def _roster(config: JobConfig) -> str:
    """Raise ConfigError for a roster that can't be read, or that names other sites."""
    roster, most = roster_of(config.privacy.roster, config.sites), config.max_colluding
    assert roster is not None
    return (
        f"{len(roster)} sites, of which at most {most} may work with the server; each site's file"
        f" has to name this digest: {roster.digest}"
    )


def _records(config: JobConfig, tokenizer: Any) -> str:
    """Check that the sites of a simulation have something to learn from.

    Raises:
        DataError: the records of a site can't be used, or too few of them give an example.
        DoubtError: some records give no example.
    """
    spec, count, told = spec_of(config), 0, []
    for site in config.sites:
        with tempfile.TemporaryDirectory() as cache:
            own = read_site(site, spec, Path(cache))
            tally = tally_records(own.training, spec, tokenizer, rows=own.rows)
            key = f"sites.{site.name}.data"
            tally.check(config.data.max_empty, key=key, limit="data.max_empty")
            count += len(own.training) + len(own.held_out)
        if not tally.is_whole:
            told.append(f"{site.name}: {tally.told}")
    found = f"{count} at {len(config.sites)} sites, readable"
    if told:
        more = [f"Further sites like that: {len(told) - SHOWN}"] if len(told) > SHOWN else []
        raise DoubtError(". ".join([found, *told[:SHOWN], *more]))
    return found


def _model(config: JobConfig) -> tuple[int, list[Finding]]:
    """Return how many parameters are trained (0 if the model can't be loaded), and the findings."""
    recipe = job_recipe(config)
    loaded: list[tuple[Base, Any]] = []
    workers: list[Worker] = []

    def load() -> str:
        base, model = load_model(recipe)
        loaded.append((base, model))
        return f"{config.model.name}, {base.digest}"

    def private() -> str:
        worker = with_gradients(recipe, *loaded[0])
        workers.append(worker)
        return f"{worker.vector.size:,} trained; each record's gradient is its own"

    def records() -> str:
        reported, tuning = evaluation_records(config, loaded[0][0].tokenizer)
        apart = f", {len(tuning)} to choose settings by" if tuning else ""
        return f"{len(reported)} examples{apart}"

    findings = [look("model", load)]
    if not loaded:
        return 0, findings
    base, model = loaded[0]
    findings += [look("privacy", private), look("evaluation", records)]
    if config.job.engine != "network":
        findings.append(look("records", lambda: _records(config, base.tokenizer)))
        if workers:
            findings.append(look("step", lambda: memory.step(workers[0])))
    return TrainableVector(model).size, findings
