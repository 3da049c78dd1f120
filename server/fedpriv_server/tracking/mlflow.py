"""MLflow: a run in a store, which a job that goes on finds again by its id."""

from __future__ import annotations

import logging
import os
import time

from fedpriv_server.tracking.public import Figures, Tracked

JOB, PRIVATE = "fedpriv.job_id", "fedpriv.private"  # tags
SETTINGS_AT_ONCE = 100  # which a store takes


class MLflow:
    """Writes through MLflow's client, which adds nothing of the machine or of who uses it.

    Args:
        tracked: the run.
        uri: of the store.
    """

    def __init__(self, tracked: Tracked, uri: str) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # it calls home by default
        from mlflow import MlflowClient
        from mlflow.entities import Param

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._client = MlflowClient(tracking_uri=uri)
        self._known: dict[str, int] = {}  # figure → the last step that the store has of it
        experiment = self._client.get_experiment_by_name(tracked.experiment)
        if experiment is None:
            under = str(self._client.create_experiment(tracked.experiment))
        else:
            under = str(experiment.experiment_id)
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
        """Say how it ended."""
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")
