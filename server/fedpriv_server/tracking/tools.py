"""A function for each tool: it tells the tool about a run that has ended.

The tool is imported only here, which takes seconds. An error is logged, and never ends the job.
`rounds` are the figures of each round; round 0 is before the first. `finished` is false for a job
that was interrupted. If such a job goes on, all of it is told again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence

from fedpriv.config.job import JobConfig
from fedpriv_server.run_directory import RunDirectory
from fedpriv_server.tracking.public import Figures, settings_of

FOLDER = "tracking"  # a folder of the run directory
SETTINGS_AT_ONCE = 100  # as many as a store takes in one call


def to_tensorboard(
    config: JobConfig, run: RunDirectory, rounds: Sequence[Figures], finished: bool
) -> None:
    """Write event files. TensorBoard drops from the run's earlier files what is told again."""
    from torch.utils.tensorboard.writer import SummaryWriter

    rows = "".join(f"| {name} | {value} |\n" for name, value in settings_of(config, run).items())
    stamp = "" if run.info["private"] else "**NOT PRIVATE**: seeded noise.\n\n"
    with SummaryWriter(str(run.path / FOLDER / "tensorboard"), purge_step=0) as writer:
        writer.add_text("settings", f"{stamp}| setting | value |\n|---|---|\n{rows}", 0)
        for step, figures in enumerate(rounds):
            for name, value in figures.items():
                writer.add_scalar(name, value, step)


def to_wandb(
    config: JobConfig, run: RunDirectory, rounds: Sequence[Figures], finished: bool
) -> None:
    """Write an offline run with the job's id. W&B collects nothing on machine, code and user.

    A job that goes on writes another part of the same run.
    """
    os.environ["WANDB_ERROR_REPORTING"] = "false"  # it calls home by default
    import wandb

    folder = run.path / FOLDER
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
    written = wandb.init(
        project=config.tracking.experiment,
        id=run.info["job_id"],
        name=run.info["job_id"],
        config=settings_of(config, run),
        tags=None if run.info["private"] else ["NOT PRIVATE"],
        resume="allow",
        reinit="create_new",
        settings=settings,
    )
    for step, figures in enumerate(rounds):
        written.log(figures, step=step)
    written.finish(exit_code=0 if finished else 1)


def to_mlflow(
    config: JobConfig, run: RunDirectory, rounds: Sequence[Figures], finished: bool
) -> None:
    """Write a run through MLflow's client, which adds nothing about the machine or its user.

    A job that goes on replaces its earlier run.
    """
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # it calls home by default
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    client = MlflowClient(tracking_uri=config.tracking.mlflow)
    job, experiment = run.info["job_id"], config.tracking.experiment
    known = client.get_experiment_by_name(experiment)
    under = known.experiment_id if known else client.create_experiment(experiment)
    for old in client.search_runs([under], f"tags.`fedpriv.job_id` = '{job}'"):
        client.delete_run(old.info.run_id)
    tags = {"fedpriv.job_id": job, "fedpriv.private": str(run.info["private"]).lower()}
    made = client.create_run(under, run_name=job, tags=tags).info.run_id
    settings = [Param(name, value) for name, value in settings_of(config, run).items()]
    for first in range(0, len(settings), SETTINGS_AT_ONCE):
        client.log_batch(made, params=settings[first : first + SETTINGS_AT_ONCE])
    now = time.time_ns() // 1_000_000
    for step, figures in enumerate(rounds):
        client.log_batch(made, metrics=[Metric(name, x, now, step) for name, x in figures.items()])
    client.set_terminated(made, "FINISHED" if finished else "KILLED")
