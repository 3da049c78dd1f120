"""Run trials: one after the other in this process, or several at once, each in one of its own."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedpriv.process import only_process
from fedpriv.training.worker import WorkerPool
from fedpriv_comparison.trial import Result, Trial, kept, run

PATIENCE = 10.0  # seconds that a process gets to end by itself
Listener = Callable[[Trial, Result], None]


class Runner:
    """Runs trials and keeps their results in a folder; what is kept is not run again.

    Args:
        parallel: how many at once; the cores are shared out between them.
        done: told of every result.
    """

    def __init__(
        self, folder: Path, *, parallel: int = 1, done: Listener = lambda trial, result: None
    ) -> None:
        self._folder = folder
        self._parallel = parallel
        self._done = done
        self._pool = WorkerPool(1)

    def results(self, trials: Sequence[Trial]) -> list[Result]:
        """The results of trials, in their order.

        Raises:
            KeyboardInterrupt: with all finished runs kept.
        """
        if self._parallel == 1:
            found = {}
            for trial in trials:
                found[trial.key] = run(trial, self._folder, self._pool)
                self._done(trial, found[trial.key])
        else:
            found = self._at_once(trials)
        return [found[trial.key] for trial in trials]

    def _at_once(self, trials: Sequence[Trial]) -> dict[str, Result]:
        found: dict[str, Result] = {}
        waiting = list(reversed(trials))
        running: dict[int, tuple[BaseProcess, Trial]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self._parallel:
                    trial = waiting.pop()
                    result = kept(trial, self._folder)
                    if result is None:
                        process = self._start(trial)
                        running[process.sentinel] = process, trial
                    else:
                        found[trial.key] = result
                        self._done(trial, result)
                for sentinel in wait(list(running)):
                    assert isinstance(sentinel, int)
                    process, trial = running.pop(sentinel)
                    process.join()
                    # A process that dies is no result: the next time it is tried again.
                    gone = Result([], error=f"The process of this run ended: {process.exitcode}.")
                    found[trial.key] = kept(trial, self._folder) or gone
                    self._done(trial, found[trial.key])
        finally:
            for process, _ in running.values():
                process.terminate()
            for process, _ in running.values():
                process.join(PATIENCE)
                process.kill()
                process.join()
        return found

    def _start(self, trial: Trial) -> BaseProcess:
        threads = max(1, (os.cpu_count() or 1) // self._parallel)
        process = multiprocessing.get_context("spawn").Process(
            target=_run_apart, args=(trial, self._folder, threads), daemon=True
        )
        process.start()
        return process


@contextmanager
def open_folder(folder: Path) -> Iterator[None]:
    """Use a folder of results, alone; what an interrupted run left there is removed.

    Raises:
        RunningError: another comparison uses it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with only_process(folder):
        shutil.rmtree(folder / "work", ignore_errors=True)
        yield


def _run_apart(trial: Trial, folder: Path, threads: int) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process, by SIGTERM
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    logging.getLogger("fedpriv_client").setLevel(logging.ERROR)
    torch.set_num_threads(threads)
    run(trial, folder, WorkerPool(1))
