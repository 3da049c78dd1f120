"""Begin what a site computes of its records for itself: `personalise` and `evaluate`.

No ledger is opened and no server dialled. The client has to be stopped: computing beside it would
slow its steps, so that a server could tell from its answers how long this takes (law 19).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedpriv.adapter_facts import AdapterFacts, read_facts
from fedpriv.base_model import FACTS
from fedpriv.config.site_file import SiteFile
from fedpriv.data.held_out import OwnRecords
from fedpriv.data.spec import DataSpec
from fedpriv.errors import ConfigError, FedprivError, RunningError
from fedpriv.files import private_folder
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import Worker
from fedpriv.process import is_running, only_process
from fedpriv.serving.folder import site_models
from fedpriv_client.own_records import read_records
from fedpriv_client.settings import site_settings
from fedpriv_client.site_job import check_loaded, recipe_of
from fedpriv_client.site_settings import SiteSettings, adapters_folder, work_folder


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
        problem = f"is an adapter of kind {facts.kind!r}, already trained on this site's records"
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
        RunningError: another such command is at work, or the client runs.
    """
    private_folder(state_dir)
    if is_running(state_dir):
        raise RunningError(
            f"{state_dir}: the client is running, and its answers would show how long this takes."
            " Stop it until this command has ended; its jobs wait."
        )
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
        DataError: see `read_records`.
        ModelError, ConfigError, ProtocolError: the model can't be loaded, or is another.

    Privacy:
        Nothing of the records leaves the site.
    """
    settings, proposal = chosen.settings, chosen.facts.proposal
    with ExitStack() as stack:
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
