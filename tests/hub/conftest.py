"""Run directories of small models, as a job leaves them, without the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.plain_training.adapter import write_adapter
from fedpriv.privacy.config import PrivacySection
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.pool import make_worker
from fedpriv.private_training.worker import ModelRecipe, Worker
from fedpriv.protocol import Proposal
from fedpriv.report import received
from fedpriv.report.budget import BudgetReport
from tests.hub.hub_runs import MakeRun, report


@pytest.fixture
def make_run(tmp_path: Path, model_folder: Any) -> MakeRun:
    """A factory of run directories, each with a worker whose model is the trained one."""

    def make(
        kind: str = "llama",
        *,
        name: str | None = None,
        task: Any = "causal-lm",
        pooling: Any = "own",
        dtype: Any = "float32",
        quantize: Any = None,
        targets: Any = "auto",
        adapter: Any = "federated",
        reports: tuple[BudgetReport, ...] = (report("north"), report("south")),
        model: dict[str, Any] | None = None,
        lora: dict[str, Any] | None = None,
        columns: dict[str, str] | None = None,
        **changes: Any,
    ) -> tuple[Path, Worker]:
        recipe = ModelRecipe(
            ModelSection(
                name=name or str(model_folder(kind, **(model or {}))),
                task=task,
                labels=("no", "yes", "may be") if task == "classification" else (),
                max_length=32,
                pooling=pooling,
                quantize=quantize,
            ),
            LoraSection(r=2, alpha=4, target_modules=targets, **(lora or {})),
            3,
            ComputeSection(device="cpu", dtype=dtype),
        )
        worker = make_worker(recipe)
        labelled = ("label", "text") if recipe.model.labels else ("text",)
        columns = columns or {field: field for field in labelled}
        proposal = Proposal(
            job_id="job-1",
            method="dp-lora",
            steps=2,
            seed=recipe.seed,
            fields=tuple(sorted(columns)),
            model=recipe.model,
            lora=recipe.lora,
            privacy=PrivacySection(epsilon=5.0, delta=1e-3, sample_rate=0.5),
            base_digest=worker.base.digest,
            vector_digest=worker.vector.digest,
        )
        values = np.random.default_rng(0).normal(scale=1.0, size=worker.vector.size)
        run = tmp_path / "run"
        run.mkdir()
        write_adapter(
            run / "adapter", worker, values.astype(np.float32), proposal, "", kind=adapter
        )
        info = {
            "format": 1,
            "job": {"name": "trial", "method": "dp-lora", "rounds": 2, "engine": "network"},
            "job_id": "job-1",
            "status": "finished",
            "started": "2026-11-21T01:05:12+00:00",
            "config_digest": "sha256:00",
            "config": {
                "model": recipe.model.model_dump(mode="json"),
                "compute": recipe.compute.model_dump(mode="json"),
                "data": {"columns": columns},
            },
            "versions": {"fedpriv": "0.1.0"},
            "model": {"name": recipe.model.name, "task": task, "digest": worker.base.digest},
            "private": True,
            "baseline": {"eval_loss": 3.5, "eval_accuracy": 0.25},
        }
        (run / "run.json").write_text(json.dumps(info | changes))
        row = {"bytes_up": 1, "bytes_down": 1, "seconds": 1.0, "sites": {"north": {"status": "ok"}}}
        rows = ({"round": 1} | row, {"round": 2, "eval_loss": 3.25, "eval_accuracy": 0.5} | row)
        (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
        for one in reports:
            (run / "sites" / one.site).mkdir(parents=True)
            received.write(one, run / "sites" / one.site / "budget.json")
        (run / "private" / "north").mkdir(parents=True)
        (run / "private" / "north" / "report.key").write_text("not to be handed on")
        return run, worker

    return make
