"""Weights & Biases, offline: a run in the run directory, which somebody may upload or not."""

from __future__ import annotations

import os

from fedpriv_server.tracking.public import Figures, Tracked


class WeightsAndBiases:
    """Writes an offline run of the job's id, without what W&B collects of machine, code and user.

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
        """Say how it ended."""
        self._run.finish(exit_code=0 if finished else 1)
