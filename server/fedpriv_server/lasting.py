"""A coordinator that lasts: it listens for years, and runs the jobs of a queue one by one."""

from __future__ import annotations

import gc
import logging
import time
from contextlib import suppress
from pathlib import Path

from fedpriv.errors import FedprivError, RoundError
from fedpriv.heap import share_heap
from fedpriv.process import Status, only_process
from fedpriv_server.consortium import load_consortium
from fedpriv_server.grid import JobGrid
from fedpriv_server.job_queue import ENDED, Queue, QueuedJob, State
from fedpriv_server.owed import Owed
from fedpriv_server.run_directory import RunDirectory, opened_run
from fedpriv_server.serve import Link, listening, reason, run_job
from fedpriv_server.tracking.tracking import check_installed

log = logging.getLogger(__name__)
LOOK = 1.0  # seconds between two looks at the queue, and at which sites are back


def serve_consortium(file: Path, state: Path, *, plain: bool = False) -> None:
    """Serve the sites of a consortium until stopped. A job that was running goes on.

    Args:
        file: a file with `[server]` and `[[sites]]`.
        state: the folder of the queue and the runs.
        plain: speak HTTP without TLS; on a loopback address only.

    Raises:
        ConfigError, EnrolmentError: the address, the certificates or `sites.json` can't be used.
        RunError: the queue can't be used.
        RunningError: another process serves from the folder.
        KeyboardInterrupt: the server was stopped. The running job goes on at the next start.
    """
    consortium = load_consortium(file)
    with Queue.open(state) as queue, only_process(state):
        status = Status(state, state="waiting", job="", sites={}, problem="")
        share_heap()
        with listening(consortium.server, consortium.names, state, file, plain=plain) as link:
            coordinator = Coordinator(queue, state, link, consortium.names, status)
            while True:
                coordinator.work()
                time.sleep(LOOK)


class Coordinator:
    """Runs the jobs of a queue, and settles what is owed after those that ended.

    Args:
        state: the folder of the queue and the runs.
        members: names of the consortium's sites.
    """

    def __init__(
        self, queue: Queue, state: Path, link: Link, members: set[str], status: Status
    ) -> None:
        self._queue, self._state, self._link, self._status = queue, state, link, status
        self._members = members
        self._grid = JobGrid(link.grid, members)
        self._owed: dict[int, Owed] = {}
        link.door.listeners.append(lambda: status.update(sites=link.door.seen(members)))
        for job in queue.jobs():
            if job.state in ENDED:
                self._remember(job)

    def work(self) -> None:
        """Run the next job, if there is one, and settle what is owed."""
        job = self._queue.begin()
        if job is not None:
            self._owed.pop(job.id, None)
            self._status.update(state="running", job=str(job.id))
            ended = self._run(job)
            self._queue.end(job.id, *ended)
            log.info("Job %d: %s. %s", job.id, ended[0], ended[1])
            self._remember(job)
            self._link.figures.turn_to(self._state, 0)
            gc.unfreeze()  # so that the objects of the job can be collected
            gc.collect()
            self._status.update(state="waiting", job="")
        self._settle()

    def _remember(self, job: QueuedJob) -> None:
        try:
            run = RunDirectory.read(job.folder(self._state))
            if run is not None and (owed := Owed(run)).sites:
                self._owed[job.id] = owed
        except FedprivError as error:
            log.error("%s", error)

    def _settle(self) -> None:
        for owed in self._owed.values():
            owed.settle(self._grid)
        self._owed = {job: owed for job, owed in self._owed.items() if owed.sites}

    def _run(self, job: QueuedJob) -> tuple[State, str, dict[str, object]]:
        """Run a job to its end. Return its final state, the reason, and how sites took part."""
        path = job.folder(self._state)
        try:
            config = job.config
            with opened_run(path, config) as run:
                if run.info["status"] != "finished":  # else the process ended before it said so
                    check_installed(config.tracking, Path(job.source))
                    gone = {site.name for site in config.sites} - self._members
                    if gone:
                        names = ", ".join(sorted(gone))
                        raise RoundError(f"{names}: not in this consortium.")
                    run_job(config, run, self._link, lambda: self._between(job))
            return "finished", *_end_of(path)
        except FedprivError as error:
            state: State = "aborted" if self._queue.job(job.id).abort else "failed"
            return state, str(error), _end_of(path)[1]
        except Exception as error:
            log.exception("Job %d failed.", job.id)
            return "failed", reason(error), {}

    def _between(self, job: QueuedJob) -> None:
        """Do other work between two rounds of a job: check for an abort, settle what is owed.

        Raises:
            RoundError: somebody aborted the job.
        """
        if self._queue.job(job.id).abort:
            raise RoundError("Aborted by the coordinator. What was spent stays spent.")
        self._settle()


def _end_of(path: Path) -> tuple[str, dict[str, object]]:
    """Read from a run directory why its job ended, and how sites took part."""
    with suppress(FedprivError):
        if (run := RunDirectory.read(path)) is not None and "ended" in run.info:
            return run.info["ended"]["why"], run.info["ended"]["sites"]
    return "All rounds are done.", {}
