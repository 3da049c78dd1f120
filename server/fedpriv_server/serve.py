"""A job over the network: listen, let the sites of `sites.json` in, run the rounds."""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedpriv.config.duration import seconds
from fedpriv.config.job import JobConfig
from fedpriv.config.server import ServerSection
from fedpriv.config.site_file import is_loopback
from fedpriv.errors import ConfigError, FedprivError, RoundError
from fedpriv.health import health_service
from fedpriv.heap import share_heap
from fedpriv.metrics import metrics_service
from fedpriv.private_training.pool import WorkerPool
from fedpriv.process import Status
from fedpriv.report.figures import last_loss, look_line, worse
from fedpriv.report.html import write_report
from fedpriv_server.broker import MessageBroker
from fedpriv_server.fleet_api import fleet_api
from fedpriv_server.garbage import look_seldom
from fedpriv_server.grid import NetworkGrid
from fedpriv_server.handover import hand_over
from fedpriv_server.job import Job
from fedpriv_server.listen import ServerTls, checked_certificate, serving
from fedpriv_server.metrics import RunFigures
from fedpriv_server.number_format import settle
from fedpriv_server.reports import collect_reports
from fedpriv_server.roster import roster_of
from fedpriv_server.run_directory import RunDirectory, only_run
from fedpriv_server.signed import signature_of
from fedpriv_server.site_keys import SiteKeys
from fedpriv_server.tracking.tracking import check_installed

log = logging.getLogger(__name__)
LOOK = 0.2  # seconds between two looks at who is there
REMIND = 60.0  # seconds between two complaints of who is missing
REVIEW = 2.0  # seconds between two looks at `sites.json`
AGAIN = (1.0, 60.0)  # seconds before a failed round is asked again: at first, at most


def serve(config: JobConfig, out: Path, *, source: Path, plain: bool = False) -> RunDirectory:
    """Run a job with the sites of its `sites.json`; go on with it if it was stopped before.

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
    section = _server_section(config, source)
    check_installed(config.tracking, source)
    address = _bound(section, plain, source)
    site_keys = SiteKeys.read(section.pki / "sites.json")
    tls, expires = None, None
    if not plain:
        tls, expires = ServerTls.of(section), checked_certificate(section).expires
    share_heap()
    with only_run(out):
        run = RunDirectory.open(out, config)
        if run.info["status"] == "finished":
            log.info(
                "%s: the job is finished. A site that was not handed its adapter can be sent the"
                " folder %s.",
                out,
                out / "adapter",
            )
        else:
            _serve(config, run, site_keys, address, tls, expires)
    return run


def _serve(
    config: JobConfig,
    run: RunDirectory,
    site_keys: SiteKeys,
    address: tuple[str, int],
    tls: ServerTls | None,
    expires: datetime | None,
) -> None:
    assert config.server is not None
    out = run.path
    try:
        with contextlib.ExitStack() as stack:
            status = Status(out, job=run.info["job_id"], state="preparing", sites={}, problem="")
            healthy = stack.enter_context(health_service(config.server.health, "server.health"))
            figures = RunFigures(out, config.job.rounds)
            stack.enter_context(
                metrics_service(config.server.metrics_port, "server.metrics_port", figures)
            )
            stack.callback(shutil.rmtree, out / "link", ignore_errors=True)
            broker = MessageBroker(out / "link")
            grid = NetworkGrid(broker)
            door = _Door(broker, site_keys, {site.name for site in config.sites}, expires)
            door.review()
            port = stack.enter_context(serving(fleet_api(broker), address, tls))
            stack.callback(broker.close)
            stack.enter_context(door.watched())
            log.info("Listening on %s:%d%s.", address[0], port, "" if tls else " without TLS")
            healthy(True)
            _run(config, run, grid, door, status, figures, tls)
    finally:
        run.discard()


def _run(
    config: JobConfig,
    run: RunDirectory,
    grid: NetworkGrid,
    door: _Door,
    status: Status,
    figures: RunFigures,
    tls: ServerTls | None,
) -> None:
    names, pool = door.broker.names, WorkerPool(1)
    config = settle(config, run, pool, here=True)
    job = Job(
        config,
        run,
        pool,
        site_of=lambda node: door.broker.names.get(node),
        roster=roster_of(config.privacy.roster, config.sites),
    )
    job.strategy.signed = signature_of(job.proposal, run, tls)
    look_seldom()
    assembly = Assembly(config, grid, door, status, job)

    def round_done(metrics: dict[str, Any]) -> None:
        number, of = metrics["round"], config.job.rounds
        states = {name: site["status"] for name, site in metrics["sites"].items()}
        wrong = ", ".join(f"{name}: {state}" for name, state in states.items() if state != "ok")
        log.info(
            "Round %d of %d: %d sites%s%s",
            number,
            of,
            sum(state == "ok" for state in states.values()),
            f" ({wrong})" if wrong else "",
            "" if metrics["eval_loss"] is None else f", loss {metrics['eval_loss']:.3f}",
        )
        if metrics["held_out"] is not None:
            log.info("Look after round %d: %s.", number, look_line(metrics["held_out"]))
        status.update(state="running", round=number, rounds=of, sites=assembly.sites(states))
        figures.round_done(metrics)

    log.info("Job %s, sites %s.", run.info["job_id"], ", ".join(sorted(names.values())))
    try:
        job.execute(grid, round_done, assembly)
    except FedprivError as error:
        status.update(state="stopped", problem=str(error))
        raise
    finally:
        if run.info["status"] != "preparing":
            try:
                collect_reports(grid, run, door.broker.names)
                write_report(run.path, alive=False)
            except Exception as error:  # it must not hide what ended the job
                log.error("The reports were not written: %s", error)
    hand_over(grid, job.strategy, run.path / "adapter")
    status.update(state="finished", problem=run.info.get("ended_early", ""))
    log.info("Job %s is finished: %s.", run.info["job_id"], run.path / "report.html")
    if said := worse(job.baseline.eval_loss, last_loss(job.rounds)):
        log.warning("%s", said)


class Assembly:
    """Waits until it is worth asking: for the last sites at first, later for as many as needed.

    Called before every round, and with the error of one that failed.
    """

    def __init__(
        self, config: JobConfig, grid: NetworkGrid, door: _Door, status: Status, job: Job
    ) -> None:
        self._config, self._grid, self._door = config, grid, door
        self._status, self._job = status, job
        self._begun = False
        self._pause = AGAIN[0]
        self._states: dict[str, str] = {}

    def __call__(self, error: RoundError | None) -> None:
        if error is None:
            self._pause = AGAIN[0]
        elif not error.may_heal:
            raise error
        else:
            log.warning("%s Asking again in %.0f s.", error, self._pause)
            self._status.update(state="waiting", problem=str(error), sites=self.sites())
            time.sleep(self._pause)
            self._pause = min(2 * self._pause, AGAIN[1])
        self._wait()
        for node in self._grid.newcomers():  # whoever refused may have changed its mind
            self._job.strategy.refused.pop(node, None)
        self._status.update(state="running", problem="", sites=self.sites())

    def _wait(self) -> None:
        """Until `min_sites` are there; the first time also for the others, for a while."""
        config = self._config
        assert config.server is not None
        started = time.monotonic()
        patience = 0.0 if self._begun else seconds(config.server.wait)
        reminded = started
        while True:
            there, missing = len(self._grid.get_node_ids()), self.missing()
            waited = time.monotonic() - started
            if not missing or (there >= config.job.min_sites and waited >= patience):
                break
            if time.monotonic() - reminded >= REMIND or reminded == started:
                reminded = time.monotonic() + 1e-9
                text = f"Waiting for {', '.join(map(self._door.named, missing))}; {there} there."
                log.info(text)
                self._status.update(state="waiting", problem=text, sites=self.sites())
            time.sleep(LOOK)
        self._begun = True

    def missing(self) -> list[str]:
        """Names of the sites that are not there."""
        names = self._door.broker.names
        there = {names[node] for node in self._grid.get_node_ids() if node in names}
        return sorted({site.name for site in self._config.sites} - there)

    def sites(self, states: dict[str, str] | None = None) -> dict[str, Any]:
        """What is known of each site: whether it is there, and how it answered last."""
        self._states |= states or {}
        strategy, names = self._job.strategy, self._door.broker.names
        refused = {names.get(node): refusal for node, refusal in strategy.refused.items()}
        missing = set(self.missing())
        shown = {}
        for site in self._config.sites:
            known = self._states.get(site.name, "not asked yet")
            if site.name in refused:
                known = f"refused: {refused[site.name].reason}"
            head = strategy.heads.get(site.name)
            shown[site.name] = {
                "there": site.name not in missing,
                "admitted": site.name in names.values(),
                "last": known,
                "ledger": "" if head is None else f"{head.rows}:{head.hash}",  # as `--head` reads
            }
        return shown


class _Door:
    """Lets in whom `sites.json` admits, and nobody else, for as long as it does.

    Args:
        expires: the end of the server's own certificate, after which nobody comes in.
    """

    def __init__(
        self,
        broker: MessageBroker,
        site_keys: SiteKeys,
        wanted: set[str],
        expires: datetime | None = None,
    ) -> None:
        self.broker, self._site_keys, self._wanted = broker, site_keys, wanted
        self._expires = expires
        self._let_in: dict[str, bytes] = {}

    def named(self, site: str) -> str:
        """A site's name, with why it can't come in if that is known."""
        known = self._site_keys.sites.get(site)
        status = "not provisioned" if known is None else known.status()
        why = {
            "active": "",
            "waiting": " (its request is not approved)",
            "expired": f" (its certificate expired: fedpriv provision FILE --renew {site})",
        }
        return site + why.get(status, f" ({status})")

    def review(self) -> None:
        """Let in and turn out, by what `sites.json` says now."""
        if self._expires is not None and datetime.now(UTC) > self._expires:
            log.error(
                "The server's certificate expired on %s: no site can connect. Type fedpriv"
                " provision FILE --renew server, then start the server again.",
                f"{self._expires:%Y-%m-%d %H:%M} UTC",
            )
            self._expires = None  # once is enough
        try:
            if self._site_keys.reload_if_changed():
                log.info("%s: read again.", self._site_keys.path)
        except FedprivError as error:
            log.error("%s Nobody new is let in.", error)
        admitted = {
            site.name: site.public_key
            for site in self._site_keys.admissible()
            if site.name in self._wanted and site.public_key is not None
        }
        for name, key in list(self._let_in.items()):
            if admitted.get(name) != key:
                self.broker.dismiss(name)
                del self._let_in[name]
                log.warning(
                    "Site %s is turned out: its key was revoked, replaced or expired.", name
                )
        for name, key in admitted.items():
            if name not in self._let_in:
                self.broker.admit(name, key)
                self._let_in[name] = key

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Review them now and then while the context lasts."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(REVIEW):
                try:
                    self.review()
                except Exception as error:  # or nobody would be turned out any more
                    log.exception("The keys of sites were not reviewed: %s", type(error).__name__)

        thread = threading.Thread(target=watch, name="site-keys", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _server_section(config: JobConfig, source: Path) -> ServerSection:
    if config.job.engine != "network" or config.server is None:
        raise ConfigError(
            "is not for the network",
            file=source,
            key="job.engine",
            value=config.job.engine,
            fix='Set engine = "network" and add a [server] table, or run fedpriv simulate.',
        )
    return config.server


def _bound(section: ServerSection, plain: bool, source: Path) -> tuple[str, int]:
    """Host and port to bind."""
    host, _, port = section.bound.rpartition(":")
    host = host.strip("[]")
    if plain:
        host = "127.0.0.1" if section.listen is None else host
        if not is_loopback(f"{host}:{port}"):
            raise ConfigError(
                "without TLS everyone in between can read and change what is sent",
                file=source,
                key="server.listen",
                value=section.listen,
                fix="Leave --plain out, or listen on 127.0.0.1.",
            )
    return host, int(port)
