"""Site models of small random bases, with adapters that were drawn instead of trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.plain_training.adapter import write_adapter
from fedpriv.privacy.config import PrivacySection
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.pool import make_worker
from fedpriv.private_training.worker import ModelRecipe
from fedpriv.protocol import Proposal
from fedpriv.serving.write import write_site_model
from tests.peft_adapters import write_peft_adapter
from tests.serving.answering import KINDS, Made, MakeSiteModel


@pytest.fixture(scope="module")
def make_site_model(tmp_path_factory: pytest.TempPathFactory, model_folder: Any) -> MakeSiteModel:
    """A factory of site models, each with a worker that has the same model and what was drawn."""

    def make(
        kind: str | Path = "llama",
        *,
        task: Any = "causal-lm",
        pooling: Any = "own",
        quantize: Any = None,
        targets: Any = "all-linear",
        weights: dict[str, float] | None = None,
        whole: tuple[str, ...] = (),
        begin_as: Any = None,
        **changes: Any,
    ) -> Made:
        tmp_path = tmp_path_factory.mktemp("site")
        base = kind if isinstance(kind, Path) else model_folder(kind, **changes)
        begin = None if begin_as is None else str(tmp_path / "begin")
        if begin is not None:
            write_peft_adapter(tmp_path / "begin", base, r=2, lora_alpha=4, target_modules=targets)
        recipe = ModelRecipe(
            ModelSection(
                name=str(base),
                begin=begin,
                begin_as=begin_as or "continued",
                task=task,
                labels=("no", "yes", "may be") if task == "classification" else (),
                max_length=32,
                pooling=pooling,
                quantize=quantize,
            ),
            LoraSection(r=2, alpha=4, target_modules=targets, modules_to_save=whole),
            3,
            ComputeSection(device="cpu"),
        )
        worker = make_worker(recipe)
        proposal = Proposal(
            job_id="job-1",
            method="dp-lora",
            steps=2,
            seed=recipe.seed,
            fields=("label", "text") if recipe.model.labels else ("text",),
            model=recipe.model,
            lora=recipe.lora,
            privacy=PrivacySection(epsilon=5.0, delta=1e-3, sample_rate=0.5),
            base_digest=worker.base.digest,
            begin_digest=worker.base.begin_digest,
            vector_digest=worker.vector.digest,
        )
        weights = weights or {"alone": 0.5, "personal": 0.3, "federated": 0.2}
        values, adapters = {}, {}
        for index, name in enumerate(weights):
            drawn = np.random.default_rng(index).normal(scale=0.5, size=worker.vector.size)
            values[name] = worker.initial + drawn.astype(np.float32)
            adapters[name] = tmp_path / "adapters" / name
            write_adapter(adapters[name], worker, values[name], proposal, "", kind=KINDS[name])
        made = Made(tmp_path / "site-model", worker, weights, values, adapters)
        return replace(
            made,
            folder=write_site_model(
                made.folder, recipe, adapters, weights, site="north", job="job-1"
            ),
        )

    return make


@pytest.fixture(scope="module")
def llama(make_site_model: MakeSiteModel) -> Made:
    """Three adapters on a small llama."""
    return make_site_model()
