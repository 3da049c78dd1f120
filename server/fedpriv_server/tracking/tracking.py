"""Tell tools about a run that has ended, without delaying its end for long."""

from __future__ import annotations

import logging
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
from fedpriv_server.tracking.public import LONGEST, figures_of, numbers_in
from fedpriv_server.tracking.tools import to_mlflow, to_tensorboard, to_wandb

log = logging.getLogger(__name__)
PATIENCE = 30.0  # seconds that the end of a job waits for tools that are still at work
TOOLS = {"tensorboard": to_tensorboard, "mlflow": to_mlflow, "wandb": to_wandb}


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


def track(
    config: JobConfig, run: RunDirectory, rows: Sequence[dict[str, Any]], *, finished: bool
) -> None:
    """Tell a job's tools about all rounds. Wait up to `PATIENCE` seconds until they are done.

    Each tool has its own thread, in which it waits and fails. A failure is only logged.

    Tools hear of the rounds only when the job has ended. They keep the time of all that they are
    told, and a round's time depends on who was sampled (law 19).

    Args:
        run: a run that has begun, so that run.json says what it is.
        rows: the metrics of all rounds.
        finished: false if the job was interrupted. It may go on, and then tools are told again.
    """
    until = time.monotonic() + PATIENCE
    threads = {
        name: threading.Thread(target=_tell, args=(name, config, run, rows, finished), daemon=True)
        for name in config.tracking.backends
    }
    for thread in threads.values():
        thread.start()
    for name, thread in threads.items():
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            log.warning("%s: is slow. It gets the figures only if this process lasts.", name)


def _tell(
    name: str, config: JobConfig, run: RunDirectory, rows: Sequence[dict[str, Any]], finished: bool
) -> None:
    try:
        figures = [numbers_in(run.info["baseline"]), *map(figures_of, rows)]
        TOOLS[name](config, run, figures, finished)
    except Exception as error:
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:LONGEST]}"
        log.warning("%s: did not get all figures of this run (%s).", name, why)
