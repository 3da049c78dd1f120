"""Run trials: one after the other in this process, or several at once, each in its own process."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedpriv import cores
from fedpriv.private_training.pool import WorkerPool
from fedpriv.process import only_process
from fedpriv_comparison.trial import Result, Trial, kept, run, told

PATIENCE = 10.0  # seconds that a process gets to end by itself
Listener = Callable[[Trial, Result], None]


class Runner:
    """Run trials and keep their results in a folder. A kept result is not run again.

    Args:
        parallel: how many at once. The cores are divided among them.
        done: called with every result.
    """

    def __init__(
        self, folder: Path, *, parallel: int = 1, done: Listener = lambda trial, result: None
    ) -> None:
        self._folder = folder
        self._parallel = parallel
        self._done = done
        self._pool = WorkerPool(1, many_sites=True)

    def results(self, trials: Sequence[Trial]) -> list[Result]:
        """Return the results of trials, in the order of the trials.

        Raises:
            KeyboardInterrupt: somebody stops it. All finished runs are kept.
        """
        keys = [trial.key for trial in trials]
        wanted = dict(zip(keys, trials, strict=True))  # a trial that is asked for twice is run once
        if self._parallel == 1:
            found = {}
            for key, trial in wanted.items():
                found[key] = run(trial, self._folder, self._pool)
                self._done(trial, found[key])
        else:
            found = self._at_once(list(wanted.values()))
        return [found[key] for key in keys]

    def _at_once(self, trials: Sequence[Trial]) -> dict[str, Result]:
        found: dict[str, Result] = {}
        waiting: list[Trial] = []
        for trial in trials:
            result = kept(trial, self._folder)
            if result is None:
                waiting.insert(0, trial)
            else:
                found[trial.key] = result
                self._done(trial, result)
        running: dict[int, tuple[BaseProcess, Trial]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self._parallel:
                    trial = waiting.pop()
                    process = self._start(trial)
                    running[process.sentinel] = process, trial
                for sentinel in wait(list(running)):
                    assert isinstance(sentinel, int)
                    process, trial = running.pop(sentinel)
                    process.join()
                    found[trial.key] = told(trial, self._folder) or Result(
                        [], error=f"The process of this run ended: {process.exitcode}."
                    )
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
        share = max(1, cores.usable() // self._parallel)
        process = multiprocessing.get_context("spawn").Process(
            target=_run_apart, args=(trial, self._folder, share), daemon=True
        )
        # Ctrl-C goes to all processes of a terminal. What this process ignores, the new one
        # ignores.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        return process


@contextmanager
def open_folder(folder: Path) -> Iterator[None]:
    """Hold a folder of results alone. What an interrupted run left there is removed.

    Raises:
        RunningError: another comparison uses it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with only_process(folder):
        shutil.rmtree(folder / "work", ignore_errors=True)
        yield


def _end_with_the_parent() -> None:
    """End when the parent ends. Nobody would wait for this run, and another may want its folder."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_apart(trial: Trial, folder: Path, threads: int) -> None:
    import torch

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    logging.getLogger("fedpriv_client").setLevel(logging.ERROR)
    torch.set_num_threads(threads)
    run(trial, folder, WorkerPool(1, many_sites=True))
