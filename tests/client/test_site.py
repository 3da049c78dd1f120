"""The site's door: what it allows, what it refuses, and what an answer may hold."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any, Literal

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import recorddict_to_proto
from safetensors.numpy import load_file
from typer.testing import CliRunner

from fedpriv.base_model import WEIGHTS
from fedpriv.commands.ledger import app as ledger_command
from fedpriv.data.encode import Cause
from fedpriv.errors import (
    BudgetError,
    ConfigError,
    DataError,
    FedprivError,
    LedgerCorruptError,
    LedgerError,
    LimitError,
    OverlapError,
    ProtocolError,
    SlotError,
)
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.privacy.ledger import administration
from fedpriv.privacy.ledger.ledger import Head, Ledger, Plan, Terms
from fedpriv.privacy.ledger.rules import RdpRule, SumRule
from fedpriv.privacy.ledger.terms import new_dataset_id
from fedpriv.privacy.mechanism.csprng import SystemCsprng
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.private_training import batch_invariance, local_steps
from fedpriv.private_training.released import GradientSum
from fedpriv.private_training.worker import ModelRecipe
from fedpriv.protocol import FAILED, LocalSteps, Proposal, ReportRequest
from fedpriv.public_update.config import DenoiseSection, OptimizerSection
from fedpriv.public_update.update import VectorOptimizer
from fedpriv.report import budget, received
from fedpriv.report.ledger_export import verify_ledger
from fedpriv.stored_adapter import find_adapter
from fedpriv_client import disk_space
from fedpriv_client.app import client_app
from fedpriv_client.report import write_budget_report
from fedpriv_client.site import Site
from fedpriv_client.site_settings import SiteSettings
from fedpriv_simulation.inline import InlineGrid
from fedpriv_strategies.messages import QUERY, TRAIN, as_arrays, message
from tests.client.client_setting import TERMS, Setting, request
from tests.peft_adapters import write_peft_adapter
from tests.waiting import CEILING

Make = Callable[..., Any]
UNFIT = {"refused": "protocol", "kind": "ProtocolError"}


@pytest.fixture
def setting(tmp_path: Path, model_folder: Make) -> Setting:
    return Setting(tmp_path, model_folder("llama"))


@pytest.mark.parametrize(
    ("limits", "error", "words"),
    [
        ({"methods": ("pe-sgd",)}, LimitError, "not allowed here"),
        ({"base_digest": "sha256:" + "f" * 64}, LimitError, "base model this site allows"),
        ({"max_rate": 0.4}, LimitError, "rate of 0.5"),
        ({"max_steps": 3}, LimitError, "4 steps"),
        ({"max_length": 31}, LimitError, "32 is more than this site allows"),
        ({"labels": ("no", "yes")}, LimitError, "not this site's labels"),
        ({"numerics": ("strict",)}, LimitError, "'default' is not allowed here, only strict"),
        ({"max_r": 1}, LimitError, "2 is more than this site allows, 1"),
        ({"targets": ("v_proj",)}, LimitError, "q_proj may get no adapter here"),
        ({"max_trainable": 255}, LimitError, "would train 256 parameters"),
    ],
)
def test_the_site_decides(setting: Setting, limits: Any, error: Any, words: str) -> None:
    site = setting.site(**limits)
    with pytest.raises(error, match=words):
        site.consider(setting.proposal)
    assert site.ledger.head.rows == 1
    site.close()


def test_what_is_not_allowed_is_refused_before_a_gradient_is_computed(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fedpriv.private_training.pool.probe_gradients", lambda _: pytest.fail("probed")
    )
    site = setting.site(max_trainable=100)
    lora = setting.proposal.lora.model_copy(update={"r": 4})
    with pytest.raises(ProtocolError, match="would train 512 parameters"):
        site.consider(setting.change(lora=lora))
    site.close()


@pytest.mark.parametrize("value", ["NaN", "1e999", '{"deep": [-Infinity]}'])
def test_settings_of_a_method_are_finite(setting: Setting, value: str) -> None:
    body = setting.proposal.model_dump_json().replace(
        '"settings":{}', f'"settings":{{"x":{value}}}'
    )
    with pytest.raises(ProtocolError, match=r"settings: .*finite"):
        Proposal.parse(body)


def test_a_minimum_of_noise_holds_whatever_is_proposed(setting: Setting) -> None:
    site = setting.site(min_noise=7.0)
    assert site.consider(setting.proposal).noise_multiplier == 7.0
    site.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"base_digest": "sha256:" + "0" * 64}, "base model this site allows"),
        ({"vector_digest": "sha256:" + "0" * 64}, "other shapes"),
        ({"fields": ("prompt", "completion")}, "this site has text"),
        ({"method": "magic"}, "not allowed"),
    ],
)
def test_a_proposal_that_does_not_fit_is_refused(
    setting: Setting, changes: Any, words: str
) -> None:
    site = setting.site()
    with pytest.raises(ProtocolError, match=words):
        site.consider(setting.change(**changes))
    site.close()


def test_another_unit_than_the_ledgers_is_refused(setting: Setting) -> None:
    privacy = setting.proposal.privacy.model_copy(update={"unit": "patient"})
    site = setting.site()
    with pytest.raises(ProtocolError, match=r"privacy\.unit"):
        site.consider(setting.change(privacy=privacy))
    site.close()


def test_a_server_does_not_choose_what_a_site_loads(
    setting: Setting, model_folder: Make, tmp_path: Path
) -> None:
    """A name is a path or a hub's; opening one is already more than a server may have done."""
    ours = str(setting.proposal.model.name)
    for name in (str(model_folder("gpt2")), "http://elsewhere/model", str(tmp_path / "none")):
        elsewhere = setting.proposal.model.model_copy(update={"name": name})
        site = setting.site(model=ours)
        assert site.consider(setting.change(model=elsewhere)).declared_size == 24
        assert site._job is not None and site._job.recipe.model.name == ours
        vector = site.step(request(), setting.vector)[1].values
        assert vector.shape == setting.vector.shape
        site.close()
        shutil.rmtree(setting.folder / "state")


def test_the_model_that_a_site_names_has_to_be_the_one_it_allows(
    setting: Setting, model_folder: Make
) -> None:
    site = setting.site(model=str(model_folder("llama", rms_norm_eps=1e-3)))
    with pytest.raises(ProtocolError, match=r"model\.name: this site's"):
        site.consider(setting.proposal)
    assert site.ledger.head.rows == 1
    site.close()


def test_a_site_begins_at_its_own_copy_of_the_adapter(
    setting: Setting, model_folder: Make, tmp_path: Path
) -> None:
    """What a server calls it is not looked for, and another one in its place is refused by name."""
    base, ours, other = model_folder("llama"), tmp_path / "ours", tmp_path / "other"
    write_peft_adapter(ours, base, r=2, target_modules=["q_proj"])
    write_peft_adapter(other, base, r=2, target_modules=["q_proj"], scale=0.2)
    digest, stored = find_adapter(str(ours)).digest, find_adapter(str(ours)).lora
    model = setting.proposal.model.model_copy(update={"begin": "http://elsewhere/adapter"})
    proposal = setting.change(model=model, lora=stored, begin_digest=digest)
    site = setting.site(model=str(base), begin=str(ours), begin_digest=digest)
    site.consider(proposal)
    assert site._job is not None and site._job.recipe.model.begin == str(ours)
    with setting.pool.borrow(site._job.recipe) as worker:
        values = [value.ravel() for value in load_file(ours / WEIGHTS).values()]
        assert sorted(worker.initial) == sorted(np.concatenate(values))
        begun = worker.initial
    assert site.step(request(), begun)[1].values.shape == begun.shape
    site.close()
    shutil.rmtree(setting.folder / "state")
    for begin, allowed, words in (
        (str(other), digest, f"this site has {find_adapter(str(other)).digest}"),
        (None, digest, "this site has None"),
        (str(other), find_adapter(str(other)).digest, "is not what allow"),
        (None, None, "is not what allow"),
    ):
        site = setting.site(model=str(base), begin=begin, begin_digest=allowed)
        with pytest.raises(ProtocolError, match=rf"^model\.begin: .*{words}"):
            site.consider(proposal)
        assert site.ledger.head.rows == 1
        site.close()
        shutil.rmtree(setting.folder / "state")


def test_considering_commits_nothing(setting: Setting) -> None:
    site = setting.site()
    offer = site.consider(setting.proposal)
    assert site.ledger.epsilon_allocated == 0 < offer.epsilon <= 5.0
    assert offer.declared_size == 24
    site.close()


def test_the_first_step_commits_the_whole_plan(setting: Setting) -> None:
    site = setting.site()
    offer = site.consider(setting.proposal)
    reply, released = site.step(request(), setting.vector)
    assert reply.epsilon_committed == offer.epsilon > reply.epsilon_spent > 0
    assert (reply.kind, released.kind) == ("gradient-sum", "gradient-sum")
    assert released.values.shape == setting.vector.shape
    assert [row.kind for row in site.ledger.rows()] == ["terms", "plan", "reserve", "release"]
    site.close()


def test_a_repeat_is_answered_from_the_outbox_also_after_a_restart(setting: Setting) -> None:
    site = setting.site()
    site.consider(setting.proposal)
    first = site.step(request(), setting.vector)
    again = site.step(request(), setting.vector)
    assert first[0] == again[0]
    assert np.array_equal(first[1].values, again[1].values)
    site.close()
    site = setting.site()
    site.consider(setting.proposal)
    restarted = site.step(request(), setting.vector)
    assert np.array_equal(first[1].values, restarted[1].values)
    assert site.ledger.slots("job-1") == [(0, True)]
    site.close()


@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_plan_and_report_say_which_numerics_were_used(setting: Setting, numerics: str) -> None:
    privacy = setting.proposal.privacy.model_copy(update={"numerics": numerics})
    site = setting.site()
    site.consider(setting.change(privacy=privacy))
    vector = site.step(request(), setting.vector)[1].values
    assert np.isfinite(vector).all()
    plan = site.ledger.plan("job-1")
    assert plan is not None
    assert plan.numerics == numerics
    report = write_budget_report(site, "job-1")
    assert report.numerics.startswith(f"{numerics}: ")
    assert any("beside others" in line for line in report.assumptions) == (numerics == "default")
    site.close()


def test_a_claim_is_strict_only_if_all_that_it_is_about_is(setting: Setting) -> None:
    """It is for the life of the ledger, and not for one job."""

    def strict(site: Site) -> bool:
        report = write_budget_report(site, "job-1")
        exact = report.numerics.startswith("strict: ")
        assert any("beside others" in line for line in report.assumptions) != exact
        return exact

    def plan(job: str, numerics: Literal["default", "strict"]) -> Plan:
        return Plan(job, "dp-lora", 0.1, 9.0, 1.0, 1, "p", numerics)

    terms = dataclasses.replace(TERMS, rule=RdpRule(order=8))
    site = setting.site(terms=terms, numerics=("strict",))
    assert strict(site)
    site.ledger.commit(plan("strict", "strict"))
    assert strict(site)
    site.ledger.commit(plan("unused", "default"))
    assert not strict(site)
    administration.close_job(site.ledger, "unused")  # no slot of it was ever reserved
    assert strict(site)
    site.ledger.commit(plan("used", "default"))
    site.ledger.reserve("used", 0, "request")
    administration.close_job(site.ledger, "used")
    assert not strict(site)
    site.close()
    shutil.rmtree(setting.folder / "state")
    site = setting.site(terms=terms)
    site.ledger.commit(plan("strict", "strict"))
    assert not strict(site)  # what is to come need not be
    site.close()
    shutil.rmtree(setting.folder / "state")
    site = setting.site()  # for one plan
    assert not strict(site)
    site.ledger.commit(plan("strict", "strict"))
    assert strict(site)
    site.close()


def test_the_report_says_what_the_ledger_says(setting: Setting) -> None:
    site = setting.site()
    site.consider(setting.proposal)
    reply, _ = site.step(request(), setting.vector)
    report = write_budget_report(site, "job-1")
    assert report.epsilon_spent == reply.epsilon_spent < reply.epsilon_committed
    assert report.epsilon_allocated == report.epsilon_committed == reply.epsilon_committed
    assert (report.relation, report.unit) == ("add-or-remove-one-unit", "record")
    assert (report.delta, report.declared_size, report.budget) == (1e-3, 24, 6.0)
    assert report.private and report.simulated
    site.close()


def test_the_report_says_both_claims(setting: Setting) -> None:
    site = setting.site(terms=dataclasses.replace(TERMS, rule=SumRule(1e-4), budget_alone=60.0))
    report = write_budget_report(site, "none")
    assert (report.trust_model, report.max_colluding) == (budget.TRUST_MODEL, None)
    assert (report.epsilon_alone_allocated, report.epsilon_alone_committed) == (0.0, 60.0)
    for number, most in enumerate((2, 1, 3)):
        site.ledger.commit(
            Plan(f"job-{number}", "dp-lora", 0.1, 9.0, 1.0, 2, "p", max_colluding=most, shares=3)
        )
    site.ledger.reserve("job-0", 0, "request")
    report = write_budget_report(site, "job-0")
    assert "at most 1 of them work with the server" in report.trust_model
    assert report.max_colluding == 1  # who relies on all three jobs relies on this one
    assert report.epsilon_alone_spent == site.ledger.epsilon_alone_spent
    assert report.epsilon_alone_allocated == site.ledger.epsilon_alone_allocated
    assert report.epsilon_alone_committed == report.budget_alone == 60.0
    assert report.epsilon_alone_spent is not None and report.epsilon_alone_allocated is not None
    assert report.epsilon_spent < report.epsilon_alone_spent < report.epsilon_alone_allocated
    assert any("X25519" in line for line in report.assumptions)
    assert not any("were lost" in line for line in report.assumptions)
    site.close()


def test_the_report_says_what_each_step_was_paid_for(setting: Setting) -> None:
    site = setting.site(terms=dataclasses.replace(TERMS, rule=RdpRule(8)))
    for job, rate in (("job-0", 0.2), ("job-1", 0.1)):
        site.ledger.commit(Plan(job, "dp-lora", rate, 4.0, 1.0, 9, "p"))
    for slot in (0, 1, 2, 3, 5):
        site.ledger.reserve("job-1", slot, f"request {slot}")
    report = write_budget_report(site, "job-1")
    assert [
        (event.round, event.sample_rate, event.noise_multiplier, event.count)
        for event in report.events
    ] == [(1, 0.1, 4.0, 4), (6, 0.1, 4.0, 1)]
    assert report.epsilon_spent == site.ledger.epsilon_spent < report.epsilon_allocated
    received.verify(budget.read(site.settings.report))
    site.close()
    _, _, checked = verify_ledger(site.settings.ledger, report=site.settings.report)
    assert any("signed report" in line for line in checked)


def test_what_is_sent_is_what_was_released_and_stored(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(0).normal(size=setting.vector.size).astype(np.float32)
    monkeypatch.setattr("fedpriv_client.site.private_step", lambda *_: public(GradientSum(values)))
    site = setting.site()
    site.consider(setting.proposal)
    for _ in ("computed", "from the outbox"):
        vector = site.step(request(), setting.vector)[1].values
        assert np.array_equal(vector, values)
    stored = site.ledger.reserve("job-1", 0, request().digest(setting.vector))
    assert stored == b"S" + values.tobytes()
    site.close()


def test_another_vector_for_an_old_slot_is_refused(setting: Setting) -> None:
    site = setting.site()
    site.consider(setting.proposal)
    site.step(request(), setting.vector)
    with pytest.raises(SlotError, match="another request"):
        site.step(request(), setting.vector + 1)
    site.close()


@pytest.mark.parametrize("change", [{"steps": 3}, {"seed": 1}])
def test_nothing_of_a_proposal_changes_once_it_is_committed(setting: Setting, change: Any) -> None:
    site = setting.site()
    site.consider(setting.proposal)
    site.step(request(), setting.vector)
    with pytest.raises(BudgetError, match="another plan"):
        site.consider(setting.change(**change))
    site.close()


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(3, dtype=np.float32),
        np.full(1, np.nan, dtype=np.float32),
        np.zeros((1, 1), dtype=np.float64),
    ],
)
def test_a_bad_vector_is_refused_before_anything_is_paid(
    setting: Setting, vector: np.ndarray
) -> None:
    site = setting.site()
    site.consider(setting.proposal)
    bad = np.resize(vector, setting.vector.shape) if np.isnan(vector).any() else vector
    with pytest.raises(ProtocolError, match="Expected"):
        site.step(request(), bad)
    assert site.ledger.head.rows == 1
    site.close()


def test_a_job_without_an_offer_is_refused(setting: Setting) -> None:
    site = setting.site()
    with pytest.raises(ProtocolError, match="no offer"):
        site.step(request(), setting.vector)
    site.close()


def test_terms_cannot_be_restated(setting: Setting) -> None:
    setting.site().close()
    with pytest.raises(ConfigError, match="declared_size") as caught:
        setting.site(terms=Terms("0" * 32, 240, "record", 1, 1e-3, 6.0, simulated=True))
    assert caught.value.value == 240
    setting.site().close()  # and the lock was given back


@pytest.mark.parametrize("simulated", [True, False])
def test_a_ledger_is_a_simulations_or_the_networks(setting: Setting, simulated: bool) -> None:
    made = dataclasses.replace(TERMS, simulated=simulated)
    setting.site(terms=made).close()
    made_for = "simulations" if simulated else "the network"
    with pytest.raises(ConfigError, match=f"was made for {made_for}, and pays for nothing else"):
        setting.site(terms=dataclasses.replace(TERMS, simulated=not simulated))
    setting.site(terms=made).close()


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("data.size", {"declared_size": 25}),
        ("data.dataset_id", {"dataset_id": "1" * 32}),
        ("budget.epsilon", {"budget": 60.0}),
        ("budget.rule", {"rule": RdpRule(8)}),
    ],
)
def test_over_the_network_all_terms_are_the_ledgers(
    setting: Setting, key: str, change: Any
) -> None:
    """The file of a site that states another budget than its ledger has would mislead."""
    made = dataclasses.replace(TERMS, simulated=False)
    setting.site(terms=made).close()
    with pytest.raises(ConfigError, match=f"{key}: was fixed as"):
        setting.site(terms=dataclasses.replace(made, **change))


def ask(site: Site, body: Any, kind: str, vector: Any = None) -> dict[str, Any]:
    """Send one message through Flower to the site, and return the body of its answer."""
    with InlineGrid({2: client_app(site)}, 1) as grid:
        arrays = None if vector is None else as_arrays(public(vector))
        [reply] = grid.send_and_receive([message(body, 2, kind, "1", arrays)], timeout=60)
    assert not reply.has_error()
    assert set(reply.content) <= {"fedpriv", "arrays"}
    answer: dict[str, Any] = json.loads(reply.content["fedpriv"]["body"])
    return answer


def test_a_refusal_is_a_code_with_its_class_and_nothing_else(setting: Setting) -> None:
    site = setting.site(max_steps=1)
    assert ask(site, setting.proposal, QUERY) == {"refused": "max-steps", "kind": "LimitError"}
    assert ask(site, request(), TRAIN, setting.vector) == UNFIT
    assert ask(site, request(), TRAIN) == UNFIT
    site.close()


def test_a_malformed_message_is_refused(setting: Setting) -> None:
    site = setting.site()
    for content in (
        RecordDict(),
        RecordDict({"fedpriv": ConfigRecord({"body": "{}"})}),
        RecordDict({"fedpriv": ConfigRecord({"body": 3})}),
        RecordDict({"fedpriv": ConfigRecord({"body": "not json"})}),
    ):
        with InlineGrid({2: client_app(site)}, 1) as grid:
            item = Message(content, 2, QUERY, group_id="1")
            [reply] = grid.send_and_receive([item], timeout=60)
        assert json.loads(reply.content["fedpriv"]["body"]) == UNFIT
    site.close()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["site.private_step", "site.Site._reply", "ledger"])
def test_after_sampling_it_is_always_the_same_bytes(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    text = "record 7 says: fever"
    kinds = (*FedprivError.__subclasses__(), SlotError, ValueError, KeyError, MemoryError, OSError)

    def explode(*_: Any) -> None:
        raise kinds[slot](text)

    site = setting.site()
    site.consider(setting.change(steps=len(kinds)))
    if where == "ledger":
        monkeypatch.setattr(Ledger, "release_all", explode)
    else:
        monkeypatch.setattr(f"fedpriv_client.{where}", explode)
    seen = set()
    with InlineGrid({2: client_app(site)}, 1) as grid:
        for slot in range(len(kinds)):
            asked = message(request(slot), 2, TRAIN, "1", as_arrays(public(setting.vector)))
            [reply] = grid.send_and_receive([asked], timeout=60)
            seen.add(recorddict_to_proto(reply.content).SerializeToString(deterministic=True))
    assert len(seen) == 1
    assert FAILED.model_dump_json().encode() in seen.pop()
    monkeypatch.undo()
    spent = site.ledger.epsilon_spent
    assert spent > 0  # reserved counts as spent
    again, _ = site.step(request(slot), setting.vector)  # the same reservation is used
    assert again.epsilon_spent == spent
    site.close()


def test_a_release_that_cannot_be_written_is_not_sent(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = setting.site()
    site.consider(setting.proposal)

    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Ledger, "release_all", full)
    assert ask(site, request(), TRAIN, setting.vector) == FAILED.model_dump()
    site.close()


@pytest.mark.parametrize("error", [OSError("No space left on device"), LedgerError("no")])
def test_what_was_paid_for_leaves_without_its_report(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    site = setting.site()
    site.consider(setting.proposal)

    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr("fedpriv_client.app.write_report", fails)
    assert ask(site, request(), TRAIN, setting.vector)["kind"] == "gradient-sum"
    site.close()


@pytest.mark.parametrize("error", [OSError("No space left on device"), LedgerError("no")])
def test_a_report_is_answered_from_memory(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It costs nothing, so it may not ask the disk, which the records take a part of."""
    terms = dataclasses.replace(TERMS, budget=30.0, rule=RdpRule(8))
    site = setting.site(terms=terms, server="fed.example.org:8443")
    site.consider(setting.proposal)
    site.step(request(), setting.vector)
    expected = ask(site, ReportRequest(job_id="job-1"), f"{QUERY}.report")

    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr("fedpriv_client.app.write_report", fails)
    assert ask(site, ReportRequest(job_id="job-1"), f"{QUERY}.report") == expected
    assert expected["job"] == "job-1"
    assert "life" not in expected  # whoever asks in an older version's words can't read it
    with_life = ask(site, ReportRequest(job_id="job-1", life=True), f"{QUERY}.report")
    assert with_life.pop("life")["more"] >= 0
    assert {**with_life, "signature": None} == {**expected, "signature": None}
    site.close()


def test_an_unpaid_step_is_impossible(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation of law 1: without a reservation there is nothing to release."""
    site = setting.site()
    site.consider(setting.proposal)
    monkeypatch.setattr(Ledger, "reserve_all", lambda *_: None)
    assert ask(site, request(), TRAIN, setting.vector) == FAILED.model_dump()
    assert site.ledger.slots("job-1") == []
    site.close()


def test_a_private_ledger_refuses_a_seed(setting: Setting) -> None:
    from fedpriv.privacy.mechanism.csprng import InsecureRandomness

    site = setting.site()
    site._csprng = lambda job, slot: InsecureRandomness(1, slot)
    site.consider(setting.proposal)
    assert ask(site, request(), TRAIN, setting.vector) == {
        "refused": "accounting",
        "kind": "AccountingError",
    }
    assert site.ledger.head.rows == 1
    site.close()


def test_two_requests_for_one_slot_are_computed_once(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the faster of two draws would leave, and how fast one is depends on its sample."""
    import fedpriv_client.site as module

    site = setting.site()
    site.consider(setting.proposal)
    plain, computed, together = module.private_step, [], Barrier(3)
    monkeypatch.setattr(module, "private_step", lambda *a: computed.append(1) or plain(*a))

    def answer(_: int) -> Any:
        together.wait(CEILING)
        return site.step(request(), setting.vector)

    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(answer, range(3)))
    assert len(computed) == 1
    assert all(np.array_equal(made.values, answers[0][1].values) for _, made in answers)
    site.close()


def test_a_slot_that_does_not_exist_commits_nothing(setting: Setting) -> None:
    site = setting.site()
    site.consider(setting.proposal)
    answer = ask(site, request(slot=4), TRAIN, setting.vector)
    assert answer == {"refused": "slot", "kind": "SlotError"}
    assert site.ledger.epsilon_allocated == 0
    site.close()


LOCAL = LocalSteps(count=2, optimizer=OptimizerSection(lr=0.01), denoise=DenoiseSection())


def test_the_steps_of_a_round_are_paid_together_and_leave_as_one_move(setting: Setting) -> None:
    site = setting.site()
    proposal = setting.change(local=LOCAL)
    assert site.consider(proposal).epsilon == site.ledger.check(site.settings.limits.plan(
        proposal, TERMS
    ))  # fmt: skip
    first = site.step(request(2), setting.vector)
    assert site.ledger.slots("job-1") == [(2, True), (3, True)]
    again = site.step(request(2), setting.vector)
    assert again[0] == first[0] and np.array_equal(again[1].values, first[1].values)
    site.close()
    site = setting.site()
    site.consider(proposal)
    site.ledger.check_outbox()
    restarted = site.step(request(2), setting.vector)
    assert np.array_equal(restarted[1].values, first[1].values)
    # AdamW's first two steps are lr each, but for where the noise turned.
    assert first[1].kind == "move"
    assert 0 < np.abs(first[1].values).max() <= 0.021
    site.close()


@pytest.mark.parametrize("slot", [1, 3, 4])
def test_a_round_begins_where_the_plan_has_one(setting: Setting, slot: int) -> None:
    """Else a server could have the same slots in two rounds."""
    site = setting.site()
    site.consider(setting.change(local=LOCAL))
    answer = ask(site, request(slot), TRAIN, setting.vector)
    assert answer == {"refused": "slot", "kind": "SlotError"}
    assert site.ledger.epsilon_allocated == 0
    site.close()


@pytest.mark.parametrize("fault", ["raises", "not finite"])
def test_steps_that_cannot_be_used_are_a_move_of_nothing(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """And not another try, which would be another mechanism under the same reservations."""
    site = setting.site()
    site.consider(setting.change(local=LOCAL))
    real, calls = VectorOptimizer.step, []

    def failing(self: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if fault == "raises":
            raise RuntimeError("depends on the noise")
        self.vector = public(np.full_like(setting.vector, np.inf))
        return self.vector

    monkeypatch.setattr(VectorOptimizer, "step", failing)
    _, move = site.step(request(), setting.vector)
    assert calls and move.kind == "move" and not move.values.any()
    assert site.ledger.slots("job-1") == [(0, True), (1, True)]
    monkeypatch.setattr(VectorOptimizer, "step", real)
    assert not site.step(request(), setting.vector)[1].values.any()  # it stays so
    site.close()


def test_steps_that_can_not_be_made_are_refused_before_anything_is_paid() -> None:
    with pytest.raises(ValueError, match="expected off or site"):
        LocalSteps(count=2, optimizer=OptimizerSection(), denoise=DenoiseSection(where="server"))


def test_a_round_that_fails_midway_is_done_again_under_the_same_reservations(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = setting.site()
    site.consider(setting.change(local=LOCAL))
    real, calls = local_steps.private_step, []

    def failing(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise MemoryError
        return real(*arguments)

    monkeypatch.setattr(local_steps, "private_step", failing)
    assert ask(site, request(), TRAIN, setting.vector) == FAILED.model_dump()
    spent, rows = site.ledger.epsilon_spent, len(site.ledger.rows())
    assert site.ledger.slots("job-1") == [(0, False), (1, False)]
    reply, _ = site.step(request(), setting.vector)
    assert reply.epsilon_spent == spent > 0
    assert len(site.ledger.rows()) == rows + 2  # two releases, nothing reserved again
    other = setting.vector + 1
    assert ask(site, request(), TRAIN, other)["refused"] == "slot"
    site.close()


def test_what_a_record_holds_decides_no_answer_to_a_proposal(
    setting: Setting, model_folder: Make, tmp_path: Path
) -> None:
    """A tokenizer that fails on a word of one record: the offer is the same as without it."""

    class Fussy:
        def __init__(self, tokenizer: Any) -> None:
            self._tokenizer = tokenizer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._tokenizer, name)

        def __len__(self) -> int:
            return len(self._tokenizer)

        def __call__(self, text: str, **options: Any) -> Any:
            if "49" in text:
                raise RuntimeError(f"no such word: {text}")
            return self._tokenizer(text, **options)

    site = setting.site()
    recipe = ModelRecipe(setting.proposal.model, setting.proposal.lora, 0, setting.compute)
    with setting.pool.borrow(recipe) as worker:
        object.__setattr__(worker.base, "tokenizer", Fussy(worker.base.tokenizer))
    assert site.consider(setting.proposal).declared_size == 24
    assert site._job is not None
    assert site._job.population.tally.empty == {Cause.FAILED: [8]}
    assert len(site._job.population) == 24
    site.close()


def test_no_step_is_the_first_to_see_a_length(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How records of a length are computed is found out before anything is paid."""
    monkeypatch.setattr(batch_invariance, "_that_pay", lambda *_: 4)
    site = setting.site()
    site.consider(setting.proposal)
    assert site._job is not None
    with setting.pool.borrow(site._job.recipe) as worker:
        tried = {length for _, length, _ in worker.invariant_sizes}
        assert tried == {8, 16, 24, 32}
    monkeypatch.setattr(batch_invariance, "invariant_sizes", None)  # a step that tried would fail
    site.step(request(), setting.vector)
    assert not worker.failures
    site.close()


def test_a_site_starts_only_with_disk_space_for_its_own_limits(setting: Setting) -> None:
    with pytest.raises(DataError, match=r"can't reserve [\d,]+ MB .*lower allow\.max_length"):
        setting.site(max_length=2**40)
    setting.site().close()


def test_all_disk_space_is_reserved_when_a_site_starts(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the declared size, or for all units if they are more, as long as the limits let be."""
    asked: list[int] = []
    fallocate = os.posix_fallocate

    def noted(file: int, start: int, size: int) -> None:
        asked.append(size)
        fallocate(file, start, size)

    monkeypatch.setattr(os, "posix_fallocate", noted)
    for content in (["x"], ["x" * 10_000], ["x"] * 30):
        setting.data.write_text("".join(json.dumps({"note": note}) + "\n" for note in content))
        site = setting.site(max_length=500)
        site.consider(setting.proposal)
        site.consider(setting.change(job_id="job-2"))
        site.close()
        shutil.rmtree(setting.folder / "state")
    longest = 32 + 4 * 2 * 500
    assert asked == [units * longest for units in (24, 24, 30)]


def test_a_proposal_asks_nothing_of_the_disk(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is free depends on how much of it the records take."""
    site = setting.site()

    def unasked(*_: Any) -> Any:
        raise AssertionError("looked at the disk")

    for module, name in ((os, "posix_fallocate"), (os, "fstatvfs"), (os, "statvfs")):
        monkeypatch.setattr(module, name, unasked)
    monkeypatch.setattr(shutil, "disk_usage", unasked)
    assert site.consider(setting.proposal).declared_size == 24
    site.close()


def test_a_model_of_a_hub_is_on_the_disk_before_the_site_answers(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a download finds room depends on how much of the disk the records take."""
    fetched: list[str] = []

    def fetch(settings: Any) -> None:
        fetched.append(settings.name)

    monkeypatch.setattr("fedpriv_client.own_records.fetch_base", fetch)
    terms = dataclasses.replace(TERMS, simulated=False)
    site = setting.site(terms=terms, model=setting.proposal.model.name)
    assert fetched == [setting.proposal.model.name]
    site.close()


def test_so_is_an_adapter_that_a_job_may_begin_at(setting: Setting) -> None:
    terms = dataclasses.replace(TERMS, simulated=False)
    with pytest.raises(ConfigError, match="is no folder, and can't be loaded"):
        setting.site(terms=terms, model=setting.proposal.model.name, begin="clinic/adapter")


@pytest.mark.parametrize("witnessed", [False, True])
def test_a_ledger_stops_before_it_meets_the_end_of_the_disk(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, witnessed: bool
) -> None:
    """At a size of its own, that no record has a part in; what was answered is answered still.

    A witness on the same disk grows faster than its ledger, and takes part of what is held.
    """
    witness = setting.folder / "state" / "witness" if witnessed else None
    rows = disk_space.MARGIN + (6 if witnessed else 3) * 4096
    monkeypatch.setattr(disk_space, "ROWS", rows // (1 + witnessed))
    slots = []
    for note in ("x", "x" * 50_000):
        setting.data.write_text(json.dumps({"note": note}) + "\n")
        site = setting.site(max_trainable=256, min_noise=500.0, witness=witness)
        privacy = setting.proposal.privacy.model_copy(update={"sample_rate": 1e-6})
        site.consider(setting.change(steps=400, privacy=privacy))
        for slot in range(400):
            try:
                site.step(request(slot), setting.vector)
            except LedgerError as error:
                assert "Start the site again" in str(error)
                slots.append(slot)
                break
        site.step(request(slots[-1] - 1), setting.vector)
        with pytest.raises(LedgerError, match="Start the site again"):
            site.step(request(slots[-1]), setting.vector)
        reserved = site.ledger.slots("job-1")
        assert len(reserved) == slots[-1]
        site.close()
        shutil.rmtree(setting.folder / "state")
    assert slots[0] == slots[1] > 1


def test_a_job_whose_examples_were_replaced_is_no_offer_any_more(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = setting.site()
    site.consider(setting.proposal)

    def failing(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("fedpriv_client.site.try_lengths", failing)
    with pytest.raises(MemoryError):
        site.consider(setting.change(job_id="job-2"))
    with pytest.raises(ProtocolError, match="has made no offer"):
        site.step(request(), setting.vector)
    assert site.ledger.slots("job-1") == []
    site.close()


def test_a_closed_site_holds_nothing_of_its_records(setting: Setting) -> None:
    site = setting.site()
    site.consider(setting.proposal)
    maps = Path("/proc/self/maps")
    held = str(setting.folder / "state" / "cache")
    assert held in maps.read_text()
    site.close()
    gc.collect()
    assert held not in maps.read_text()


@pytest.mark.slow
def test_on_a_nearly_full_disk_no_proposal_tells_one_record_from_another(
    setting: Setting, small_disk: Path
) -> None:
    """A server chooses how long examples are: what finds room would be a question about records.

    Of a site that looks for room when it considers a proposal, the sweep tells 3 long records from
    4 where the disk had 95 MB left.
    """
    terms = dataclasses.replace(TERMS, declared_size=20_000, delta=1e-5, simulated=False)
    privacy = setting.proposal.privacy.model_copy(update={"delta": 1e-5})
    limits = {"max_length": 64, "max_trainable": 256}
    notes, setting.folder = setting.data.read_text(), small_disk
    long = json.dumps({"note": " " * 400_000}) + "\n"  # takes its place, and has no tokens

    def answers(records: int, left: int) -> list[str] | None:
        """To a sweep, where so many bytes were left; None of a site that does not start."""
        setting.data.write_text(notes + records * long)
        filler = small_disk / "filler"
        filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - left))
        found = []
        try:
            site = setting.site(terms=terms, **limits)
        except DataError:
            return None
        else:
            for length in range(24, 41):
                model = setting.proposal.model.model_copy(update={"max_length": length})
                change = {"job_id": f"job-{length}", "model": model, "privacy": privacy}
                found.append(json.dumps(ask(site, setting.change(**change), QUERY)))
            site.close()
            return [re.sub("[0-9a-f]{64}", "", text) for text in found]  # the ledger's head
        finally:
            filler.unlink()
            shutil.rmtree(small_disk / "state")

    assert answers(3, 95_000_000) is answers(4, 95_000_000) is None
    started = answers(3, 103_000_000)
    assert started is not None and '"refused"' not in "".join(started)
    assert started == answers(4, 103_000_000)


def test_bad_records_show_when_the_site_starts(setting: Setting) -> None:
    for content, words in (("", "no records|empty"), ('{"letter": "x"}\n', "letter")):
        setting.data.write_text(content)
        with pytest.raises(DataError, match=words):
            setting.site()


def test_a_population_gets_a_name_that_tells_nothing() -> None:
    names = {new_dataset_id() for _ in range(9)}
    assert len(names) == 9
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in names)


def test_a_missing_ledger_is_no_fresh_budget(setting: Setting) -> None:
    site = setting.site()
    site.consider(setting.proposal)
    site.step(request(), setting.vector)
    write_budget_report(site, "job-1")
    site.close()
    path = setting.folder / "state" / "ledger.db"
    kept = path.read_bytes()
    for left in (b"", None):
        path.unlink()
        if left is not None:
            path.write_bytes(left)
        with pytest.raises(LedgerCorruptError, match="is missing"):
            setting.site()
        path.write_bytes(kept)
    setting.site().close()


def test_an_older_ledger_than_the_sites_own_report_is_refused(setting: Setting) -> None:
    site = setting.site()
    site.consider(setting.proposal)
    site.step(request(), setting.vector)
    path = setting.folder / "state" / "ledger.db"
    backup = path.read_bytes()
    site.step(request(1), setting.vector)
    write_budget_report(site, "job-1")
    site.close()
    path.write_bytes(backup)
    with pytest.raises(LedgerCorruptError, match="back in time"):
        setting.site()


def test_the_report_of_another_ledger_hides_no_rollback(setting: Setting) -> None:
    """A site with two populations has one ``budget.json``, of the ledger that was used last."""
    terms = dataclasses.replace(TERMS, simulated=False)
    site = setting.site(terms=terms)
    site.consider(setting.proposal)
    site.step(request(), setting.vector)
    path = setting.folder / "state" / "ledger.db"
    backup = path.read_bytes()
    site.step(request(1), setting.vector)
    report = write_budget_report(site, "job-1")
    other = report.model_copy(update={"dataset_id": "1" * 32})
    received.write(budget.sign(other, site.signing_key), setting.folder / "state" / "budget.json")
    site.close()
    setting.site(terms=terms).close()
    path.write_bytes(backup)
    with pytest.raises(LedgerCorruptError, match="back in time"):
        setting.site(terms=terms)


def test_a_key_that_signs_nothing_is_told_before_anything_is_paid(setting: Setting) -> None:
    setting.site().close()
    key = setting.folder / "state" / "report.key"
    key.chmod(0o644)
    with pytest.raises(LedgerError, match="chmod 600"):
        setting.site()
    key.chmod(0o600)
    key.write_text("no key")
    with pytest.raises(LedgerError, match="PEM"):
        setting.site()


def test_no_clear_text_outlives_the_site(setting: Setting) -> None:
    stale = setting.folder / "state" / "cache" / "left-by-a-killed-process.arrow"
    stale.parent.mkdir(parents=True)
    stale.write_text("fever")
    site = setting.site()
    assert not stale.exists()
    site.close()
    left = {path.name for path in (setting.folder / "state").iterdir()}
    assert left == {"ledger.db", "report.key"}


def patients(*names: str, notes: int = 2) -> list[dict[str, str]]:
    """Rows of a site that knows its patients by ``patient_nbr``."""
    return [
        {"note": f"{name} was seen, visit {visit}", "patient_nbr": name, "class": "no"}
        for name in names
        for visit in range(notes)
    ]


class Ledgers:
    """Sites of one administrator, whose ledgers are in one folder."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.folder = setting.folder / "ledgers"

    def start(
        self,
        name: str,
        rows: list[dict[str, str]],
        unit: str = "record",
        terms: Terms = TERMS,
        transform: str | None = None,
        **columns: str,
    ) -> None:
        """Start the site of a ledger with these rows, and stop it again."""
        data = self.setting.folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        ledger = self.folder / f"{name}.db"
        terms = dataclasses.replace(terms, dataset_id=name[0] * 32, unit=unit)
        if not ledger.exists():
            Ledger.create(ledger, terms).close()
        settings = SiteSettings(
            name=name,
            data=data,
            columns=columns if "prompt" in columns else {"text": "note", **columns},
            state_dir=self.setting.folder / name,
            ledger=ledger,
            terms=terms,
            limits=self.setting.limits(labels=("no", "yes")),
            compute=self.setting.compute,
            lasting=True,
            transform=transform,
        )
        Site(settings, self.setting.pool, lambda job, slot: SystemCsprng()).close()


@pytest.fixture
def ledgers(setting: Setting) -> Ledgers:
    return Ledgers(setting)


def test_two_ledgers_of_a_site_share_no_patient(ledgers: Ledgers) -> None:
    ledgers.start("heart", patients("jones", "smith"), "patient_nbr")
    moved = [{**row, "note": f"{row['note']} again"} for row in patients("smith", "miller")]
    with pytest.raises(OverlapError, match="1 with the ledger of data set " + "h" * 32) as caught:
        ledgers.start("lungs", moved, "patient_nbr")
    assert "smith" not in str(caught.value)
    left = [path.name for path in (ledgers.setting.folder / "lungs").iterdir()]
    assert left == ["report.key"]  # no clear text
    ledgers.start("lungs", moved[2:], "patient_nbr")


def test_who_is_known_by_what_was_read_whatever_a_site_makes_of_it(
    ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that are replaced by chance would make new people of the same ones at each start."""
    monkeypatch.syspath_prepend(ledgers.setting.folder)
    (ledgers.setting.folder / "by_chance.py").write_text(
        "import secrets\ndef name(text): return secrets.token_hex()\n"
    )
    rows = patients("jones", "smith", notes=1)
    ledgers.start("heart", rows, transform="by_chance:name")
    with pytest.raises(OverlapError, match="2 by text, 2 different"):
        ledgers.start("lungs", rows, transform="by_chance:name")
    with pytest.raises(OverlapError, match="2 by text, 2 different"):
        ledgers.start("lungs", rows)


def test_the_same_population_may_start_again_and_grow(ledgers: Ledgers) -> None:
    for names in (("jones", "smith"), ("jones", "smith"), ("smith", "miller")):
        ledgers.start("heart", patients(*names), "patient_nbr")
    with pytest.raises(OverlapError):  # who has left was paid for
        ledgers.start("lungs", patients("jones", notes=1), "patient_nbr")


def test_a_column_by_another_name_makes_no_other_people(ledgers: Ledgers) -> None:
    """Nor do fields: the same notes as completions, the same ids as record numbers."""
    rows = patients("jones", "smith", notes=1)
    ledgers.start("heart", rows, "patient_nbr")
    renamed = [
        {"mrn": row["patient_nbr"], "task": "Summarise.", "answer": row["note"]} for row in rows
    ]
    known_by = (
        ("lungs", "mrn", "2 by completion, 2 different; 2 by id"),
        ("blood", "record", "2 by completion, 2 different"),
    )
    for name, unit, words in known_by:
        with pytest.raises(OverlapError, match=rf"2 with the ledger of data set h+: {words}\."):
            ledgers.start(name, renamed, unit, prompt="task", completion="answer")


def test_look_alikes_need_a_name_in_the_ledger(ledgers: Ledgers) -> None:
    """Two registers count from 1, and notes come from one template."""
    ledgers.start("heart", [{"note": "Nothing abnormal.", "patient": "7"}], "patient")
    rows = [{"note": "Nothing abnormal.", "case": "7"}]
    with pytest.raises(OverlapError, match=r"1 by id; 1 by text, 1 different\.") as caught:
        ledgers.start("lungs", rows, "case")
    said = re.search(r"distinct LEDGER (--from \w+ --matches \w+) --by NAME", str(caught.value))
    assert said is not None
    path = ledgers.folder / "lungs.db"
    command = ["distinct", str(path), *said[1].split(), "--by", "Dr Grey"]
    found = CliRunner().invoke(ledger_command, command)
    assert found.exit_code == 0 and "Dr Grey states" in found.stdout
    ledgers.start("lungs", rows, "case")
    with Ledger.open(path, reading=True) as ledger:
        assert ledger.distinct == [("h" * 32, "Dr Grey")]
        assert ledger.figures()["distinct"] == [{"other": "h" * 32, "by": "Dr Grey"}]
    ledgers.start("heart", [{"note": "Fever.", "patient": "8"}], "patient")
    with pytest.raises(OverlapError, match="1 by id"):  # it was said of those, not of these
        ledgers.start("lungs", [*rows, {"note": "Fever!", "case": "8"}], "case")


@pytest.mark.parametrize("first", ["record", "patient_nbr"])
def test_a_note_is_in_one_ledger_by_record_or_by_patient(ledgers: Ledgers, first: str) -> None:
    second = "record" if first == "patient_nbr" else "patient_nbr"
    ledgers.start("heart", patients("jones", "smith"), first)
    with pytest.raises(OverlapError, match="1 with"):
        ledgers.start("lungs", patients("miller", "jones")[:3], second)


def test_the_same_notes_with_labels_are_the_same_notes(ledgers: Ledgers) -> None:
    ledgers.start("heart", patients("jones"))
    with pytest.raises(OverlapError, match="2 with"):
        ledgers.start("lungs", patients("jones"), label="class")


def test_empty_records_are_nobodys(ledgers: Ledgers) -> None:
    for name in ("heart", "lungs"):
        ledgers.start(name, [{"note": ""}, {"note": f"{name} are fine"}, {"note": " "}])


def test_ledgers_of_different_folders_are_different_sites(ledgers: Ledgers) -> None:
    ledgers.start("heart", patients("jones"), "patient_nbr")
    ledgers.folder = ledgers.setting.folder / "elsewhere"
    ledgers.start("lungs", patients("jones"), "patient_nbr")


def test_a_site_does_not_start_on_an_index_it_cannot_trust(ledgers: Ledgers) -> None:
    ledgers.start("heart", patients("jones"))
    key = ledgers.folder / "units.key"
    key.chmod(0o644)
    with pytest.raises(LedgerError, match="chmod 600"):
        ledgers.start("heart", patients("jones"))
    key.unlink()
    with pytest.raises(LedgerCorruptError, match=r"without its key units\.key"):
        ledgers.start("heart", patients("jones"))


def test_no_clear_text_is_kept_beside_the_ledgers(ledgers: Ledgers) -> None:
    ledgers.start("heart", patients("jones", "smith"), "patient_nbr")
    for path in ledgers.folder.iterdir():
        for word in (b"jones", b"smith", b"was seen", b"visit"):
            assert word not in path.read_bytes()
    assert {path.name for path in ledgers.folder.iterdir()} == {"heart.db", "units.db", "units.key"}


def test_a_runs_own_ledger_leaves_no_index_of_its_people(setting: Setting) -> None:
    """Whoever has an index and its key can test who is in the data; a run is handed on."""
    setting.site().close()
    assert {path.name for path in (setting.folder / "state").iterdir()} == {
        "ledger.db",
        "report.key",
    }


def test_a_step_that_fails_whole_releases_noise(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer would tell something of the sample."""

    def explode(*_: Any, **__: Any) -> None:
        raise MemoryError("a very long record was sampled")

    monkeypatch.setattr(DpLora, "clipped_sum", explode)
    site = setting.site()
    noise = site.consider(setting.proposal).noise_multiplier * setting.proposal.privacy.clip_norm
    vector = site.step(request(), setting.vector)[1].values
    assert 0.7 * noise < vector.std() < 1.3 * noise
    site.close()


def test_a_copy_of_a_ledger_beside_it_is_refused(ledgers: Ledgers) -> None:
    """Both have the same data set id; both would spend."""
    ledgers.start("heart", patients("jones"))
    shutil.copy(ledgers.folder / "heart.db", ledgers.folder / "lungs.db")
    with pytest.raises(OverlapError, match=r"is heart\.db, and lungs\.db is a copy"):
        ledgers.start("lungs", patients("jones"))


def test_a_link_to_a_ledger_is_in_the_ledgers_folder(ledgers: Ledgers) -> None:
    real = ledgers.folder
    ledgers.start("heart", patients("jones"))
    ledgers.folder = ledgers.setting.folder / "links"
    ledgers.folder.mkdir()
    (ledgers.folder / "heart.db").symlink_to(real / "heart.db")
    ledgers.start("heart", patients("jones", "smith"))
    ledgers.folder = real
    with pytest.raises(OverlapError):
        ledgers.start("lungs", patients("smith"))


def test_an_index_that_was_deleted_is_missed_by_a_ledger_that_has_paid(
    setting: Setting, ledgers: Ledgers
) -> None:
    ledgers.start("heart", patients("jones"))
    with Ledger.open(ledgers.folder / "heart.db") as ledger:
        ledger.commit(Plan("job-1", "dp-lora", 0.1, 5.0, 1.0, 1, "p"))
    for name in ("units.db", "units.key"):
        (ledgers.folder / name).unlink()
    with pytest.raises(LedgerCorruptError, match="does not know the ledger"):
        ledgers.start("heart", patients("jones"))


def test_a_population_that_grew_goes_on(ledgers: Ledgers) -> None:
    ledgers.start("heart", patients("jones"))
    grown = dataclasses.replace(TERMS, declared_size=3000, delta=1e-4)
    with pytest.raises(ConfigError, match="If this one grew: fedpriv ledger grow"):
        ledgers.start("heart", patients("jones"), terms=grown)
    with Ledger.open(ledgers.folder / "heart.db") as ledger:
        administration.grow(ledger, 3000, 1e-4)
    ledgers.start("heart", patients("jones", "smith"), terms=grown)
    with pytest.raises(ConfigError, match="was fixed as 3000"):
        ledgers.start("heart", patients("jones"))


def test_after_a_recovery_the_site_starts_again(setting: Setting) -> None:
    """Its own report and the server may have seen any head of the copy that was lost."""
    witness = setting.folder / "witness.json"
    site = setting.site(witness=witness)
    path = site.ledger.path
    site.consider(setting.proposal)
    site.step(request(), setting.vector)
    backup = path.read_bytes()
    reply, _ = site.step(request(1), setting.vector)
    write_budget_report(site, "job-1")
    site.ledger.reserve("job-1", 2, "of a step that is never computed")
    site.close()
    path.write_bytes(backup)
    with pytest.raises(LedgerCorruptError, match="back in time"):
        setting.site(witness=witness)
    administration.recover(path, witness).close()
    site = setting.site(witness=witness)
    assert site.ledger.epsilon_spent == site.ledger.epsilon_committed > 0
    with pytest.raises(BudgetError):
        site.consider(setting.proposal)
    site.ledger.check_witness(Head(reply.ledger_rows, reply.ledger_head))
    with pytest.raises(LedgerCorruptError, match="back in time"):
        site.ledger.check_witness(Head(reply.ledger_rows + 9, reply.ledger_head))
    site.close()
    head, report = f"{reply.ledger_rows}:{reply.ledger_head}", setting.folder / "state/budget.json"
    for found in (verify_ledger(path, head=head), verify_ledger(path, report=report)):
        assert "of a copy that is lost and paid for" in found[2][-1]


def test_no_answer_depends_on_what_records_give(setting: Setting) -> None:
    """Law 18: whether a site begins is decided by its own file; what it answers then never is."""
    model, offers = setting.proposal.model.name, []
    terms = dataclasses.replace(TERMS, simulated=False)
    short = setting.proposal.model.model_copy(update={"max_length": 8})
    for empty in (0, 12, 13):
        rows = [{"note": "" if i < empty else f"note {i}"} for i in range(24)]
        setting.data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        shutil.rmtree(setting.folder / "state", ignore_errors=True)
        if empty == 13:
            with pytest.raises(DataError, match="13 of 24 records give no example"):
                setting.site(terms=terms, model=model)
            setting.data.write_text('{"note": "a"}\n')  # as it was when the site began
            site = setting.site(terms=terms, model=model)
            site._records = dataclasses.replace(
                site._records, training=site._records.training.map(lambda _: {"text": ""})
            )
        else:
            site = setting.site(terms=terms, model=model)
        for proposal in (setting.proposal, setting.change(job_id="short", model=short)):
            offers.append(ask(site, proposal, QUERY))
        site.close()
    figures = [{**offer, "ledger_head": ""} for offer in offers]
    assert figures[::2] == [figures[0]] * 3 and figures[1::2] == [figures[1]] * 3
    assert "refused" not in figures[0].keys() | figures[1].keys()
