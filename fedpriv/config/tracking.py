"""`[tracking]`: where else the public figures of a job are shown."""

from __future__ import annotations

from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from fedpriv.section import Section


class TrackingSection(Section):
    """Tools that are told of every round what metrics.jsonl holds, and nothing else.

    They hear of it while the job goes on if `job.data_is_public` is true, and else when it has
    ended: they keep times, and how long a round takes depends on who was sampled.

    Each needs an extra of its name, such as ``pip install 'fedpriv[mlflow]'``. One that fails while
    the job goes on is told no more, and ends nothing. What this table says is no part of the job:
    a run may go on with another.
    """

    tensorboard: bool = Field(
        False, description="Write event files into tracking/tensorboard of the run directory."
    )
    mlflow: str | None = Field(
        None,
        min_length=1,
        description="The MLflow store, as its tracking URI: an https:// address, or a database such"
        " as sqlite:////srv/mlflow.db. Who may write there is said in MLFLOW_TRACKING_TOKEN, or in"
        " MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, never here.",
    )
    wandb: bool = Field(
        False,
        description="Write a run of Weights & Biases into tracking/wandb of the run directory,"
        " always offline; `wandb sync` uploads it, if somebody wants that.",
    )
    experiment: str = Field(
        "fedpriv",
        min_length=1,
        max_length=128,
        description="The experiment of MLflow and the project of Weights & Biases that the run is"
        " in.",
    )

    @property
    def backends(self) -> tuple[str, ...]:
        """The tools that are told, by name."""
        wanted = {
            "tensorboard": self.tensorboard,
            "mlflow": self.mlflow is not None,
            "wandb": self.wandb,
        }
        return tuple(name for name, is_wanted in wanted.items() if is_wanted)

    @model_validator(mode="after")
    def _no_password(self) -> Self:
        if self.mlflow is not None and "@" in urlsplit(self.mlflow).netloc:
            raise ValueError(
                "mlflow: names a user, and this file is handed around; use the environment"
                " variables MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        return self
