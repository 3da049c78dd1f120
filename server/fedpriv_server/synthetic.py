"""Make the synthetic set of a job, as its federation file asks for it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.config.job import JobConfig
from fedpriv.data.read import read_records
from fedpriv.errors import ConfigError
from fedpriv.methods.proposal import job_recipe
from fedpriv.models.base import load_base
from fedpriv.models.config import ModelSection
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.privatised import Privatised, post_process, public
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import device_of
from fedpriv.synthetic.chat import chat
from fedpriv.synthetic.endpoint import endpoint
from fedpriv.synthetic.evolution import Evolution, first_set
from fedpriv.synthetic.generator import Generator
from fedpriv.synthetic.instructed import InstructedGenerator
from fedpriv.synthetic.language_model import LanguageModelGenerator, Model
from fedpriv.synthetic.records import MAX_SET, MAX_TEXT, Record, SyntheticSet, characters
from fedpriv_server.evaluation import evaluation_spec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def evolution_of(
    config: JobConfig,
    tokenizer: PreTrainedTokenizerBase,
    pool: WorkerPool,
    vector: Callable[[], Privatised[Vector]],
    folder: Path,
    kept: Privatised[Sequence[Record]] | None = None,
) -> Evolution | None:
    """Make the synthetic set, and what makes it evolve. Return None for a job without a set.

    Args:
        pool: lends the model that is trained.
        vector: returns the present trained values.
        folder: holds a service's answers, and a cache while public records are read.
        kept: the set of a job that goes on; None at the beginning.

    Raises:
        DataError, ConfigError: the records to begin with can't be read, or are too few.
        RoundError: the generator made too little.
    """
    settings = config.synthetic
    if settings is None:
        return None

    @contextmanager
    def trained() -> Iterator[Model]:
        with pool.borrow(job_recipe(config)) as worker:
            worker.vector.write(vector().value)
            yield worker.model, worker.base.tokenizer

    generator = generator_of(config, trained, folder / "answers")
    if kept is not None:
        first = post_process(SyntheticSet, kept)
    else:
        with tempfile.TemporaryDirectory(dir=folder, prefix="cache-") as cache:
            given = synthetic_records(config, Path(cache))
        first = public(first_set(settings, given, generator, config.job.seed))
    spec = evaluation_spec(config)
    return Evolution(settings, first, spec, tokenizer, generator, config.job.seed)


def generator_of(
    config: JobConfig, trained: Callable[[], AbstractContextManager[Model]], answers: Path
) -> Generator | None:
    """Return the generator of new records for a job. Return None for a job without one.

    Args:
        trained: lends the model that is trained, with its present values.

    Raises:
        ConfigError: the generator can't make records for this job.
        ModelError: there is no such model.
    """
    settings = config.synthetic and config.synthetic.generator
    if not settings:
        return None
    fields, longest = tuple(config.data.columns), config.model.max_length
    compute = job_recipe(config).compute
    if "messages" in fields:
        raise ConfigError(
            "makes no conversations",
            key="synthetic.generator",
            fix="Name conversations in synthetic.data, and leave the generator out.",
        )
    if settings.prompt is not None and "prompt" not in fields:
        raise ConfigError(
            "belongs to records with a prompt and a completion",
            key="synthetic.generator.prompt",
            value=settings.prompt,
            fix="Leave it out, or name both columns in data.columns.",
        )
    lend, instructed = trained, settings.kind == "endpoint"
    if settings.kind == "local":
        model = ModelSection(name=str(settings.model))
        base: Any = load_base(model, dtype=compute.dtype, seed=config.job.seed)
        base.model.to(device_of(compute.device))

        def frozen() -> AbstractContextManager[Model]:
            return nullcontext((base.model, base.tokenizer))

        lend, instructed = frozen, bool(base.tokenizer.chat_template)
    if not instructed and config.model.task == "classification":
        raise ConfigError(
            "makes texts without a label",
            key="synthetic.generator.kind",
            value=settings.kind,
            fix="Use an endpoint, or a local model with a chat template.",
        )
    if not instructed:
        return LanguageModelGenerator(lend, settings, fields, longest)
    if settings.describe is None:
        raise ConfigError(
            "is missing", key="synthetic.generator.describe", fix="Say what a record is."
        )
    if settings.kind == "endpoint":
        ask = endpoint(settings, longest=longest, cache=answers)
    else:
        ask = chat(lend, temperature=settings.temperature, longest=longest)
    labels = config.model.labels
    return InstructedGenerator(ask, settings.describe, fields, labels, settings.prompt)


def synthetic_records(config: JobConfig, cache_dir: Path) -> list[Record]:
    """Read the public records that a synthetic set begins with, as texts (none without a file).

    Raises:
        DataError: the records can't be read.
        ConfigError: there are too few records, and no generator makes the missing ones.
    """
    wanted = config.synthetic
    if wanted is None or wanted.data is None:
        return []
    columns, key = config.data.columns, "synthetic.data"
    records = read_records(wanted.data, columns, unit="record", cache_dir=cache_dir, key=key)
    if len(records) < wanted.size and wanted.generator is None:
        raise ConfigError(
            f"has {len(records)} records, and the set needs {wanted.size}",
            file=wanted.data,
            key="synthetic.size",
            value=wanted.size,
            fix="Lower it, name more records, or set synthetic.generator.",
        )
    chosen = records.select(range(min(wanted.size, len(records))))
    found: list[Record] = [{field: _as_text(one[field]) for field in columns} for one in chosen]
    lengths = [max(map(len, record.values())) for record in found]
    longest = max(lengths)
    if longest > MAX_TEXT or characters(found) > MAX_SET:
        raise ConfigError(
            f"row {lengths.index(longest) + 1} has a text of {longest:,} characters, and the set"
            f" has {characters(found):,}; at most {MAX_TEXT:,} and {MAX_SET:,} are sent",
            file=wanted.data,
            key="synthetic.data",
            fix="Name shorter records, or fewer: only the first window of a record is used.",
        )
    return found


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value) if value is not None else ""
