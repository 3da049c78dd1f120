"""Run a job over the network: listen, let the sites of `sites.json` in, run the rounds.

The listener stays for as many jobs as there are: one for `serve`, those of a queue for
`fedpriv_server.lasting`.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedpriv.config.duration import seconds
from fedpriv.config.job import JobConfig
from fedpriv.config.server import ServerSection
from fedpriv.errors import FedprivError
from fedpriv.health import health_service
from fedpriv.heap import share_heap
from fedpriv.metrics import metrics_service
from fedpriv.private_training.pool import WorkerPool
from fedpriv.process import Status
from fedpriv.report.figures import last_loss, look_line, worse
from fedpriv.report.html import write_report
from fedpriv_server.assembly import LOOK, Assembly
from fedpriv_server.broker import MessageBroker
from fedpriv_server.consortium import roster_of, server_of
from fedpriv_server.door import Door
from fedpriv_server.fleet_api import fleet_api
from fedpriv_server.grid import JobGrid, NetworkGrid
from fedpriv_server.job import Job
from fedpriv_server.listen import ServerTls, address_of, checked_certificate, serving
from fedpriv_server.metrics import RunFigures
from fedpriv_server.owed import Owed
from fedpriv_server.run_directory import RunDirectory, opened_run
from fedpriv_server.signed import signature_of
from fedpriv_server.site_keys import SiteKeys
from fedpriv_server.tracking.tracking import check_installed

log = logging.getLogger(__name__)
YOUNG = 50_000  # new objects between two garbage collections of the newest objects


@dataclass
class Link:
    """A server that listens: which sites it lets in, and how it talks to them."""

    door: Door
    grid: NetworkGrid
    figures: RunFigures
    tls: ServerTls | None


def serve(config: JobConfig, out: Path, *, source: Path, plain: bool = False) -> RunDirectory:
    """Run a job with the sites of its `sites.json`. Go on with it if it was stopped before.

    If the job is finished, settle what sites still owe, or are owed, if they come back in time.

    Args:
        out: the run directory, new or of the same job.
        source: the federation file, for messages.
        plain: speak HTTP without TLS; on a loopback address only.

    Raises:
        ConfigError: the file is not for the network, the address can't be used, or a tool of
            [tracking] is not installed.
        EnrolmentError: the certificates or `sites.json` can't be used.
        RunError: the directory holds another run.
        RoundError: too few sites will ever accept or answer.
        KeyboardInterrupt: after the run was left in a state that can be resumed.
    """
    section = server_of(config, source)
    check_installed(config.tracking, source)
    share_heap()
    with opened_run(out, config) as run:
        owed, is_finished = Owed(run), run.info["status"] == "finished"
        if is_finished:
            advice = "To a site that did not get the adapter, send the folder"
            log.info("%s: the job is finished. %s %s.", out, advice, out / "adapter")
            if not owed.sites:
                return run
        members = {site.name for site in config.sites}
        with listening(section, members, out, source, plain=plain) as link:
            if is_finished:
                _wait_for_owed(JobGrid(link.grid, members), owed, seconds(section.wait))
            else:
                run_job(config, run, link)
    return run


@contextlib.contextmanager
def listening(
    section: ServerSection, sites: Set[str], folder: Path, source: Path, *, plain: bool
) -> Iterator[Link]:
    """Let sites in at the server's port, and serve health and metrics, while the context lasts.

    Args:
        sites: names of the sites that may connect.
        folder: the folder of this process.
        source: the federation file, for messages.

    Raises:
        ConfigError, EnrolmentError: see `serve`.
    """
    address = address_of(section, source, plain=plain)
    tls = None if plain else ServerTls.of(section)
    if not plain:
        checked_certificate(section)
    with contextlib.ExitStack() as stack:
        healthy = stack.enter_context(health_service(section.health, "server.health"))
        figures = RunFigures(folder, 0)
        stack.enter_context(metrics_service(section.metrics_port, "server.metrics_port", figures))
        stack.callback(shutil.rmtree, folder / "link", ignore_errors=True)
        broker = MessageBroker(folder / "link")
        grid = NetworkGrid(broker)
        door = Door(broker, SiteKeys.read(section.pki / "sites.json"), set(sites))
        door.review()
        port = stack.enter_context(serving(fleet_api(grid), address, tls))
        stack.callback(broker.close)
        stack.enter_context(door.watched())
        log.info("Listening on %s:%d%s.", address[0], port, "" if tls else " without TLS")
        healthy(True)
        yield Link(door, grid, figures, tls)


def run_job(
    config: JobConfig, run: RunDirectory, link: Link, between: Callable[[], None] = lambda: None
) -> None:
    """Run a job, or go on with it. Store with the run why it ended and which sites took part.

    Args:
        between: called while no request is open; it may raise the error that ends the job.

    Raises:
        FedprivError: the error that ended the job before its last round.
    """
    grid = JobGrid(link.grid, {site.name for site in config.sites})
    status = Status(run.path, job=run.info["job_id"], state="preparing", sites={}, problem="")
    link.figures.turn_to(run.path, config.job.rounds)
    assembly: Assembly | None = None
    try:
        pool = WorkerPool(1)
        log.info("Loading the model, and scoring it before the first round.")
        roster = roster_of(config.privacy.roster, config.sites)
        job = Job(config, run, pool, lambda node: grid.names.get(node), roster)
        assembly = Assembly(job, grid, link.door, status, between)
        link.door.listeners.append(assembly.tell)
        job.strategy.signed = signature_of(job.proposal, run, link.tls)
        collect_garbage_rarely()
        log.info("Job %s, sites %s.", run.info["job_id"], ", ".join(sorted(grid.names.values())))
        job.execute(grid, partial(_round_done, config, assembly, link.figures), assembly)
    except BaseException as error:
        status.update(state="stopped", problem=reason(error))
        run.keep_end(reason(error), {} if assembly is None else assembly.account())
        raise
    finally:
        if assembly is not None:
            link.door.listeners.remove(assembly.tell)
            if run.info["status"] != "preparing":
                _settle(job, run, grid)
        link.grid.forget()
    run.keep_end(run.info.get("ended_early") or "All rounds are done.", assembly.account())
    assembly.tell(state="finished", problem=run.info.get("ended_early", ""))
    log.info("Job %s is finished: %s.", run.info["job_id"], run.path / "report.html")
    if said := worse(job.baseline.eval_loss, last_loss(job.rounds)):
        log.warning("%s", said)


def collect_garbage_rarely() -> None:
    """Collect garbage less often, and never look again at objects that exist already.

    A web request makes a few hundred objects. With Python's own thresholds, a server with a
    thousand sites spends a third of its time on looking at the requests that they hold open.
    For requests with large bodies, `fedpriv_server.bounds` collects after so many bytes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 10, 10)


def reason(error: BaseException) -> str:
    """Return why a job ended.

    For an unexpected error return only its class, because its text may quote anything.
    """
    if isinstance(error, FedprivError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "The server was stopped. Start it again to go on."
    return f"{type(error).__name__}: see the server's log."


def _round_done(
    config: JobConfig, assembly: Assembly, figures: RunFigures, metrics: dict[str, Any]
) -> None:
    number, of = metrics["round"], config.job.rounds
    states = {name: site["status"] for name, site in metrics["sites"].items()}
    wrong = ", ".join(f"{name}: {state}" for name, state in states.items() if state != "ok")
    loss = "" if metrics["eval_loss"] is None else f", loss {metrics['eval_loss']:.3f}"
    used = sum(state == "ok" for state in states.values())
    told = f"{used} sites{f' ({wrong})' if wrong else ''}{loss}"
    log.info("Round %d of %d: %s", number, of, told)
    if metrics["held_out"] is not None:
        log.info("Look after round %d: %s.", number, look_line(metrics["held_out"]))
    assembly.tell(states, state="running", round=number, rounds=of)
    figures.round_done(metrics)


def _settle(job: Job, run: RunDirectory, grid: JobGrid) -> None:
    """Fetch the sites' budget reports. Hand a finished adapter to those that released something."""
    heads = job.strategy.heads
    log.info("Asking the sites for their budget reports.")
    try:
        asked = {offer.site for offer in job.strategy.offers.values()} | heads.keys()
        run.owe(reports=asked, adapters=heads if run.info["status"] == "finished" else ())
        Owed(run).settle(grid)
        reports, adapters = heads.keys() & run.owed["reports"], run.owed["adapters"]
        run.owe(reports=reports, adapters=adapters)
        if reports:
            log.warning("No budget report from %s.", ", ".join(sorted(reports)))
        if adapters:
            folder, names = run.path / "adapter", ", ".join(adapters)
            log.warning("%s did not get the adapter: send them the folder %s.", names, folder)
        write_report(run.path, alive=False)
    except Exception as error:  # this must not hide what ended the job
        log.error("The reports were not written: %s", error)


def _wait_for_owed(grid: JobGrid, owed: Owed, patience: float) -> None:
    """Wait for sites whose report is missing, or that were not handed the adapter."""
    log.info("Waiting for %s: a report or the adapter is owed.", ", ".join(sorted(owed.sites)))
    deadline = time.monotonic() + patience
    while owed.sites and time.monotonic() < deadline:
        owed.settle(grid)
        time.sleep(LOOK)
    log.info("Still owed: %s.", ", ".join(sorted(owed.sites)) or "nothing")
