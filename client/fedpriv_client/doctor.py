"""Check one by one what a site needs to take part, and what it would answer to a job."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from fedpriv.config.load import load_site
from fedpriv.config.site_file import SiteFile
from fedpriv.config.sources import where
from fedpriv.data.held_out import OwnRecords
from fedpriv.data.read import UNIT
from fedpriv.data.transform import find_transform, remembers
from fedpriv.doctor import machine, memory
from fedpriv.doctor.finding import DoubtError, Finding, look
from fedpriv.errors import ConfigError, FedprivError, LedgerError
from fedpriv.files import private_folder
from fedpriv.metrics import HOST
from fedpriv.models.config import ModelSection
from fedpriv.models.stored import digest_of, digests_of_use
from fedpriv.pki.certificates import SOON
from fedpriv.pki.points import in_groups
from fedpriv.process import is_running
from fedpriv.report.figures import upper
from fedpriv.stored_adapter import find_adapter
from fedpriv_client.disk_space import disk_space_needed
from fedpriv_client.roster_entry import own_key
from fedpriv_client.settings import enrolment_of, settings_of, site_settings
from fedpriv_client.site_ledger import open_ledger
from fedpriv_client.site_settings import cache_folder, work_folder
from fedpriv_client.undo_init import LOG, last_undone

FAR = 10  # a declared size this many times too large or too small is a mistake


def examine(config: Path, job: Path | None = None, *, offline: bool = False) -> Iterator[Finding]:
    """Check everything that a site needs to take part, and a job if one is given.

    The site connects to the server and says goodbye. Nothing is committed or spent. If the site's
    folder is missing, it is made, for its owner alone, because records are read into it for a
    moment.

    Args:
        job: a federation file.
        offline: don't connect to the server.

    Raises:
        ConfigError: the site's file can't be read, so there is nothing to check.
    """
    file = load_site(config)
    yield Finding("site file", True, f"{file.site.name}, {config}")
    yield look("packages", machine.packages)
    yield look("device", lambda: machine.device(file.compute))
    yield look("clock", machine.clock)
    site, running = file.site, is_running(file.site.state_dir)
    if running:
        text = "is running, so server and ledger were not checked: see fedpriv-client status"
        yield Finding("client", None, text)
    yield from _undone(file)
    stopped = not running
    metrics = None if site.metrics_port is None else f"{HOST}:{site.metrics_port}"
    ports = {"site.health": site.health, "site.metrics_port": metrics}
    looks: list[tuple[str, Callable[[], str], bool]] = [
        ("enrolment", lambda: _enrolment(file), True),
        ("server", lambda: _server(file), stopped and not offline),
        ("signing key", lambda: _signing_key(file), True),
        ("ledger", lambda: _ledger(file, config), stopped),
        *(("port", partial(machine.port, at, key), stopped) for key, at in ports.items() if at),
        ("disk", lambda: _disk(file, running=running), True),  # before the records are read into it
        ("records", lambda: _records(file), True),
        ("transform", lambda: _transform(file), file.data.transform is not None),
        ("model", lambda: _model(file), True),
        ("number format", lambda: _number_format(file), file.compute.is_halved),
        ("memory", lambda: memory.weights(file.allow.model, file.compute), True),
    ]
    fits = True
    for what, how, is_wanted in looks:
        if is_wanted:
            found = look(what, how)
            fits = found.ok is not False
            yield found
    yield from _own_models(file)
    if job is not None:
        yield from _job(file, config, job, load=fits)


def _undone(file: SiteFile) -> Iterator[Finding]:
    """Say that a ledger of this site was undone, as long as the site's folder exists."""
    if row := last_undone(file.site.state_dir):
        text = f"one of ε = {row['budget']:g} for life, on {row['at']}: {file.site.state_dir / LOG}"
        yield Finding("undone ledgers", None, text)


def _own_models(file: SiteFile) -> Iterator[Finding]:
    """Say where there are adapters that were trained on the site's records without privacy."""
    from fedpriv.serving.folder import site_models
    from fedpriv_client.own import own_cache

    state = file.site.state_dir
    folders = (site_models(state), state / "personal", state / "alone")  # two of older versions
    made = (path for folder in folders for path in sorted(folder.glob("*")))
    if places := ", ".join(str(path) for path in made if path.is_dir()):
        text = f"{places}: trained on this site's records without privacy: not to leave this house"
        yield Finding("own models", True, text)
    cache = own_cache(state)
    if cache.exists() and (is_running(state) or not is_running(work_folder(state))):
        left = f"{cache}: holds clear text of records, left by a command that was killed"
        again = "Remove it, or run fedpriv-client personalise or evaluate again"
        yield Finding("own models", None, f"{left}. {again}")


def _enrolment(file: SiteFile) -> str:
    from fedpriv_client.serve import identity

    identity(file)
    if file.server.plain:
        return "no TLS, on this machine only"
    manifest = enrolment_of(file).manifest
    until = f"of {manifest.federation_name}, until {manifest.expires:%Y-%m-%d}"
    if manifest.expires - datetime.now(UTC) < SOON:
        raise DoubtError(f"{until}. Ask the coordinator for a new one")
    authority = in_groups(manifest.ca)
    return f"{until}; compare its authority with the coordinator's, by telephone: {authority}"


def _server(file: SiteFile) -> str:
    from fedpriv_client.serve import connection_of

    with closing(connection_of(file)) as connection:
        connection.connect()
    return f"{file.server.address} is the enrolment's server and knows this site"


def _signing_key(file: SiteFile) -> str:
    key = own_key(file)
    none = "none yet; the client makes one when it starts"
    return none if key is None else f"{key} signs the budget reports"


def _ledger(file: SiteFile, config: Path) -> str:
    witness = file.budget.witness
    if witness is not None and witness.exists() and not os.access(witness, os.W_OK):
        problem = "can't be written to by this user"
        fix = "Let this user write to it: it is told of every row before anything leaves."
        raise ConfigError(problem, file=config, key="budget.witness", value=str(witness), fix=fix)
    with open_ledger(site_settings(file, config), reading=True) as ledger:
        if ledger.terms.witnessed and witness is None:  # only a reader may leave it out
            raise LedgerError(
                f"{ledger.path}: was made with a witness, and the site's file names none. Put the"
                " line back: witness under [budget], with the same file as before."
            )
        spent, allocated = ledger.epsilon_spent, ledger.epsilon_allocated
        budget = ledger.terms.budget
        return f"ε = {upper(spent)} spent, {upper(allocated)} allocated of {budget:g} for life"


def _records(file: SiteFile) -> str:
    from fedpriv_client.own_records import check_examples, read_records

    private_folder(file.site.state_dir)
    kept = private_folder(cache_folder(file.site.state_dir))  # the site clears it after a kill
    with tempfile.TemporaryDirectory(dir=kept, prefix="doctor-") as cache:
        settings = settings_of(file, file.data.dataset_id or "")
        own = read_records(settings, Path(cache))
        found = f"{len(own.training) + len(own.held_out)} rows, readable"
        tally = check_examples(settings, own)
        found = f"{found}; {file.data.size} units declared"
        doubts = [*([] if tally.is_whole else [tally.told]), *_population(file, own)]
        most = file.data.max_records_per_unit
        owners = [] if file.data.unit == "record" else own.training[UNIT]
        if over := len(owners) - sum(min(most, count) for count in Counter(owners).values()):
            doubts.append(f"{over} come after data.max_records_per_unit = {most} of their unit")
    if doubts:
        raise DoubtError("; ".join([found, *doubts]))
    return found


def _population(file: SiteFile, own: OwnRecords) -> Iterator[str]:
    """Say if the declared size is wrong by more than a factor of ten.

    Privacy:
        Shown only on the administrator's own screen. No file holds it.
    """
    unit, parts = file.data.unit, own.as_read
    units = sum(len(part if unit == "record" else set(part[UNIT])) for part in parts)
    size = file.data.size
    if size > FAR * units or units > FAR * size:
        yield f"the declared size is far {'above' if size > units else 'below'} what is here"


def _transform(file: SiteFile) -> str:
    """Try on made-up texts the transform that every text goes through."""
    name = str(file.data.transform)
    transform = find_transform(name, "data.transform")
    try:
        differs = remembers(transform)
    except Exception as error:
        problem = f"fails on a made-up text ({type(error).__name__})"
        fix = "A text that it fails on contributes nothing; run it by hand to see why."
        raise ConfigError(problem, key="data.transform", value=name, fix=fix) from None
    if differs:
        raise DoubtError(
            f"{name} gives another result for the same text later. That is fine by chance; if it"
            " remembers other texts, one person's records change another's, and the claim is lost"
        )
    return f"{name}, the same whatever came before"


def _model(file: SiteFile) -> str:
    allow, told = file.allow, []
    found = [("model", allow.model, digests_of_use(digest_of(allow.model)))]
    if allow.begin is not None:
        found.append(("begin", allow.begin, (find_adapter(allow.begin).digest,)))
    for key, name, digests in found:
        if (stated := getattr(allow, f"{key}_digest")) not in digests:
            problem = f"is not the digest of {name!r}, which is {digests[0]}"
            fix = "State the digest that you mean to allow."
            raise ConfigError(problem, key=f"allow.{key}_digest", value=stated, fix=fix)
        told.append(f"{name}, {digests[0]}")
    return "; begins at ".join(told)


def _disk(file: SiteFile, *, running: bool) -> str:
    """Check the disk space for the records of an open site, and for all that its limits allow."""
    folder, path = file.site.state_dir, Path(where(file.data.records))
    if running:  # the client has reserved what it needs
        return machine.disk(folder, 0, "site.state_dir")
    settings = settings_of(file, file.data.dataset_id or "")
    cached = path.stat().st_size if path.is_file() else 0
    cached *= 1 if file.data.transform is None else 2  # the transformed records are another copy
    units = file.data.size + (settings.limits.held_out or 0) * file.allow.evaluation
    needed = cached + sum(disk_space_needed(settings, units))
    return machine.disk(folder, needed, "site.state_dir")


def _number_format(file: SiteFile) -> str:
    name, labels = file.allow.model, file.data.labels
    if not labels:
        return machine.number_format(ModelSection(name=name), file.compute)
    model = ModelSection(name=name, task="classification", labels=labels)
    return machine.number_format(model, file.compute)


def _job(file: SiteFile, config: Path, job: Path, *, load: bool) -> Iterator[Finding]:
    from fedpriv.private_training.pool import WorkerPool
    from fedpriv_client.check import check_proposal, read_proposal

    try:
        settings = site_settings(file, config)
        pool = WorkerPool(1) if load else None
        yield from check_proposal(settings, read_proposal(job, settings), pool)
    except FedprivError as error:
        yield Finding("job", False, str(error), error.exit_code)
