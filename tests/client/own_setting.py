"""A site with a ledger, its records, and the adapter of a job that was handed over to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.config.load import load_site
from fedpriv.config.personal import OwnSiteFile
from fedpriv.files import private_folder
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.models.stored import digest_of
from fedpriv.plain_training.adapter import write_adapter
from fedpriv.privacy.config import PrivacySection
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import ModelRecipe
from fedpriv.protocol import Proposal
from fedpriv_client.handover import said
from fedpriv_client.init import init_site
from fedpriv_client.site_settings import adapters_folder

COMPUTE = ComputeSection(device="cpu")
QUICK = "rates = [3e-2]\nepochs = 3\nbatch_size = 8\nvalidation = 0.25"


WORDS = ("fever", "cough", "pain", "chest", "heart", "lungs")


def notes(count: int = 24) -> list[dict[str, str]]:
    """Records of a site, all different."""
    return [{"note": f"{WORDS[i % 6]} {WORDS[i // 6 % 6]} {i}"} for i in range(count)]


class OwnSetting:
    """A site's file and folder.

    Args:
        columns: field → column.
        rows: records of the site.
    """

    def __init__(
        self,
        folder: Path,
        model: Path,
        columns: Mapping[str, str],
        rows: Sequence[Mapping[str, Any]],
        *,
        labels: tuple[str, ...] = (),
        held_out: str = "held_out = 0.25",
        personal: str = QUICK,
    ) -> None:
        self.folder, self.model, self.config = folder, model, folder / "site.toml"
        (folder / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        shown = ", ".join(f'{field} = "{column}"' for field, column in columns.items())
        self.digest = digest_of(str(model))
        self.config.write_text(
            f"""
site = {{ name = "clinic" }}
server = {{ address = "127.0.0.1:1", key = "site.key", plain = true }}
[data]
path = "notes.jsonl"
columns = {{ {shown} }}
max_records_per_unit = 2
size = {len(rows)}
labels = {json.dumps(labels)}
{held_out}
[budget]
epsilon = 10.0
per_job = 4.0
[allow]
model = "{model}"
model_digest = "{self.digest}"
[personal]
{personal}
[compute]
device = "cpu"
"""
        )
        init_site(self.file, self.config)
        task: Any = "classification" if labels else "causal-lm"
        self.targets = ("query", "value") if labels else ("q_proj", "v_proj")
        self.recipe = ModelRecipe(
            ModelSection(name="elsewhere", task=task, labels=labels, max_length=32),
            LoraSection(r=2, target_modules=self.targets),
            0,
            COMPUTE,
        )
        self.fields = tuple(sorted(columns))

    @property
    def file(self) -> OwnSiteFile:
        return load_site(self.config)

    @property
    def state(self) -> Path:
        return self.file.site.state_dir

    def change(self, old: str, new: str) -> None:
        text = self.config.read_text()
        assert old in text
        self.config.write_text(text.replace(old, new))

    def hand_over(self, job: str = "job-1", *, scale: float = 0.05, **changes: Any) -> Path:
        """The adapter of a job, as a server handed it over."""
        model = self.recipe.model.model_copy(update={"name": str(self.model)})
        recipe = ModelRecipe(model, self.recipe.lora, 0, COMPUTE)
        with WorkerPool(1).borrow(recipe) as worker:
            proposal = Proposal(
                job_id=job,
                method="dp-lora",
                steps=4,
                seed=0,
                fields=self.fields,
                model=self.recipe.model,
                lora=self.recipe.lora,
                privacy=PrivacySection(
                    epsilon=5.0, delta=1e-3, sample_rate=0.5, max_records_per_unit=2
                ),
                base_digest=worker.base.digest,
                vector_digest=worker.vector.digest,
            ).model_copy(update=changes)
            drawn = np.random.default_rng(0).normal(size=worker.vector.size) * scale
            values = (worker.initial + drawn).astype(np.float32)
            folder = private_folder(adapters_folder(self.state)) / job
            own = said(self.file.data.held_out)
            write_adapter(
                folder, worker, values, proposal, "a card", kind="federated", held_out=own
            )
        return folder


def tree(folder: Path) -> dict[str, bytes]:
    """Every file of a folder with its content."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def invoke(setting: OwnSetting, *arguments: str) -> Any:
    """What `fedpriv-client` answers for the site."""
    from typer.testing import CliRunner

    from fedpriv_client.cli import app

    return CliRunner().invoke(app, [*arguments, "--config", str(setting.config)])
