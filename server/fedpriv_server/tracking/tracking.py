"""Tell tools about a run without ever delaying or ending it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedpriv.config.job import JobConfig
from fedpriv.config.tracking import TrackingSection
from fedpriv.errors import ConfigError
from fedpriv_server.run_directory import RunDirectory
from fedpriv_server.tracking.public import LONGEST, Tracked, figures_of, numbers_in
from fedpriv_server.tracking.tools import MLflow, TensorBoard, WeightsAndBiases

Tool = MLflow | TensorBoard | WeightsAndBiases
log = logging.getLogger(__name__)
PATIENCE = 30.0  # seconds that the end of a job waits for tools that are still at work


def check_installed(section: TrackingSection, source: Path) -> None:
    """Refuse a tool that is not installed, before the job begins.

    Raises:
        ConfigError: names the tool and its extra.
    """
    for name in section.backends:
        if find_spec(name) is None:
            raise ConfigError(
                f"{name} is not installed",
                file=source,
                key=f"tracking.{name}",
                value=getattr(section, name),
                fix=f"Type: pip install 'fedpriv[{name}]', or leave the key out.",
            )


class Tracking:
    """Tells the tools of a job about its rounds, each in a thread of its own.

    A tool waits and fails only in its own thread. A failure is logged once, and that tool is told
    no more.

    Unless all records are public, tools hear of the rounds only when the job has ended. They keep
    the time of all that they are told, and a round's time depends on who was sampled (law 19).

    Args:
        run: a run that has begun, so that run.json says what it is.
        rounds: the metrics of rounds that are done already, in a run that goes on.
    """

    def __init__(
        self, config: JobConfig, run: RunDirectory, rounds: Sequence[dict[str, Any]]
    ) -> None:
        self._config, self._run, self._rows = config, run, list(rounds)
        self._tellers: list[_Teller] = []
        if config.job.data_is_public:
            self._begin()

    def _begin(self) -> None:
        names = self._config.tracking.backends
        self._tellers = [_Teller(name, self._config, self._run, self._rows) for name in names]

    def round_done(self, row: dict[str, Any]) -> None:
        """Tell the tools about a round, as its line in metrics.jsonl says it."""
        self._rows.append(row)
        for teller in self._tellers:
            teller.tell(row)

    def close(self, *, finished: bool) -> None:
        """Tell the tools about the end, and wait up to `PATIENCE` seconds until they are done."""
        until = time.monotonic() + PATIENCE
        if not self._config.job.data_is_public:
            self._begin()
        for teller in self._tellers:
            teller.end(finished)
        for teller in self._tellers:
            teller.wait(until)


class _Teller:
    """Runs one tool in its own thread. A process that ends does not wait for that thread."""

    def __init__(
        self, name: str, config: JobConfig, run: RunDirectory, rows: Sequence[dict[str, Any]]
    ) -> None:
        self._name, self._config, self._run = name, config, run
        self._told: queue.SimpleQueue[dict[str, Any] | bool] = queue.SimpleQueue()
        for row in rows:
            self._told.put(row)
        self._given_up = False
        self._thread = threading.Thread(target=self._work, name=f"tracking-{name}", daemon=True)
        self._thread.start()

    def tell(self, row: dict[str, Any]) -> None:
        if self._thread.is_alive():
            self._told.put(row)

    def end(self, finished: bool) -> None:
        self._told.put(finished)

    def wait(self, until: float) -> None:
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._given_up = True  # a run that goes on in this process tells the tool all again
            log.warning("%s: is too slow, and gets no more figures of this run.", self._name)

    def _work(self) -> None:
        try:
            tool = _open(self._name, self._config.tracking, Tracked.of(self._config, self._run))
            tool.log(0, numbers_in(self._run.info["baseline"]))
            told: dict[str, Any] | bool = False
            while not (self._given_up or isinstance(told := self._told.get(), bool)):
                tool.log(told["round"], figures_of(told))
            tool.close(finished=told is True)
        except Exception as error:
            why = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:LONGEST]}"
            no_more = f"gets no more figures of this run, which goes on without it ({why})."
            log.warning("%s: %s", self._name, no_more)


def _open(name: str, section: TrackingSection, tracked: Tracked) -> Tool:
    """Open a tool by name. Only now it is imported, which takes seconds."""
    if name == "mlflow":
        assert section.mlflow is not None
        return MLflow(tracked, section.mlflow)
    return TensorBoard(tracked) if name == "tensorboard" else WeightsAndBiases(tracked)
