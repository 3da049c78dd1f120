"""How `personalise` and `evaluate` begin: they read the records for the site alone.

They may run beside the site's process: no ledger is opened and no server is dialled.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedpriv.adapter_facts import AdapterFacts, read_facts
from fedpriv.base_model import FACTS, WEIGHTS
from fedpriv.config.site_file import SiteFile
from fedpriv.config.sources import OtherSource, Source, where
from fedpriv.data.held_out import OwnRecords
from fedpriv.data.spec import DataSpec
from fedpriv.errors import ConfigError, DataError, FedprivError
from fedpriv.files import private_folder
from fedpriv.models.base import fetch_base
from fedpriv.names import OWN_KINDS
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import Worker
from fedpriv.process import is_running, only_process
from fedpriv.serving.folder import site_models
from fedpriv_client.disk_space import megabytes
from fedpriv_client.own_records import read_records
from fedpriv_client.settings import site_settings
from fedpriv_client.site_job import check_loaded, recipe_of
from fedpriv_client.site_settings import SiteSettings, adapters_folder

PLAIN = (".jsonl", ".json", ".csv", ".tsv")  # about as large as the copies of them
COPIES, SLACK = 2, 1 << 20  # times a file's size for its copy; bytes beside an adapter's weights
ADAPTERS = 2 * (len(OWN_KINDS) + 1)  # each is in the site model, and in a folder of its own before


@dataclass(frozen=True)
class Federated:
    """Hold the adapter of a job, which the site may use.

    Attributes:
        folder: where the adapter is.
        spec: how the site's records are prepared for the job.
    """

    folder: Path
    facts: AdapterFacts
    settings: SiteSettings
    spec: DataSpec


def federated(file: SiteFile, config: Path, adapter: Path | None) -> Federated:
    """Return the adapter that was asked for, or the newest that a server handed over.

    Raises:
        ConfigError: there is none, it was changed, or it is of another base model or asks for
            more than the site allows.
    """
    settings = site_settings(file, config)
    folder = adapter or _newest(adapters_folder(settings.state_dir))
    facts = read_facts(folder)
    if facts.kind != "federated":
        problem = f"is an adapter of the kind {facts.kind!r}, made of this site's records already"
        fix = "Name the adapter of the job itself, or leave --adapter out."
        raise ConfigError(problem, file=folder, fix=fix)
    try:
        for refusal in settings.limits.model_refusals(facts.proposal):
            raise refusal
        settings.check_fields(facts.proposal)
    except FedprivError as error:
        problem = f"does not fit this site. {error}".rstrip(".")
        fix = "Name an adapter of a job of this site, or change the site's file."
        raise ConfigError(problem, file=folder, fix=fix) from None
    return Federated(folder, facts, settings, settings.spec_of(facts.proposal.model))


@contextmanager
def at_work(state_dir: Path) -> Iterator[Path]:
    """Let only one such command run, and yield a folder that is removed in any case afterwards.

    Raises:
        RunningError: another such command is under way.
    """
    private_folder(state_dir)
    with ExitStack() as stack:
        stack.enter_context(only_process(private_folder(work_folder(state_dir))))
        made = work_folder(state_dir) / "adapters"
        for left in (made, *site_models(state_dir).glob(".*.tmp")):  # left by a killed process
            shutil.rmtree(left, ignore_errors=True)
        stack.callback(shutil.rmtree, private_folder(made), ignore_errors=True)
        yield made


@contextmanager
def opened(chosen: Federated, say: Callable[[str], None]) -> Iterator[tuple[OwnRecords, Worker]]:
    """Read the records and load the model. The records' clear text is removed in any case.

    Raises:
        DataError: see `read_records`; or a running client would be left with too little disk.
        ModelError, ConfigError, ProtocolError: the model can't be loaded, or is another one.

    Privacy:
        Nothing of the records leaves the site.
    """
    settings, proposal = chosen.settings, chosen.facts.proposal
    with ExitStack() as stack:
        _check_room(chosen)
        cache = own_cache(settings.state_dir)
        shutil.rmtree(cache, ignore_errors=True)  # left by a killed process
        stack.callback(shutil.rmtree, private_folder(cache), ignore_errors=True)
        say("Reading the records")
        records = read_records(settings, cache)
        say("Loading the model")
        look = partial(check_loaded, proposal=proposal, limits=settings.limits)
        pool = stack.enter_context(closing(WorkerPool(1)))
        with pool.borrow(recipe_of(proposal, settings), look) as worker:
            yield records, worker


def work_folder(state_dir: Path) -> Path:
    """Return the folder where one command at a time works."""
    return state_dir / "personal-work"


def own_cache(state_dir: Path) -> Path:
    """Return the folder for clear text of records. The site's process has another one."""
    return work_folder(state_dir) / "cache"


def _newest(folder: Path) -> Path:
    """Return the adapter that came last."""
    found = sorted(folder.glob(f"[!.]*/{FACTS}"), key=lambda path: path.stat().st_mtime_ns)
    if not found:
        fix = (
            "A server hands it over when a job ends. Or ask the coordinator for the folder"
            " `adapter` of the run, and name it: --adapter DIR."
        )
        raise ConfigError("no adapter was handed over to this site yet", file=folder, fix=fix)
    return found[-1].parent


def _check_room(chosen: Federated) -> None:
    """Check for free disk space beside a running client, which holds what it has reserved.

    Raises:
        DataError: there is too little, or the size of the copy of the records can't be known
            before.
    """
    settings = chosen.settings
    if not is_running(settings.state_dir):
        return
    sources = [settings.data, *([settings.held_out] if isinstance(settings.held_out, Path) else [])]
    copy = sum(map(_unpacked, sources))
    adapter = (chosen.folder / WEIGHTS).stat().st_size + SLACK
    model = recipe_of(chosen.facts.proposal, settings).model
    base = sum(path.stat().st_size for path in fetch_base(model).weights)
    copies = COPIES if settings.transform is None else 2 * COPIES  # transformed records are another
    missing = copies * copy + ADAPTERS * adapter + base
    missing -= shutil.disk_usage(settings.state_dir).free
    if missing > 0:
        raise DataError(
            f"is {megabytes(missing)} short of disk space for another copy of the records beside"
            " the client that runs",
            file=settings.state_dir,
            fix="Free some of the disk, or stop the client for as long as this takes.",
        )


def _unpacked(source: Source) -> int:
    """Return the bytes of a file of records as text.

    Raises:
        DataError: it is no file, or its format does not tell the size before it is read.
    """
    path = Path(where(source))
    packed = path.suffix == ".gz"
    is_plain = (path.with_suffix("") if packed else path).suffix in PLAIN
    if isinstance(source, OtherSource) or not path.is_file() or not is_plain:  # or has attachments
        problem = "takes disk space that can't be told beforehand, and the client runs"
        fix = "Stop the client for as long as this takes; its jobs wait."
        raise DataError(problem, file=where(source), fix=fix)
    if not packed:
        return path.stat().st_size
    with gzip.open(path) as stream:
        return sum(map(len, iter(partial(stream.read, 1 << 20), b"")))
