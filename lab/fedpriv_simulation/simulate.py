"""Bring a federation file's sites and its server together in one process."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context, Message

from fedpriv.config.job import JobConfig
from fedpriv.errors import ConfigError, LedgerInUseError, naming
from fedpriv.personal.evaluation import Evaluation
from fedpriv.plain_training.scores import Scores
from fedpriv.private_training.pool import WorkerPool
from fedpriv.report.budget import BudgetReport
from fedpriv.report.html import write_report
from fedpriv_client.app import client_app
from fedpriv_client.report import write_budget_report
from fedpriv_client.site import Site
from fedpriv_server.job import Job
from fedpriv_server.run_directory import RunDirectory, only_run
from fedpriv_server.tracking.tracking import check_installed
from fedpriv_simulation.handles import open_at_once
from fedpriv_simulation.hosts import AT_ONCE, Hosts
from fedpriv_simulation.inline import FIRST_SITE, InlineGrid
from fedpriv_simulation.joint import JointPool, sites_at_once
from fedpriv_simulation.outside_sites import read_outside, score_outside
from fedpriv_simulation.own_ray import started
from fedpriv_simulation.public_records import check_public
from fedpriv_simulation.shared_base import SharedBasePool
from fedpriv_simulation.sites import Sites, simulated_roster
from fedpriv_simulation.visits import PATIENCE, Visits
from fedpriv_simulation.workers import as_own_threads, own_threads, workers_of
from fedpriv_strategies.messages import Nodes

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """Hold the result of a simulation.

    Attributes:
        rounds: the metrics of every round.
        budgets: site → its signed budget report.
        report: path of report.html.
        outside: outside site → its scores, where all data is public.
    """

    run: RunDirectory
    baseline: Scores
    rounds: list[dict[str, Any]]
    budgets: dict[str, BudgetReport]
    report: Path
    outside: Mapping[str, Evaluation] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """Hold the functions that are told of the run. Any of them may keep its default."""

    preparing: Callable[[str], None] = lambda text: None
    started: Callable[[Job], None] = lambda job: None
    round_done: Callable[[dict[str, Any]], None] = lambda metrics: None


def simulate(
    config: JobConfig,
    out: Path,
    *,
    source: Path,
    resume: bool = False,
    insecure_seed: int | None = None,
    progress: Progress = Progress(),
    pool: WorkerPool | None = None,
    grid: Nodes | None = None,
) -> Outcome:
    """Run a federation on this machine, each site with its own ledger.

    Args:
        out: run directory. It has to be new, or a stopped run when `resume` is set.
        source: the federation file, named in messages.
        insecure_seed: draw sampling and noise from this seed. Public data only. Every output is
            stamped NOT PRIVATE.
        pool: a pool of models that were loaded before, for one run after the other.
        grid: grid of a runtime that is there already, where `Visits` answer for the sites. By
            default one is made for the time of the run, as `job.engine` says.

    Raises:
        FedprivError: something is wrong. Before the first round nothing is left behind and nothing
            was spent. Later the run can be resumed.
        KeyboardInterrupt: somebody stops it. The run is left so that it can be resumed.
    """
    _check(config, source, insecure_seed, grid)
    check_installed(config.tracking, source)
    opened = RunDirectory.resume if resume else RunDirectory.create
    with only_run(out), contextlib.ExitStack() as stack:
        run = opened(out, config, insecure_seed=insecure_seed)
        stack.callback(run.discard)
        progress.preparing("Loading the model")
        with naming(source):
            pool = pool or SharedBasePool(workers_of(config), many_sites=True)
            stack.callback(pool.close)
            check_public(config, run.path, source)
            outside = read_outside(config, run, pool)
            job = Job(config, run, pool, roster=simulated_roster(config, run.path))
        base, begin = job.proposal.base_digest, job.proposal.begin_digest
        trained = job.update.vector.value.size
        sites = Sites(config, run.path, insecure_seed, base, trained, begin)
        meeting, report_on = _meeting(stack, sites, job, pool, source, progress, grid)
        progress.started(job)
        try:
            job.execute(meeting, progress.round_done)
        except BaseException:
            if run.info["status"] != "preparing":
                try:
                    report_on()
                    write_report(run.path, alive=False)
                except Exception as error:  # this must not hide what ended the job
                    log.error("The reports were not written: %s", error)
            raise
        budgets = report_on()
        scored = score_outside(config, run, outside, pool)
        report = write_report(run.path)
    shown = scored if config.job.data_is_public else {}
    return Outcome(run, job.baseline, job.rounds, budgets, report, shown)


def _check(config: JobConfig, source: Path, insecure_seed: int | None, grid: Nodes | None) -> None:
    """Refuse a file that is no simulation or names missing files, before a model is loaded."""
    if insecure_seed is not None and not config.job.data_is_public:
        problem = "--insecure-seed makes noise that anyone can subtract"
        fix = "Leave the option out, or set data_is_public = true if the data really is."
        raise ConfigError(problem, file=source, key="job.data_is_public", value=False, fix=fix)
    if config.job.engine == "network":
        problem = "is not a simulation"
        fix = f"Run it with: fedpriv-server --config {source}"
        raise ConfigError(problem, file=source, key="job.engine", value=config.job.engine, fix=fix)
    if grid is not None and config.max_colluding is not None:
        problem = "needs sites that stay open during a round, which this runtime closes"
        trust, fix = config.privacy.trust, "Run it with fedpriv simulate."
        raise ConfigError(problem, file=source, key="privacy.trust", value=trust, fix=fix)
    for key, path in config.files().items():
        if not path.exists():
            raise ConfigError("no such file or folder", file=source, key=key, value=str(path))


def _meeting(
    stack: contextlib.ExitStack,
    sites: Sites,
    job: Job,
    pool: WorkerPool,
    source: Path,
    progress: Progress,
    there: Nodes | None,
) -> tuple[Nodes, Callable[[], dict[str, BudgetReport]]]:
    """Return where client and server meet, and a function that writes the sites' budget reports.

    Every site is opened here at least once, so that any refusal can be told in full. As many sites
    of this process stay open as it has files for. The others are visited. A secure sum has few
    sites, and all of them stay open.
    """
    config, job_id = sites.config, job.proposal.job_id
    inline = there is None and config.job.engine == "inline"
    workers = at_once = pool.size
    if inline and (more := sites_at_once(config, sites.trained, pool.size)) > pool.size:
        pool, at_once = JointPool(pool, more), more
    most = len(config.sites) if inline else 0
    if inline and config.max_colluding is None:
        most = open_at_once(most)
    # The processes of another runtime end when they like.
    patience = 0.0 if there is None else PATIENCE
    opened: list[Site] = []
    cut = 0
    for section in config.sites:
        progress.preparing(f"Preparing {section.name}")
        with naming(source, f"sites.{section.name}"):
            site = sites.open(section, pool, patience=patience)
            with contextlib.ExitStack() as own:
                own.callback(site.close)
                with as_own_threads(workers) if inline else contextlib.nullcontext():
                    site.consider(job.proposal)
                    cut += site.check_examples().cut
                if len(opened) < most:
                    opened.append(site)
                    stack.push(own.pop_all())
    if cut:
        length = f"model.max_length = {config.model.max_length}"
        log.warning("%d records are cut at %s or privacy.max_records_per_unit.", cut, length)
    hosts: Hosts | None = None
    if inline:
        apps = _answers(sites, opened, pool)
        there = stack.enter_context(InlineGrid(apps, at_once, own_threads(workers)))
    elif there is None:
        with naming(source):
            ray = stack.enter_context(started(count := workers_of(config)))
            hosts = Hosts(sites, job.proposal, ray, count)
        stack.callback(hosts.close)
        apps = hosts.answers(FIRST_SITE)
        queues = hosts.queue_of(FIRST_SITE)
        there = stack.enter_context(InlineGrid(apps, AT_ONCE, queue_of=queues))

    def report_on() -> dict[str, BudgetReport]:
        if hosts is not None:
            hosts.close()
        found = {site.settings.name: write_budget_report(site, job_id) for site in opened}
        for section in config.sites[len(opened) :]:
            try:
                with contextlib.closing(sites.open(section, pool, patience=patience)) as site:
                    found[section.name] = write_budget_report(site, job_id)
            except LedgerInUseError as error:  # a late process of another runtime
                log.error("%s: its budget report was not written anew. %s", section.name, error)
        return found

    return there, report_on


def _answers(
    sites: Sites, opened: Sequence[Site], pool: WorkerPool
) -> dict[int, Callable[[Message, Context], Message]]:
    """Return how each site is asked in this process, by node id. The first sites are open."""
    visits = Visits(sites.config, sites.run, sites.insecure_seed, pool)
    others = range(len(opened), len(sites.config.sites))
    visited = (partial(visits.answer, number) for number in others)
    return dict(enumerate([*map(client_app, opened), *visited], start=FIRST_SITE))
