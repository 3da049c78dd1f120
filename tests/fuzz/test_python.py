"""The functions of `import fedpriv` with one thing wrong: they work, or refuse it by name."""

from __future__ import annotations

import datetime
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from dataclasses import fields as fields_of
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import datasets
import numpy as np
import pandas
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    TrainerCallback,
)

import fedpriv
from fedpriv.errors import FedprivError
from fedpriv_simulation import simulate as simulation

Make = Callable[..., Any]
QUICK, LONG = 150, 5_000
ROWS = [{"text": f"fever {i}", "mrn": i // 2} for i in range(8)]
TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


class ReachedError(FedprivError):
    """A simulation would begin now, which no try waits for."""


@dataclass
class Workshop:
    """What calls are made with, and made anew for each try where a try may change it."""

    folder: Path
    models: dict[str, Callable[[], Any]]
    tokenizer: Any
    tries: int = 0
    made: list[Any] = field(default_factory=list)

    def new(self) -> Path:
        self.tries += 1
        return self.folder / f"try-{self.tries}"

    def close(self) -> None:
        for one in self.made:
            getattr(one, "private", one).close()
        self.made.clear()


@pytest.fixture(scope="module")
def workshop(
    tmp_path_factory: pytest.TempPathFactory, model_folder: Make, byte_tokenizer: Any
) -> Iterator[Workshop]:
    folder = tmp_path_factory.mktemp("python")
    before = Path.cwd()
    os.chdir(folder)  # a path that is altered is one of here

    def lora(kind: str = "llama") -> Any:
        base = AutoModelForCausalLM.from_pretrained(model_folder(kind))
        targets = ["q_proj"] if kind == "llama" else ["c_attn"]
        config = LoraConfig(r=2, target_modules=targets, task_type="CAUSAL_LM")
        return get_peft_model(base, config)

    bert = model_folder("bert")
    models: dict[str, Callable[[], Any]] = {
        "with an adapter": lora,
        "another one": lambda: lora("gpt2"),
        "without an adapter": lambda: AutoModelForCausalLM.from_pretrained(model_folder("llama")),
        "a classifier": lambda: AutoModelForSequenceClassification.from_pretrained(bert),
        "an encoder": lambda: AutoModel.from_pretrained(bert),
        "of torch alone": lambda: torch.nn.Linear(3, 2),
        "the inside of one": lambda: lora().get_base_model(),
        "its name": lambda: str(model_folder("llama")),
        "its path": lambda: model_folder("llama"),
        "no name": lambda: "no/such-model",
        "a class": lambda: AutoModelForCausalLM,
    }
    yield Workshop(folder, models, byte_tokenizer)
    os.chdir(before)


def values(shop: Workshop) -> list[Callable[[], Any]]:
    """What is put in the place of something; those that are used up are made anew."""
    set_ = datasets.Dataset.from_list(ROWS)
    plain = [
        *(None, True, False, 0, 1, -1, 2, 10**30, 10**400, 0.0, -0.5, 0.5, 1.5, 1e308, 5e-324),
        *(float("nan"), float("inf"), -float("inf"), Decimal("NaN"), Decimal("1.0"), 1j),
        *(np.int64(2), np.float32("nan"), np.array([1, 2]), np.array([]), torch.tensor(1.0)),
        *("", " ", "x", "0", "128", "record", "a\0b", "\ud800", "ü" * 300, "../x", "None", "nan"),
        *(b"", b"x", bytearray(b"x"), Path(), Path("/"), Path("x"), Path("no/such/file")),
        *([], (), {}, set(), [None], [[]], [{}], [""], ["x"], [1, "x"], ["x", "x"], {"x"}),
        *({"": ""}, {1: 2}, {None: None}, {"x": None}, {"x": {"y": [1]}}, {(1, 2): 3}, {"text": 1}),
        *({"text": "text"}, {"text": "text", "label": "mrn"}, {"messages": "text"}, {"unit": "x"}),
        *(ROWS, ROWS[:1], [{**ROWS[0], "text": None}], [{"text": ""}], [{"messages": TALK}]),
        *([{"text": "a", "label": None}], [{1: "a"}], [{"text": ["a"]}], [{"text": b"a"}], [[1]]),
        *(pandas.DataFrame(ROWS), pandas.NA, pandas.Series([1]), range(3), int, object, len),
        *(set_, set_.with_format("torch"), set_.to_iterable_dataset(), slice(2), ..., type),
        *(datasets.DatasetDict(train=set_), datetime.date(2026, 1, 1), ValueError("x"), object()),
        *(LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"), LoraConfig(r=1)),
        *(TrainerCallback(), TrainerCallback, shop.tokenizer, torch.float32, torch.device("cpu")),
    ]
    deep: list[Any] = []
    deep.append(deep)
    made: list[Callable[[], Any]] = [lambda: (row for row in ROWS), lambda: deep]
    made += [lambda value=value: value for value in plain]  # type: ignore[misc]
    return made + list(shop.models.values())


Call = tuple[Callable[..., Any], Callable[[], dict[str, Any]]]


def calls(shop: Workshop) -> dict[str, Call]:
    """Valid calls, by interface."""
    file = shop.folder / "federation" / "federation.toml"
    privacy = {"epsilon": 4.0, "sample_rate": 0.5, "clip_norm": 0.1, "delta": 1e-3}
    tables: dict[str, Any] = {
        "job": {"rounds": 2},
        "privacy": {**privacy, "max_records_per_unit": 1},
        "lora": {"r": 2, "alpha": 4.0},
        "optimizer": {"lr": 0.1, "betas": [0.9, 0.99]},
        "evaluation": {"every": 2},
        "model": {"max_length": 16},
    }
    if not file.exists():
        fedpriv.write_federation(file.parent, ROWS, ROWS, sites=2, size=8, **tables)
    step = {"epsilon": 4.0, "delta": 1e-3, "sample_rate": 0.5, "max_records_per_unit": 1}
    step |= {"size": 20, "max_length": 16, "microbatch": 1, "columns": {"text": "text"}}

    def write(**given: Any) -> Any:
        return fedpriv.write_federation(
            given.pop("folder"), given.pop("records"), given.pop("public"), **given
        )

    def private_step(**given: Any) -> None:
        model, tokenizer, records = (given.pop(name) for name in ("model", "tokenizer", "records"))
        shop.made.append(fedpriv.PrivateStep(model, tokenizer, records, **given))

    def private_trainer(**given: Any) -> None:
        shop.made.append(fedpriv.PrivateTrainer(**given))

    def arguments(**changes: Any) -> dict[str, Any]:
        given = {"output_dir": str(shop.folder / "out"), "use_cpu": True, "save_strategy": "no"}
        given |= {"max_steps": 2, "per_device_train_batch_size": 4, "disable_tqdm": True}
        return {**given, **{k: v for k, v in step.items() if k != "sample_rate"}, **changes}

    def every_argument() -> dict[str, Any]:
        known = {one.name for one in fields_of(fedpriv.PrivateConfig) if one.init}
        return {**dict.fromkeys(sorted(known), ...), **arguments()}

    def private_config(**given: Any) -> Any:
        given = {key: value for key, value in given.items() if value is not ...}
        return fedpriv.PrivateConfig(**given)

    return {
        "plan": (
            fedpriv.plan,
            lambda: {"epsilon": 4.0, "delta": 1e-5, "batch": 16.0, "size": 250, "steps": 20},
        ),
        "load_job": (
            fedpriv.load_job,
            lambda: {"path": file, "overrides": ["privacy.epsilon=4", "job.rounds=1"]},
        ),
        "simulate": (
            fedpriv.simulate,
            lambda: {
                "job": file,
                "overrides": ["job.rounds=1", "privacy.epsilon=4"],
                "out": shop.new(),
                "resume": False,
                "insecure_seed": None,
                "quiet": True,
            },
        ),
        "write_federation": (
            write,
            lambda: {
                "folder": shop.new(),
                "records": ROWS,
                "public": ROWS,
                "sites": 2,
                "size": 8,
                "columns": {"text": "text"},
                **tables,
            },
        ),
        "PrivateStep": (
            private_step,
            lambda: {
                "model": shop.models["with an adapter"](),
                "tokenizer": shop.tokenizer,
                "records": ROWS,
                "steps": 2,
                "noise_multiplier": None,
                "batch": None,
                "clip_norm": 0.1,
                "unit": "mrn",
                "labels": (),
                "numerics": "default",
                "ledger": None,
                "witness": None,
                "job": "x",
                "engine": "fedpriv",
                "max_empty": 0.5,
                **step,
            },
        ),
        "PrivateConfig": (private_config, every_argument),
        "PrivateTrainer": (
            private_trainer,
            lambda: {
                "model": shop.models["without an adapter"](),
                "args": fedpriv.PrivateConfig(**arguments()),
                "train_dataset": ROWS,
                "eval_dataset": None,
                "processing_class": shop.tokenizer,
                "peft_config": LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"),
                "callbacks": [TrainerCallback()],
                "optimizers": (None, None),
            },
        ),
    }


def altered(value: Any, random: Random, others: list[Callable[[], Any]]) -> Any:
    """Something else in a value's place, or in that of one of its parts."""
    if random.random() < 0.5:
        if isinstance(value, Mapping) and value:
            key = random.choice(list(value))
            return {**value, key: altered(value[key], random, others)}
        if isinstance(value, list | tuple) and value:
            place = random.randrange(len(value))
            changed = altered(value[place], random, others)
            return type(value)([*value[:place], changed, *value[place + 1 :]])
    return random.choice(others)()


def fuzzed(shop: Workshop, tries: int, seed: str) -> tuple[Counter[str], dict[str, str]]:
    """What came of the tries, and what was neither taken nor refused by name."""
    random, others, interfaces = Random(seed), values(shop), calls(shop)
    shares = dict.fromkeys(interfaces, 1) | {"PrivateConfig": 4, "write_federation": 3}
    came, findings = Counter[str](), dict[str, str]()
    for number in range(tries):
        name = random.choices(list(shares), list(shares.values()))[0]
        call, valid = interfaces[name]
        given = valid()
        argument = random.choice(list(given))
        given[argument] = altered(given[argument], random, others)
        try:
            call(**given)
            came[f"{name}: works"] += 1
        except FedprivError as error:
            came[f"{name}: refused"] += 1
            if not str(error).strip():
                findings[f"{name}({argument}): says nothing"] = f"try {number}"
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
            shown = f"try {number}: {argument}={given[argument]!r:.200}: {error!s:.300}"
            findings[f"{name}({argument}): {place}"] = shown
        finally:
            shop.close()
    return came, findings


@pytest.fixture
def not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(*_: Any) -> None:
        raise ReachedError("The run would begin.")

    monkeypatch.setattr(simulation, "workers_of", reached)  # what a run begins with


def test_the_calls_that_are_altered_are_valid(workshop: Workshop, not_begun: None) -> None:
    for name, (call, given) in calls(workshop).items():
        if name == "simulate":
            with pytest.raises(ReachedError):
                call(**given())
        else:
            call(**given())
        workshop.close()


def test_one_thing_wrong_is_taken_or_refused_by_name(workshop: Workshop, not_begun: None) -> None:
    _, findings = fuzzed(workshop, QUICK, "tests")
    assert not findings, "\n".join(f"{key}\n  {text}" for key, text in findings.items())


@pytest.mark.nightly
def test_five_thousand_things_wrong(workshop: Workshop, not_begun: None) -> None:
    seed = os.environ.get("SEED") or os.urandom(4).hex()
    print(f"SEED={seed}")  # the same again
    came, findings = fuzzed(workshop, LONG, seed)
    print(*sorted(came.items()), sep="\n")
    assert not findings, "\n".join(f"{key}\n  {text}" for key, text in findings.items())
