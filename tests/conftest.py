"""Small random models of real architectures, and a tokenizer of bytes to go with them."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from fedpriv.environment import set_environment
from tests.small_models import ENCODERS, TARGETS, small_config

set_environment()
os.environ.setdefault("OMP_NUM_THREADS", "1")  # a worker a core; small matrices gain nothing
# A shell lets what it starts in the background ignore Ctrl-C, and all that is started from there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["FEDPRIV_CACHE"] = ""  # every model is tried anew
os.environ["HF_HUB_OFFLINE"] = "1"  # a model that is not there is looked up for a minute
Make = Callable[..., Any]
HERE = Path(__file__).parent
if "FEDPRIV_TEST_PERMUTED" in os.environ:  # to stand in for another processor, in every process
    from tests import arithmetic  # noqa: F401

    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE / "permuted"), str(HERE.parent)])
MEMORY, ROOM = Path("/dev/shm"), 8 << 30  # bytes that all tests together never need
DEFAULT = "not slow and not nightly"  # the expression of pyproject.toml
# Whose slow tests take longest: they begin first, or one worker would be left with them in the end.
LONGEST = (
    "network/test_wires.py",
    "deploy/test_guide.py",
    "mutations/test_mutations.py",
    "audit/test_pipeline.py",
    "comparison/test_comparison.py",
    "simulation/test_secure_sum.py",
    "network/test_absence.py",
    "deploy/test_slurm.py",
    "benchmarks/test_gpu.py",
    "test_docs.py",
    "simulation/test_hosts.py",
)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two, and three in the slow runs, where much waits for processes, networks and clocks.

    None for tests that are named and for one file, which one worker would have anyway.
    """
    alone = len(config.args) == 1 and config.args[0].endswith(".py")
    if alone or _named(config):
        return 0
    return 2 if config.option.markexpr == DEFAULT else 3


def pytest_configure(config: pytest.Config) -> None:
    """Choose slow tests where they are named, how many examples a property gets, and a folder.

    Ledgers wait for the disk at every step. A test's own need not outlive a crash of the machine,
    so temporary folders are in memory where there is room.
    """
    there = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    runs = there and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC  # as in many containers
    if runs and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    if _named(config) and config.option.markexpr == DEFAULT:
        config.option.markexpr = ""
    config.option.loadscopereorder = config.option.markexpr == DEFAULT  # else as `LONGEST` has it
    # A slow machine is no fault; and whatever the runner of the mutations has set stays.
    every = hypothesis.settings(hypothesis.settings.default, deadline=None)
    hypothesis.settings.register_profile("every example", every)
    hypothesis.settings.register_profile("a fifth", every, max_examples=every.max_examples // 5)
    few = "not nightly" in config.option.markexpr
    hypothesis.settings.load_profile("a fifth" if few else "every example")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In the slow runs, the files of `LONGEST` first, the others in their own order."""
    if config.option.markexpr != DEFAULT:
        place = {HERE / file: number for number, file in enumerate(LONGEST)}
        items.sort(key=lambda item: place.get(item.path, len(place)))  # stable


def _named(config: pytest.Config) -> bool:
    """Whether single tests were asked for, each by its node id."""
    return all("::" in argument for argument in config.args)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """A command directs and quietens the logs of its process, which the next test needs."""
    root, handlers = logging.getLogger(), logging.getLogger().handlers[:]
    names = (None, "fedpriv", "fedpriv_client", "fedpriv_server")
    logs = [logging.getLogger(name) for name in names]
    levels = [log.level for log in logs]
    try:
        return (yield)
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
        root.handlers[:] = handlers


@pytest.fixture(scope="session")
def byte_tokenizer() -> Any:
    """One token a byte; <pad>, <bos>, <eos> are 0, 1, 2."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = ["<pad>", "<bos>", "<eos>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*specials, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, byte_tokenizer: Any) -> Make:
    """A factory of Hugging Face folders with a small random causal LM or encoder."""
    made: dict[str, Path] = {}

    def make(kind: str = "llama", **changes: Any) -> Path:
        import torch
        import transformers

        key = f"{kind}-{sorted(changes.items())}"
        if key not in made:
            folder = tmp_path_factory.mktemp(kind)
            torch.manual_seed(0)
            config = small_config(kind, **changes)
            if kind in ENCODERS:
                model: Any = transformers.AutoModelForSequenceClassification.from_config(config)
            else:
                model = transformers.AutoModelForCausalLM.from_config(config)
            model.save_pretrained(folder)
            byte_tokenizer.save_pretrained(folder)
            made[key] = folder
        return made[key]

    return make


@pytest.fixture(scope="module")
def worker(model_folder: Make) -> Any:
    """A worker on a small random Llama with LoRA of rank 2, in float32."""
    from fedpriv.models.config import LoraSection, ModelSection
    from fedpriv.private_training import pool
    from fedpriv.private_training.config import ComputeSection
    from fedpriv.private_training.worker import ModelRecipe

    model = ModelSection(name=str(model_folder("llama")), max_length=32)
    return pool.make_worker(
        ModelRecipe(model, LoraSection(r=2, alpha=4), 0, ComputeSection(device="cpu"))
    )


@pytest.fixture
def make_worker(model_folder: Make) -> Make:
    """A factory of workers on small random models, float64 unless told otherwise."""

    def make(
        kind: str = "llama",
        *,
        task: str = "causal-lm",
        dtype: str = "float64",
        r: int = 4,
        targets: Any = None,
        microbatch: int = 4,
        pooling: Any = "own",
        modules_to_save: tuple[str, ...] = (),
        gradient_checkpointing: bool = False,
        engine: Any = "fedpriv",
        devices: int = 1,
        quantize: Any = None,
        **changes: Any,
    ) -> Any:
        from fedpriv.models.config import LoraSection, ModelSection
        from fedpriv.private_training.config import ComputeSection
        from fedpriv.private_training.pool import make_worker
        from fedpriv.private_training.worker import ModelRecipe

        labels = ("no", "yes", "maybe") if task == "classification" else ()
        recipe = ModelRecipe(
            ModelSection(
                name=str(model_folder(kind, **changes)),
                task=task,
                labels=labels,
                max_length=64,
                pooling=pooling,
                quantize=quantize,
            ),
            LoraSection(
                r=r,
                alpha=2.0 * r,
                target_modules=targets or TARGETS[kind],
                modules_to_save=modules_to_save,
            ),
            seed=3,
            compute=ComputeSection(
                device="cpu",
                dtype=dtype,
                microbatch=microbatch,
                gradient_checkpointing=gradient_checkpointing,
                engine=engine,
                devices=devices,
            ),
        )
        return make_worker(recipe)

    return make


WORDS = ("fever", "cough", "pain", "chest", "heart", "lungs", "clear", "normal", "denies", "blood")


def note(seed: int) -> str:
    """A short note of made-up text, the same for a seed."""
    import random

    return " ".join(random.Random(seed).choices(WORDS, k=4))


@pytest.fixture(scope="session")
def federation_in(model_folder: Make) -> Make:
    """A factory of federation files in a folder: two sites, a tiny model, a few seconds to run."""
    import json

    def make(
        folder: Path, rounds: int = 3, sites: int = 2, public: bool = True, extra: str = ""
    ) -> Path:
        folder.mkdir(exist_ok=True)
        for index in range(sites + 1):
            name = f"site-{index}.jsonl" if index < sites else "held-out.jsonl"
            rows = [{"note": note(100 * index + i), "patient": i // 2} for i in range(24)]
            (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        tables = "".join(
            f'[[sites]]\nname = "site-{i}"\ndata = "site-{i}.jsonl"\nsize = 24\n'
            for i in range(sites)
        )
        file = folder / "federation.toml"
        file.write_text(
            f"""
[job]
name = "test"
rounds = {rounds}
data_is_public = {str(public).lower()}
min_sites = {sites}
[model]
name = "{model_folder("llama")}"
max_length = 32
[data]
columns = {{ text = "note" }}
[lora]
r = 2
alpha = 4
[privacy]
epsilon = 6.0
delta = 1e-3
sample_rate = 0.3
max_records_per_unit = 1
[optimizer]
lr = 1e-2
[evaluation]
data = "held-out.jsonl"
{extra}
{tables}"""
        )
        return file

    return make


@pytest.fixture
def federation(tmp_path: Path, federation_in: Make) -> Make:
    """The same in the test's own folder."""
    return partial(federation_in, tmp_path / "federation")


@pytest.fixture
def pay(tmp_path: Path) -> Make:
    """A factory of reservations: of a new ledger each time, by the rule that takes any plan."""
    from dataclasses import replace
    from itertools import count

    from fedpriv.privacy.ledger.ledger import Ledger, Plan, Reservation, Terms

    numbers = count()

    def paid(plan: Plan, *, private: bool = False) -> Reservation:
        path = tmp_path / f"paid-{next(numbers)}.db"
        terms = Terms("0" * 32, 2, "record", 1, 0.4, 1e6, simulated=True, private=private)
        if plan.is_shared:
            terms = replace(terms, budget_alone=1e9)
        with Ledger.create(path, terms) as ledger:
            ledger.commit(plan)
            reservation = ledger.reserve(plan.job, 0, "sha256:" + "0" * 64)
        assert isinstance(reservation, Reservation)
        return reservation

    return paid
