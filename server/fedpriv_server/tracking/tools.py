"""A class for each tool. It imports the tool only when a run is opened, which takes seconds.

Each object is an opened run. An error that it raises ends the tracking, never the job. `log` takes
in a round by its number; 0 is before the first. After a resume all rounds are told again, and each
appears only once. `close` ends the run, whether the job has finished or was interrupted and may go
on.
"""

from __future__ import annotations

import logging
import os
import time

from fedpriv_server.tracking.public import Figures, Tracked

JOB, PRIVATE = "fedpriv.job_id", "fedpriv.private"  # tags
SETTINGS_AT_ONCE = 100  # as many as a store takes in one call


class TensorBoard:
    """Writes event files. TensorBoard drops from the run's earlier files what is told again.

    Args:
        tracked: the run.
    """

    def __init__(self, tracked: Tracked) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(tracked.folder / "tensorboard"), purge_step=0)
        rows = "".join(f"| {name} | {value} |\n" for name, value in tracked.settings.items())
        stamp = "" if tracked.private else "**NOT PRIVATE**: seeded noise.\n\n"
        self._writer.add_text("settings", f"{stamp}| setting | value |\n|---|---|\n{rows}", 0)

    def log(self, step: int, figures: Figures) -> None:
        """Add a point to each curve."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, *, finished: bool) -> None:
        """Close the file. TensorBoard knows no state of a run."""
        self._writer.close()


class WeightsAndBiases:
    """Writes an offline run with the job's id. W&B collects nothing on machine, code and user.

    A job that goes on writes another part of the same run, with all rounds so far.

    Args:
        tracked: the run.
    """

    def __init__(self, tracked: Tracked) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # it calls home by default
        import wandb

        folder = tracked.folder
        folder.mkdir(exist_ok=True)
        settings = wandb.Settings(
            mode="offline",
            root_dir=str(folder),
            console="off",
            disable_code=True,
            disable_git=True,
            host="fedpriv",
            program="fedpriv",
            save_code=False,
            silent=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,  # memory and processor time depend on records
            x_disable_viewer=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(
            project=tracked.experiment,
            id=tracked.job,
            name=tracked.job,
            config=dict(tracked.settings),
            tags=None if tracked.private else ["NOT PRIVATE"],
            resume="allow",
            reinit="create_new",
            settings=settings,
        )

    def log(self, step: int, figures: Figures) -> None:
        """Add a point to each curve."""
        self._run.log(figures, step=step)

    def close(self, *, finished: bool) -> None:
        """Say how the run ended."""
        self._run.finish(exit_code=0 if finished else 1)


class MLflow:
    """Writes through MLflow's client, which adds nothing about the machine or its user.

    Args:
        tracked: the run.
        uri: address of the store.
    """

    def __init__(self, tracked: Tracked, uri: str) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # it calls home by default
        from mlflow import MlflowClient
        from mlflow.entities import Param

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._client = MlflowClient(tracking_uri=uri)
        self._known: dict[str, int] = {}  # figure → the last step that the store has
        name = tracked.experiment
        known = self._client.get_experiment_by_name(name)
        under = str(known.experiment_id if known else self._client.create_experiment(name))
        found = self._client.search_runs([under], f"tags.`{JOB}` = '{tracked.job}'", max_results=1)
        self._is_new = not found
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {JOB: tracked.job, PRIVATE: str(tracked.private).lower()}
        self._id = self._client.create_run(under, run_name=tracked.job, tags=tags).info.run_id
        settings = [Param(name, value) for name, value in tracked.settings.items()]
        for first in range(0, len(settings), SETTINGS_AT_ONCE):
            self._client.log_batch(self._id, params=settings[first : first + SETTINGS_AT_ONCE])

    def log(self, step: int, figures: Figures) -> None:
        """Add a point to each curve that does not have it."""
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        points = [Metric(n, x, now, step) for n, x in figures.items() if self._last(n) < step]
        self._client.log_batch(self._id, metrics=points)
        self._known.update({point.key: step for point in points})

    def _last(self, name: str) -> int:
        if self._is_new:
            return -1
        if name not in self._known:
            history = self._client.get_metric_history(self._id, name)
            self._known[name] = max((point.step for point in history), default=-1)
        return self._known[name]

    def close(self, *, finished: bool) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")
