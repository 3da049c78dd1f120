"""A run that all tools are told of: interrupted after two rounds of three, and gone on with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedpriv.config.load import load_job
from fedpriv_server.tracking import tracking
from fedpriv_simulation.simulate import Progress, simulate

RUN, STORE = "run", "mlflow.db"


@dataclass(frozen=True)
class Followed:
    """The run, and what of it is public.

    Attributes:
        said: round → figure → value, for round 0 those of the base model.
    """

    folder: Path
    job: str
    said: dict[int, dict[str, float]]

    @property
    def store(self) -> str:
        return f"sqlite:///{self.folder.with_name(STORE)}"


@pytest.fixture(scope="session")
def followed(federation_in: Callable[..., Path], tmp_path_factory: Any) -> Followed:
    """A federation of two sites, with looks at their held-out records, tracked by every tool."""
    folder = tmp_path_factory.mktemp("tracking")
    tables = f"""
[tracking]
tensorboard = true
mlflow = "sqlite:///{folder / STORE}"
wandb = true
experiment = "wards"
"""
    file, out = federation_in(folder / "federation", extra=tables), folder / RUN
    config = load_job(file)

    def stop(metrics: dict[str, Any]) -> None:
        if metrics["round"] == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tracking, "PATIENCE", 300.0)  # on a busy machine a new store takes long
        with pytest.raises(KeyboardInterrupt):
            simulate(config, out, source=file, progress=Progress(round_done=stop))
        outcome = simulate(config, out, source=file, resume=True)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    said = {0: outcome.baseline.as_dict(), **{row["round"]: _flat(row) for row in rows}}
    return Followed(out, outcome.run.info["job_id"], said)


def _flat(row: dict[str, Any]) -> dict[str, float]:
    """What a line of metrics.jsonl of this federation says, written out by hand."""
    flat = {key: row[key] for key in ("eval_loss", "eval_accuracy", "seconds")}
    flat |= {key: row[key] for key in ("bytes_up", "bytes_down")}
    for name, site in row["sites"].items():
        for key in ("noise_multiplier", "epsilon_spent", "epsilon_committed"):
            flat[f"sites/{name}/{key}"] = site[key]
    return flat
