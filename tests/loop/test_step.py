"""A private step of somebody's own loop: what it computes, what it costs, what it refuses."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from scipy.stats import binom, chi2
from transformers import AutoModelForSequenceClassification

from fedpriv.config.load import load_job
from fedpriv.data.encode import encode_text
from fedpriv.data.store import UnitStore
from fedpriv.errors import (
    BudgetError,
    ConfigError,
    DataError,
    FedprivError,
    LedgerError,
    ModelError,
    NotPrivateError,
    OverlapError,
    ProtocolError,
    SlotError,
)
from fedpriv.gradients.normalise import adapters_of
from fedpriv.loop import step as module
from fedpriv.loop.step import PrivateStep
from fedpriv.methods.proposal import job_recipe
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.ledger.ledger import Ledger, Terms
from fedpriv.privacy.ledger.rules import RdpRule, SumRule
from fedpriv.privacy.mechanism import execution
from fedpriv.privacy.mechanism.clip import MARGIN, ClippedSum
from fedpriv.privacy.mechanism.csprng import InsecureRandomness
from fedpriv.private_training.pool import load_model
from fedpriv.private_training.released import unpack
from fedpriv_simulation.simulate import simulate
from tests.arithmetic import Rounded
from tests.loop.conftest import SETTINGS
from tests.waiting import wait_until

Make = Callable[..., Any]


@pytest.fixture
def private_step(lora: Make, byte_tokenizer: Any, notes: Any) -> Iterator[Make]:
    """A factory of private steps, which are closed when the test is over."""
    made = []

    def make(records: Any = None, model: Any = None, **changes: Any) -> PrivateStep:
        records = notes if records is None else records
        settings = {**SETTINGS, **changes}
        step = PrivateStep(model or lora(), byte_tokenizer, records, **settings)
        made.append(step)
        return step

    yield make
    for step in made:
        step.close()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The samples that are drawn, with all noise off."""
    samples: list[list[int]] = []
    sample = execution.poisson_sample

    def keep(*arguments: Any) -> Any:
        samples.append(sample(*arguments).tolist())
        return np.array(samples[-1])

    monkeypatch.setattr(execution, "poisson_sample", keep)
    monkeypatch.setattr(execution, "rounded_gaussian", lambda size, *_: np.zeros(size))
    return samples


def by_hand(model: Any, tokenizer: Any, texts: list[str], clip_norm: float) -> np.ndarray:
    """A record at a time by plain autograd and the loss of transformers, clipped, added up."""
    trained = [p for p in model.parameters() if p.requires_grad]
    total = np.zeros(sum(p.numel() for p in trained))
    for text in texts:
        [example] = encode_text(text, tokenizer, 64, 1)
        ids = torch.tensor([example.input_ids])
        labels = torch.tensor([example.labels])
        loss = model(input_ids=ids, labels=labels).loss
        row = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, trained)]).double()
        total += (row * min(1.0, clip_norm * (1 - MARGIN) / float(row.norm()))).numpy()
    return total


@pytest.mark.parametrize("engine", ["fedpriv", "opacus"])
def test_a_step_is_the_clipped_sum_over_the_declared_batch(
    private_step: Make,
    lora: Make,
    byte_tokenizer: Any,
    notes: Any,
    drawn: list[list[int]],
    engine: str,
) -> None:
    """The divisor is what was declared, 0.3 × 51, whoever was drawn of the forty."""
    pytest.importorskip(engine)
    step = private_step(engine=engine)
    gradient = step.backward().value
    [sample] = drawn
    assert sample
    texts = [notes[place]["text"] for place in sample]
    model = lora().eval()
    expected = Rounded(
        lambda: by_hand(model, byte_tokenizer, texts, SETTINGS["clip_norm"]) / (0.3 * 51)
    )
    assert expected.off_by(gradient) <= 1
    grads = [p.grad.reshape(-1) for p in step._worker.model.parameters() if p.requires_grad]
    assert np.array_equal(torch.cat(grads).numpy(), gradient)


def test_each_adapters_part_can_have_a_fixed_length_instead(
    private_step: Make, lora: Make, byte_tokenizer: Any, notes: Any, drawn: list[list[int]]
) -> None:
    """Float32 rounds each of some 10³ values of a gradient, so norms agree to 10⁻⁴."""
    step = private_step(normalise=True)
    gradient, vector, model = step.backward().value, step._worker.vector, lora().eval()
    expected = np.zeros(vector.size)
    for place in drawn[0]:
        row = by_hand(model, byte_tokenizer, [notes[place]["text"]], 1e9)
        for columns in adapters_of(vector.names, vector.shapes).values():
            part = np.concatenate([np.arange(*ends) for ends in columns])
            length = SETTINGS["clip_norm"] * np.sqrt(len(part) / vector.size)
            expected[part] += row[part] * length / np.linalg.norm(row[part])
    expected /= 0.3 * 51
    assert gradient == pytest.approx(expected, rel=1e-3, abs=1e-4 * np.abs(expected).max())
    assert step.plan.proposal != private_step().plan.proposal


def test_clipping_bites_here(lora: Make, byte_tokenizer: Any, notes: Any) -> None:
    """Without it the test above would say nothing of it."""
    texts = [note["text"] for note in notes]
    clipped = by_hand(lora().eval(), byte_tokenizer, texts, SETTINGS["clip_norm"])
    whole = by_hand(lora().eval(), byte_tokenizer, texts, 1e9)
    assert np.abs(clipped - whole).max() > 0.1 * np.abs(clipped).max()


def test_it_releases_what_a_simulation_does_of_the_same_draws(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit: it is the same mechanism, not another like it."""
    file = federation(rounds=2, sites=1)
    config = load_job(file)
    outcome = simulate(config, tmp_path / "run", source=file, insecure_seed=5)
    with Ledger.open(tmp_path / "run/sites/site-0/ledger.db", reading=True) as paid:
        job = outcome.run.info["job_id"]
        plan, terms = paid.plan(job), paid.terms
        replies = [unpack(paid._chain.reply(job, slot) or b"").values for slot in (0, 1)]
    assert plan is not None
    rows = (file.parent / "site-0.jsonl").read_text().splitlines()
    base, model = load_model(job_recipe(config))
    own = tmp_path / "own.db"
    Ledger.create(
        own, Terms("0" * 32, 24, "record", 1, terms.delta, 100, simulated=False, private=False)
    ).close()
    monkeypatch.setattr(
        PrivateStep, "_csprng", lambda self, slot: InsecureRandomness(5, "site-0", slot)
    )
    step = PrivateStep(
        model,
        base.tokenizer,
        [json.loads(row) for row in rows],
        noise_multiplier=plan.noise_multiplier,
        sample_rate=plan.sample_rate,
        steps=plan.steps,
        clip_norm=plan.clip_norm,
        columns={"text": "note"},
        max_records_per_unit=1,
        max_length=32,
        ledger=own,
    )
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=config.optimizer.lr, weight_decay=0
    )
    for slot, reply in enumerate(replies):
        gradient = step.backward().value
        expected = reply / np.float32(plan.sample_rate * 24)
        if slot == 0:
            assert np.array_equal(gradient, expected)
        assert np.allclose(gradient, expected, rtol=1e-4, atol=1e-6)
        optimizer.step()
        optimizer.zero_grad()
    assert step.epsilon == outcome.budgets["site-0"].epsilon_spent
    step.close()


@pytest.mark.slow
def test_samples_are_poisson(private_step: Make) -> None:
    """Their sizes spread as coins do, and two units are together as often as chance has it."""
    steps, rate = 150, 0.3
    step = private_step(steps=steps, noise_multiplier=20.0)
    seen: list[list[Any]] = []
    place_of = {tuple(unit[0].input_ids): i for i, unit in enumerate(step._population.units)}

    class Watching:
        def clipped_sum(self, worker: Any, units: Any, *_: Any) -> ClippedSum:
            seen.append([place_of[tuple(unit[0].input_ids)] for unit in units])
            return ClippedSum(torch.zeros(step._execution.size, dtype=torch.float64), 0.0)

    step._method = Watching()  # type: ignore[assignment]
    for _ in range(steps):
        step.backward()
    sizes = np.array([len(sample) for sample in seen])
    spread = float(((sizes - 40 * rate) ** 2).sum() / (40 * rate * (1 - rate)))
    assert chi2.ppf(1e-7, steps) < spread < chi2.isf(1e-7, steps)
    together = sum({0, 1} <= set(sample) for sample in seen)
    assert binom.ppf(1e-7, steps, rate**2) <= together <= binom.isf(1e-7, steps, rate**2)


def test_a_step_is_paid_before_it_is_sampled(
    private_step: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = private_step()
    at_the_draw: list[Any] = []
    sample = execution.poisson_sample

    def look(*arguments: Any) -> Any:
        at_the_draw.append((step.ledger.slots(step.plan.job), step.ledger.plan(step.plan.job)))
        return sample(*arguments)

    monkeypatch.setattr(execution, "poisson_sample", look)
    step.backward()
    step.backward()
    assert at_the_draw == [
        ([(0, False)], step.plan),
        ([(0, True), (1, False)], step.plan),
    ]
    assert step.ledger.slots(step.plan.job) == [(0, True), (1, True)]


def test_what_cannot_be_paid_is_not_sampled(
    private_step: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise LedgerError("the disk is full")

    def never(*_: Any) -> Any:
        raise AssertionError("sampled")

    step = private_step()
    monkeypatch.setattr(Ledger, "pay", refuse)
    monkeypatch.setattr(execution, "poisson_sample", never)
    with pytest.raises(LedgerError, match="disk is full"):
        step.backward()
    assert step.taken == 0
    assert all(p.grad is None for p in step._worker.model.parameters())


def test_it_knows_what_it_has_cost_and_ends(private_step: Make) -> None:
    step = private_step()
    assert step.epsilon == 0.0 and step.left == 3
    spent = []
    while step.left:
        step.backward()
        spent.append(step.epsilon)
    assert spent == [epsilon_upper([Event(0.3, 1.0, n)], 1e-3) for n in (1, 2, 3)]
    assert step.epsilon_planned == spent[-1] == step.ledger.epsilon_committed
    with pytest.raises(SlotError, match="All 3 steps"):
        step.backward()


def test_the_noise_is_solved_for(private_step: Make) -> None:
    step = private_step(noise_multiplier=None, epsilon=2.0, sample_rate=None, batch=10)
    assert step.plan.sample_rate == 10 / 51
    assert 0.99 * 2 < step.epsilon_planned <= 2.0


def test_gradients_add_up_as_those_of_torch(private_step: Make) -> None:
    step = private_step()
    first, second = step.backward().value, step.backward().value
    grads = [p.grad.reshape(-1) for p in step._worker.model.parameters() if p.requires_grad]
    assert np.allclose(torch.cat(grads).numpy(), first + second, atol=1e-6)


def test_dropout_of_the_base_model_is_off_in_a_step_and_back_afterwards(
    private_step: Make, lora: Make, byte_tokenizer: Any, notes: Any, drawn: list[list[int]]
) -> None:
    model = lora("gpt2")
    assert any(m.p > 0 for m in model.modules() if isinstance(m, torch.nn.Dropout))
    model.train()
    modes = [module.training for module in model.modules()]
    oracle = copy.deepcopy(model).eval()
    gradient = private_step(model=model).backward().value
    assert [module.training for module in model.modules()] == modes
    texts = [notes[place]["text"] for place in drawn[0]]
    expected = Rounded(
        lambda: by_hand(oracle, byte_tokenizer, texts, SETTINGS["clip_norm"]) / (0.3 * 51)
    )
    assert expected.off_by(gradient) <= 1


def test_going_backwards_outside_of_a_step_makes_no_gradient(private_step: Make) -> None:
    step = private_step()
    model, ids = step._worker.model, torch.tensor([[5, 6, 7, 8]])
    with pytest.raises(NotPrivateError, match="outside of a private step"):
        model(input_ids=ids, labels=ids).loss.backward()
    assert all(p.grad is None for p in model.parameters())
    step.close()
    model(input_ids=ids, labels=ids).loss.backward()
    assert any(p.grad is not None for p in model.parameters())


def test_a_patient_is_one_unit(private_step: Make) -> None:
    step = private_step(unit="mrn", size=25, max_records_per_unit=2)
    assert len(step._population) == 20
    assert {len(unit) for unit in step._population.units} == {2}
    assert step.evaluate([{"text": "of nobody"}], data_is_public=True).eval_loss > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": None}, "size: is missing"),
        ({"delta": None}, "delta: is missing"),
        ({"delta": 0.5}, "below 1/size"),
        ({"epsilon": 2.0}, "epsilon or noise_multiplier: expected one of two settings, got both"),
        ({"sample_rate": None}, "sample_rate or batch: expected one of two settings, got neither"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"columns": {"text": "texts"}}, "Did you mean 'text'?"),
        ({"labels": ("no", "yes")}, "columns: are not those of a model for classification"),
        ({"max_length": 4096}, "max_length: is more than the 128 tokens"),
        ({"unit": "patient"}, "privacy.unit: no such column"),
    ],
)
def test_settings_are_refused_by_name(private_step: Make, changes: Any, words: str) -> None:
    with pytest.raises(FedprivError) as found:
        private_step(**changes)
    assert words in str(found.value)


def test_models_are_refused_by_name(private_step: Make, lora: Make) -> None:
    with pytest.raises(NotPrivateError, match=r"lora_dropout.*dropout of 0\.1"):
        private_step(model=lora(dropout=0.1))
    with pytest.raises(NotPrivateError, match="float16"):
        private_step(model=lora(dtype="float16"))


@pytest.mark.parametrize("labels", [("a", "b", "c"), ("a",), ("b", "a")])
def test_labels_are_those_of_the_model(
    private_step: Make, model_folder: Make, notes: Any, labels: tuple[str, ...]
) -> None:
    """Found out beforehand, not record by record in steps that are paid."""
    names = {"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}}
    base = AutoModelForSequenceClassification.from_pretrained(model_folder("bert"), **names)
    config = LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS")
    rows = [{"text": row["text"], "label": "ab"[i % 2]} for i, row in enumerate(notes)]
    model = get_peft_model(base, config)
    with pytest.raises(FedprivError, match="labels"):
        private_step(rows, model, labels=labels)
    private_step(rows, model, labels=("a", "b")).close()
    with pytest.raises(ModelError, match="one output a text"):
        private_step(notes, model)
    with pytest.raises(ConfigError, match="name its labels"):
        private_step(rows, model)
    with pytest.raises(ModelError, match="no classifier"):
        private_step(rows, labels=("a", "b"))


def test_labels_may_be_what_rows_hold(private_step: Make, model_folder: Make) -> None:
    base = AutoModelForSequenceClassification.from_pretrained(model_folder("bert"))
    config = LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS")
    assert private_step(clip_norm=None).plan.clip_norm == 0.1  # of a language model
    for labels in ((False, True), (0, 1), ("no", "yes")):
        rows = [{"text": f"fever {i}", "label": labels[i % 2]} for i in range(40)]
        step = private_step(rows, get_peft_model(base, config), labels=labels, clip_norm=None)
        assert step.plan.clip_norm == 10
        found = [unit[0].labels for unit in step._population.units]
        assert found == [0, 1] * 20
        step.close()
        base = step._worker.model.unload()
    with pytest.raises(DataError, match="row 2 has no label"):
        rows[1]["label"] = None
        private_step(rows, get_peft_model(base, config), labels=("None", "no"))


def test_a_budget_is_not_spent_on_nothing(
    private_step: Make, notes: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    path = lasting(tmp_path / "l.db", RdpRule(8))
    given = {"ledger": path, "job": "j", "size": None, "delta": None}
    rows = [{"text": row["text"] if i % 4 == 0 else " "} for i, row in enumerate(notes)]
    with pytest.raises(DataError, match="30 of 40 records give no example") as found:
        private_step(rows, **given)
    assert found.value.key == "records" and "max_empty" in found.value.fix
    with pytest.raises(DataError, match="40 of 40 records"):
        private_step([{"text": None}] * 40, **given, max_empty=1)
    with Ledger.open(path, reading=True) as left:
        assert left.plan("j") is None and left.epsilon_allocated == 0
    assert not caplog.records
    private_step(rows, **given, max_empty=0.75)
    assert "30 of 40 records give no example" in caplog.text and "rows 2, 3, 4, 6" in caplog.text


def test_what_is_trained_has_to_be_finite_and_costs_nothing_else(private_step: Make) -> None:
    step = private_step()
    next(p for p in step._worker.model.parameters() if p.requires_grad).data[:] = torch.nan
    with pytest.raises(ProtocolError, match="finite"):
        step.backward()
    assert step.taken == 0


@pytest.mark.usefixtures("new_accelerator")
@pytest.mark.parametrize("engine", ["fedpriv", "opacus"])
def test_in_other_numbers_than_were_tried_no_step_is_taken(
    private_step: Make, lora: Make, engine: str
) -> None:
    """Each record would fail under autocast, and all of ε would be spent on noise."""
    step = private_step(model=lora(), engine=engine)
    model = step._worker.model
    for inside in (torch.autocast("cpu", torch.bfloat16), torch.inference_mode()):
        with inside, pytest.raises(ModelError, match="autocast or inference mode"):
            step.backward()
    Accelerator(mixed_precision="bf16", cpu=True).prepare(model)  # type: ignore[no-untyped-call]
    with pytest.raises(ModelError, match="another forward pass"):
        step.backward()
    assert step.taken == 0
    model.forward = model._original_forward
    step.close()
    del model.forward
    again = private_step(model=model, engine=engine)
    again.backward()
    assert again.taken == 1 and not again._worker.failures


def test_what_is_unfrozen_later_is_refused_and_costs_nothing(private_step: Make) -> None:
    step = private_step()
    model = step._worker.model
    model.requires_grad_(True)
    with pytest.raises(NotPrivateError, match="Choose what is trained first"):
        step.backward()
    assert step.taken == 0 and all(p.grad is None for p in model.parameters())


def test_records_that_find_no_room_are_not_left_out(
    private_step: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which ones would be left out depends on the others, and nobody but their owner is told."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(UnitStore, "append", full)
    with pytest.raises(DataError, match="too full for the tokens of the records") as found:
        private_step()
    assert "TMPDIR" in str(found.value)


def test_errors_quote_no_record(private_step: Make, notes: Any) -> None:
    with pytest.raises(DataError) as found:
        private_step([*notes, {"text": ["secret"], "mrn": 1}])
    assert "row 41" in str(found.value) and "secret" not in str(found.value)
    with pytest.raises(DataError, match="in no known format"):
        private_step([{"remark": "secret"}])


def test_evaluation_is_of_public_records(private_step: Make, notes: Any) -> None:
    step = private_step()
    public = [{"text": "a public note about fever"}]
    scores = step.evaluate(public, data_is_public=True)
    assert scores.eval_loss > 0
    with pytest.raises(ConfigError, match="loss on private records"):
        step.evaluate(public, data_is_public=False)
    with pytest.raises(DataError, match="1 of 2 records are also among those that train"):
        step.evaluate([*public, {"text": f"  {notes[3]['text']} "}], data_is_public=True)


def lasting(path: Path, rule: Any = None, **changes: Any) -> Path:
    """A ledger for life."""
    terms = {"declared_size": 50, "unit": "record", "max_records_per_unit": 1, "delta": 1e-3}
    terms |= {"budget": 20.0, "simulated": False, "rule": rule or SumRule(5e-4)}
    Ledger.create(path, Terms(dataset_id=path.stem.rjust(32, "0"), **{**terms, **changes})).close()
    return path


def test_a_ledger_for_life_adds_up_and_refuses(private_step: Make, tmp_path: Path) -> None:
    path = lasting(tmp_path / "a.db")
    stated = {"ledger": path, "size": None, "delta": None}
    first = private_step(**stated, noise_multiplier=2.0)
    assert first.plan.sample_rate == 0.3 and first._expected_units == 0.3 * 50
    first.backward()
    first.close()
    second = private_step(**stated, noise_multiplier=2.0)
    second.backward()
    assert second.ledger.epsilon_allocated == pytest.approx(2 * second.epsilon_planned)
    second.close()
    with pytest.raises(BudgetError):
        private_step(**stated, noise_multiplier=0.3)
    with pytest.raises(ConfigError, match="size: was fixed as 50"):
        private_step(ledger=path, size=60, delta=None)
    with pytest.raises(ConfigError, match="simulations"):
        private_step(**{**stated, "ledger": lasting(tmp_path / "b.db", simulated=True)})
    with pytest.raises(OverlapError):
        private_step(**{**stated, "ledger": lasting(tmp_path / "c.db")})


def test_a_plan_with_a_name_goes_on(private_step: Make, tmp_path: Path) -> None:
    path = lasting(tmp_path / "a.db", RdpRule(8))
    stated = {"ledger": path, "size": None, "delta": None, "noise_multiplier": 2.0, "job": "notes"}
    step = private_step(**stated)
    step.backward()
    step._pay(step._worker.vector.read())  # and then the power fails
    step.close()
    again = private_step(**stated)
    assert (again.taken, again.left) == (2, 1)
    again.backward()
    assert not again.left
    again.close()
    with pytest.raises(ConfigError, match="job: is the name of a plan with other settings"):
        private_step(**{**stated, "steps": 4})


def test_an_account_without_a_ledger_leaves_nothing_behind(private_step: Make) -> None:
    step = private_step()
    folder = step.ledger.path.parent
    assert folder.stat().st_mode & 0o77 == 0
    step.close()
    assert not folder.exists()


@pytest.mark.parametrize("other", ["fedpriv", "opacus"])
@pytest.mark.parametrize("engine", ["fedpriv", "opacus"])
def test_a_model_makes_gradients_of_one_step_at_a_time(
    private_step: Make, lora: Make, engine: str, other: str
) -> None:
    model = lora()
    first = private_step(model=model, engine=engine)
    for same in (model, model.get_base_model()):
        with pytest.raises(NotPrivateError, match=r"already .* other private steps.*close\(\)"):
            private_step(model=same, engine=other)
    first.backward()  # which the refusal did not disturb
    first.close()
    again = private_step(model=model, engine=other)
    again.backward()
    assert not again._worker.failures


def test_a_model_that_a_step_could_not_take_is_free(private_step: Make, lora: Make) -> None:
    model = lora()
    with pytest.raises(DataError):
        private_step([{"text": ""}] * 3, model)
    with pytest.raises(ConfigError, match="model: is a Linear"):
        private_step(model=torch.nn.Linear(2, 2))
    private_step(model=model).backward()


def test_a_step_that_nobody_has_any_more_lets_go_of_its_model(
    lora: Make, byte_tokenizer: Any, notes: Any, tmp_path: Path
) -> None:
    """As in an app that makes one in each round and closes none."""
    model, path = lora(), lasting(tmp_path / "l.db", RdpRule(8))
    stated = {"ledger": path, "size": None, "delta": None, "noise_multiplier": 2.0, "job": "app"}
    for taken in range(3):
        step = PrivateStep(model, byte_tokenizer, notes, **{**SETTINGS, **stated})
        assert step.taken == taken
        step.backward()
        del step


def test_names_of_opacus_are_taken(lora: Make, byte_tokenizer: Any, notes: Any) -> None:
    size = {"size": 51, "max_length": 64, "max_records_per_unit": 1, "job": "j"}
    by_opacus = {"target_epsilon": 2.0, "target_delta": 1e-3, "expected_batch_size": 10}
    by_opacus |= {"total_steps": 3, "max_grad_norm": 0.002}
    by_us = {"epsilon": 2.0, "delta": 1e-3, "batch": 10, "steps": 3, "clip_norm": 0.002}
    plans = []
    for settings in (by_opacus, by_us):
        given = {"module": lora()} if settings is by_opacus else {"model": lora()}
        step = PrivateStep(tokenizer=byte_tokenizer, records=notes, **given, **settings, **size)
        plans.append(step.plan)
        step.close()
    assert plans[0] == plans[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_grad_norm": 1.0}, "clip_norm: is given twice, also as max_grad_norm"),
        ({"max_grad_norm": "a"}, "clip_norm"),
        ({"epochs": 3}, "epochs: is a setting of opacus, and not of fedpriv. Give steps"),
        ({"poisson_sampling": False}, "Samples are always Poisson"),
        ({"data_loader": None}, "Give records"),
    ],
)
def test_of_other_names_it_is_said_why(private_step: Make, changes: Any, words: str) -> None:
    with pytest.raises(ConfigError) as found:
        private_step(**changes)
    assert words in str(found.value)


class Asked:
    """A lock that tells when somebody else waits for it."""

    def __init__(self) -> None:
        self._lock, self.times = threading.Lock(), 0

    def __enter__(self) -> None:
        self.times += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("other", ["backward", "evaluate"])
def test_threads_take_turns(
    private_step: Make, monkeypatch: pytest.MonkeyPatch, other: str, drawn: list[list[int]]
) -> None:
    """Else they would add to each other's gradients of records, and sell a slot twice."""
    expected = private_step(sample_rate=1.0).backward().value
    step, lock = private_step(sample_rate=1.0), Asked()
    step._lock = lock
    inside, most, found = list[str](), list[int](), list[Any]()
    ways = {"backward": module.private_step, "evaluate": module.score}

    def watched(way: str, *of: Any) -> Any:
        inside.append(way)
        most.append(len(inside))
        if len(most) == 1:
            thread.start()
            wait_until(lambda: lock.times > 1 or len(most) > 1 or not thread.is_alive())
        try:
            return ways[way](*of)
        finally:
            inside.remove(way)

    def again() -> None:
        public = {"data_is_public": True}
        args = ([{"text": "a public note"}],) if other == "evaluate" else ()
        found.append(getattr(step, other)(*args, **(public if args else {})))

    thread = threading.Thread(target=again)
    monkeypatch.setattr(module, "private_step", partial(watched, "backward"))
    monkeypatch.setattr(module, "score", partial(watched, "evaluate"))
    first = step.backward().value
    thread.join()
    assert most == [1, 1] and len(found) == 1
    assert np.array_equal(first, expected)
    assert step.taken == len(drawn) - 1 == (2 if other == "backward" else 1)
    if other == "backward":
        assert np.array_equal(found[0].value, expected)


def test_nobody_changes_the_mode_of_a_model_while_a_step_is_taken(
    private_step: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, one record would move the gradients of others."""
    step, taken = private_step(sample_rate=1.0), module.private_step
    model = step._worker.model
    refused = []

    def watched(*of: Any) -> Any:
        for change in (model.train, model.eval, next(model.children()).train):
            with pytest.raises(NotPrivateError, match=r"train\(\) or eval\(\) was called"):
                change()
            refused.append(change)
        return taken(*of)

    monkeypatch.setattr(module, "private_step", watched)
    step.backward()
    assert len(refused) == 3
    assert model.train().training and not model.eval().training


def test_what_a_step_changes_of_what_is_trained_is_put_back(
    private_step: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an embedding does that shortens the rows which it looks up."""
    step, taken = private_step(sample_rate=1.0), module.private_step
    vector = step._worker.vector
    before = vector.read()

    def changing(*of: Any) -> Any:
        vector.write(before + 1)
        return taken(*of)

    monkeypatch.setattr(module, "private_step", changing)
    step.backward()
    assert np.array_equal(vector.read(), before)
