"""`[tracking]`: where else the public figures of a job are shown."""

from __future__ import annotations

from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from fedpriv.section import Section


class TrackingSection(Section):
    """Tools that receive each round's entry of metrics.jsonl, and nothing else.

    They receive it when the job has ended or was interrupted: they keep times, and a round's
    duration depends on who was sampled.

    Each tool needs an extra of its name, such as ``pip install 'fedpriv[mlflow]'``. A tool that
    fails never ends a job. A run may continue with other tools.
    """

    tensorboard: bool = Field(
        False, description="Write event files to tracking/tensorboard of the run directory."
    )
    mlflow: str | None = Field(
        None,
        min_length=1,
        description="MLflow's tracking URI: an https:// address, or a database such as"
        " sqlite:////srv/mlflow.db. Put credentials into MLFLOW_TRACKING_TOKEN, or"
        " MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, never here.",
    )
    wandb: bool = Field(
        False,
        description="Write a Weights & Biases run to tracking/wandb of the run directory,"
        " offline. `wandb sync` uploads it.",
    )
    experiment: str = Field(
        "fedpriv",
        min_length=1,
        max_length=128,
        description="Experiment of MLflow and project of Weights & Biases.",
    )

    @property
    def backends(self) -> tuple[str, ...]:
        """The names of the tools that receive figures."""
        return tuple(name for name in ("tensorboard", "mlflow", "wandb") if getattr(self, name))

    @model_validator(mode="after")
    def _no_password(self) -> Self:
        if self.mlflow is not None and "@" in urlsplit(self.mlflow).netloc:
            raise ValueError(
                "mlflow: names a user, and this file is handed around; use the environment"
                " variables MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        return self
