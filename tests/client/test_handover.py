"""The adapter of a finished job comes to a site: what it keeps, and that it says nothing of it."""

from __future__ import annotations

import errno
import json
import logging
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fedpriv.adapter_facts import read_facts
from fedpriv.base_model import FACTS, WEIGHTS
from fedpriv.errors import ConfigError, ProtocolError
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.plain_training.adapter import read_values, saved_bytes
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.pool import make_worker
from fedpriv.private_training.worker import ModelRecipe
from fedpriv.protocol import Handover, Proposal, values_digest
from fedpriv_client.app import client_app
from fedpriv_client.disk_space import disk_space_needed
from fedpriv_client.handover import SLACK
from fedpriv_client.orders import Orders
from fedpriv_client.site import Site
from fedpriv_client.site_job import recipe_of
from fedpriv_simulation.inline import InlineGrid
from fedpriv_strategies.messages import ADAPTER, as_arrays, message
from tests.client.client_setting import Setting, request

Make = Callable[..., Any]


@pytest.fixture
def setting(tmp_path: Path, model_folder: Make) -> Setting:
    return Setting(tmp_path, model_folder("llama"))


@pytest.fixture
def site(setting: Setting) -> Iterator[Site]:
    """One that has taken a step of the job."""
    made = setting.site()
    made.consider(setting.proposal)
    made.step(request(), setting.vector)
    yield made
    made.close()


def values(setting: Setting, seed: int = 1) -> Any:
    return np.random.default_rng(seed).normal(size=setting.vector.size).astype(np.float32)


def hand(site: Any, body: Any, arrays: ArrayRecord | None) -> Message:
    """What a site answers to a handover."""
    with InlineGrid({2: client_app(site)}, 1) as grid:
        asked = message(body, 2, ADAPTER, "adapter", arrays)
        [answer] = grid.send_and_receive([asked], timeout=60)
    return answer


def handover(proposal: Proposal, vector: Any) -> Handover:
    return Handover(proposal=proposal, values_digest=values_digest(vector))


def said(answer: Message) -> dict[str, Any]:
    assert not answer.has_error()
    return {name: dict(record) for name, record in answer.content.items()}


NOTHING = {"fedpriv": {"body": "{}"}}  # the one answer there is


def adapters(setting: Setting) -> Path:
    return setting.folder / "state" / "adapters"


def kept(setting: Setting) -> list[str]:
    folder = adapters(setting)
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_the_adapter_is_kept_as_peft_reads_it(setting: Setting, site: Site) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    vector = values(setting)
    answer = hand(site, handover(setting.proposal, vector), as_arrays(public(vector)))
    assert said(answer) == NOTHING
    folder = adapters(setting) / "job-1"
    assert kept(setting) == ["job-1"]
    facts = read_facts(folder)
    assert (facts.kind, facts.job, facts.held_out) == ("federated", "job-1", "not set")
    assert facts.proposal == setting.proposal
    base = AutoModelForCausalLM.from_pretrained(setting.proposal.model.name)
    loaded = PeftModel.from_pretrained(base, folder)
    found = [p.detach().reshape(-1) for n, p in loaded.named_parameters() if ".lora_" in n]
    assert np.array_equal(np.concatenate([part.numpy() for part in found]), vector)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert "may be handed on" in (folder / "README.md").read_text()


def test_what_was_written_is_what_is_read(setting: Setting, site: Site) -> None:
    vector = values(setting)
    path = site.take_adapter(handover(setting.proposal, vector), vector)
    with site._pool.borrow(site._job.recipe) as worker:  # type: ignore[union-attr]
        worker.vector.write(np.zeros_like(vector))
        assert np.array_equal(read_values(path, worker, read_facts(path)), vector)


def test_the_same_adapter_comes_twice_and_another_takes_its_place_never(
    setting: Setting, site: Site
) -> None:
    first = values(setting)
    path = site.take_adapter(handover(setting.proposal, first), first)
    before = (path / WEIGHTS).stat().st_mtime_ns
    assert site.take_adapter(handover(setting.proposal, first), first) == path
    other = values(setting, seed=2)
    with pytest.raises(ConfigError, match="another adapter of the same job"):
        site.take_adapter(handover(setting.proposal, other), other)
    assert (path / WEIGHTS).stat().st_mtime_ns == before


def test_an_adapter_of_a_job_that_was_not_paid_for_is_not_kept(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    site = setting.site()
    site.consider(setting.proposal)  # and no step
    vector = values(setting)
    answer = hand(site, handover(setting.proposal, vector), as_arrays(public(vector)))
    assert said(answer) == NOTHING
    assert kept(setting) == []
    assert "no step of job 'job-1'" in caplog.text
    site.close()


@pytest.mark.parametrize("change", [{"seed": 1}, {"method": "pe-sgd"}, {"fields": ("text", "x")}])
def test_an_adapter_of_another_proposal_is_not_kept(
    setting: Setting, site: Site, caplog: pytest.LogCaptureFixture, change: Any
) -> None:
    """The plan in the ledger holds the digest of all that was proposed."""
    vector = values(setting)
    body = handover(setting.change(**change), vector)
    assert said(hand(site, body, as_arrays(public(vector)))) == NOTHING
    assert kept(setting) == []
    assert "not the one that this site took part in" in caplog.text


def test_values_of_another_digest_are_not_kept(
    setting: Setting, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    body = handover(setting.proposal, values(setting))
    other = as_arrays(public(values(setting, seed=2)))
    assert said(hand(site, body, other)) == NOTHING
    assert kept(setting) == []
    assert "another digest" in caplog.text


@pytest.mark.parametrize("size", [255, 257])
def test_values_of_another_model_are_not_kept(setting: Setting, site: Site, size: int) -> None:
    vector = np.ones(size, np.float32)
    body = handover(setting.proposal, vector)
    assert said(hand(site, body, as_arrays(public(vector)))) == NOTHING
    assert kept(setting) == []


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_trainable": 255}, "this site allows 255"),
        ({"base_digest": "sha256:" + "f" * 64}, "not the base model this site allows"),
        ({"max_r": 1}, "lora.r"),
        ({"targets": ("v_proj",)}, "may get no adapter here"),
    ],
)
def test_the_sites_own_limits_hold_for_it(
    setting: Setting, caplog: pytest.LogCaptureFixture, limits: Any, words: str
) -> None:
    """Also those that were lowered after the job."""
    first = setting.site()
    first.consider(setting.proposal)
    first.step(request(), setting.vector)
    first.close()
    site = setting.site(**limits)
    vector = values(setting)
    answer = hand(site, handover(setting.proposal, vector), as_arrays(public(vector)))
    assert said(answer) == NOTHING
    assert kept(setting) == []
    assert words in caplog.text
    site.close()


@pytest.mark.parametrize(
    "arrays",
    [
        None,
        {"vector": Array(np.zeros(3, np.float32))},
        {"000000": Array(np.zeros(256))},
        {"000000": Array(np.full(256, np.nan, np.float32))},
        {"000000": Array("float32", (10**15,), "numpy.ndarray", b"")},
    ],
)
def test_what_is_malformed_is_answered_alike(setting: Setting, site: Site, arrays: Any) -> None:
    body = handover(setting.proposal, values(setting))
    record = None if arrays is None else ArrayRecord(arrays)
    assert said(hand(site, body, record)) == NOTHING
    assert said(hand(site, request(), record)) == NOTHING
    assert kept(setting) == []


FAILURES: list[Exception] = [
    OSError(errno.ENOSPC, "No space left on device"),
    PermissionError(errno.EACCES, "Permission denied"),
    MemoryError(),
    ConfigError("patient 7"),
    RuntimeError("patient 7"),
]


@pytest.mark.parametrize("error", FAILURES)
def test_the_answer_is_the_same_whatever_became_of_the_writing(
    setting: Setting, site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Free disk and memory depend on the records (law 18)."""

    def explode(*_: Any, **__: Any) -> None:
        raise error

    vector = values(setting)
    body, arrays = handover(setting.proposal, vector), as_arrays(public(vector))
    monkeypatch.setattr("fedpriv.plain_training.adapter.write_facts", explode)
    failed = hand(site, body, arrays)
    assert kept(setting) == []  # not half of it, either
    monkeypatch.undo()
    assert said(failed) == said(hand(site, body, arrays)) == NOTHING
    assert kept(setting) == ["job-1"]


@pytest.mark.slow
def test_an_answer_to_a_handover_leaves_at_a_tick_with_room_or_without(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long writing took would tell what is free (law 19)."""
    waited: list[float] = []

    @contextmanager
    def noting(seconds: float) -> Iterator[None]:
        waited.append(seconds)
        yield

    monkeypatch.setattr("fedpriv_client.handover.until_tick", noting)
    made = setting.site(ticks=True)
    made.consider(setting.proposal)
    made.step(request(), setting.vector)
    vector = values(setting)
    body, arrays = handover(setting.proposal, vector), as_arrays(public(vector))
    with monkeypatch.context() as patched:
        full = SimpleNamespace(free=0)
        patched.setattr("fedpriv_client.handover.shutil.disk_usage", lambda _: full)
        hand(made, body, arrays)
    hand(made, body, arrays)
    hand(made, body, arrays)
    made.close()
    assert kept(setting) == ["job-1"]
    assert len(waited) == 3 and len(set(waited)) == 1 and waited[0] > 1


def test_the_disk_that_is_reserved_for_the_ledger_is_left_to_it(
    setting: Setting,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What a job may take of the disk was free when the site started, and stays so."""
    vector = values(setting)
    _, reserved = disk_space_needed(site.settings, 0)
    with setting.pool.borrow(recipe_of(setting.proposal, site.settings)) as worker:
        needed = reserved + saved_bytes(worker) + SLACK
    free = SimpleNamespace(free=needed - 1)
    monkeypatch.setattr("fedpriv_client.handover.shutil.disk_usage", lambda _: free)
    body, arrays = handover(setting.proposal, vector), as_arrays(public(vector))
    assert said(hand(site, body, arrays)) == NOTHING
    assert kept(setting) == []
    assert "reserved for the ledger" in caplog.text
    held = SimpleNamespace(held=1, close=lambda: None)
    monkeypatch.setattr(site, "_held", [held])  # is the ledger's at the next start, too
    assert said(hand(site, body, arrays)) == NOTHING
    assert kept(setting) == ["job-1"]
    assert (
        sum(f.stat().st_size for f in (adapters(setting) / "job-1").iterdir()) < needed - reserved
    )


@pytest.mark.parametrize("frozen_a", [False, True])
def test_what_is_not_trained_counts_where_it_is_written(model_folder: Make, frozen_a: bool) -> None:
    """With `frozen_a` the vector is lora_B alone, and peft writes lora_A, too."""
    model = ModelSection(name=str(model_folder("llama")), max_length=32)
    lora = LoraSection(r=4, frozen_a=frozen_a)
    worker = make_worker(ModelRecipe(model, lora, 0, ComputeSection(device="cpu")))
    both = LoraSection(r=4)
    trained = make_worker(ModelRecipe(model, both, 0, ComputeSection(device="cpu"))).vector.size
    assert saved_bytes(worker) == 4 * trained
    assert (worker.vector.size < trained) == frozen_a


def test_no_more_are_kept_than_so_many(
    setting: Setting, site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Or a server would fill the disk with those of jobs that cost next to nothing."""
    monkeypatch.setattr("fedpriv_client.handover.MOST", 1)
    (adapters(setting) / "job-0").mkdir(parents=True)
    vector = values(setting)
    body, arrays = handover(setting.proposal, vector), as_arrays(public(vector))
    assert said(hand(site, body, arrays)) == NOTHING
    assert kept(setting) == ["job-0"]
    assert "no more are kept" in caplog.text


def test_orders_of_the_administrator_hold_for_it(
    setting: Setting, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """And nobody hears of them."""
    vector = values(setting)
    asked = message(
        handover(setting.proposal, vector), 2, ADAPTER, "adapter", as_arrays(public(vector))
    )
    for orders in (Orders(paused=True), Orders(refused=("job-1",))):
        with InlineGrid({2: client_app(site, orders.check)}, 1) as grid:
            [answer] = grid.send_and_receive([asked], timeout=60)
        assert said(answer) == NOTHING
        assert kept(setting) == []
    assert "refuses job 'job-1'" in caplog.text


def test_a_step_after_it_is_on_the_base_that_was_checked(setting: Setting, site: Site) -> None:
    """Another model in between makes the job's be loaded anew, and somebody changed the files."""
    folder = Path(setting.proposal.model.name)
    weights = next(folder.glob("*.safetensors"))
    before = weights.read_bytes()
    other = replace(recipe_of(setting.proposal, site.settings), seed=7)
    tensors = {name: tensor * 2 for name, tensor in load_file(weights).items()}
    try:
        save_file(tensors, weights, metadata={"format": "pt"})
        with site._pool.borrow(other):
            pass
        rows = len(site.ledger.rows())
        with pytest.raises(ProtocolError, match="base"):
            site.step(request(slot=1), setting.vector)
        assert len(site.ledger.rows()) == rows  # nothing was paid
    finally:
        weights.write_bytes(before)


def test_it_is_told_here_where_the_adapter_is(
    setting: Setting, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    vector = values(setting)
    hand(site, handover(setting.proposal, vector), as_arrays(public(vector)))
    assert f"its adapter is in {adapters(setting) / 'job-1'}" in caplog.text


@pytest.mark.parametrize(
    ("name", "words"), [(FACTS, "fedpriv.json is missing"), (WEIGHTS, f"{WEIGHTS} is missing")]
)
def test_a_folder_without_a_part_is_no_adapter(
    setting: Setting, site: Site, name: str, words: str
) -> None:
    vector = values(setting)
    path = site.take_adapter(handover(setting.proposal, vector), vector)
    (path / name).unlink()
    with pytest.raises(ConfigError, match=words):
        read_facts(path)


@given(st.integers(0, 2**31), st.integers(1, 255))
def test_a_byte_that_was_changed_is_found(seed: int, change: int) -> None:
    """Of weights that only have to be a file for that."""
    from tempfile import TemporaryDirectory

    from fedpriv.plain_training.adapter import write_facts
    from tests.client.test_app import PROPOSAL

    content = bytearray(np.random.default_rng(seed).bytes(64))
    with TemporaryDirectory() as folder:
        path = Path(folder)
        (path / WEIGHTS).write_bytes(content)
        write_facts(path, PROPOSAL, kind="federated")
        read_facts(path)
        content[seed % 64] ^= change
        (path / WEIGHTS).write_bytes(content)
        with pytest.raises(ConfigError, match="is not the file that fedpriv"):
            read_facts(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"kind": "federated"}', "\udcff"])
def test_facts_that_are_none_are_a_typed_error(setting: Setting, site: Site, text: str) -> None:
    vector = values(setting)
    path = site.take_adapter(handover(setting.proposal, vector), vector)
    (path / FACTS).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=r"fedpriv\.json: can't be read"):
        read_facts(path)


def test_an_adapter_of_another_shape_is_refused(setting: Setting, site: Site) -> None:
    vector = values(setting)
    path = site.take_adapter(handover(setting.proposal, vector), vector)
    recipe = site._job.recipe  # type: ignore[union-attr]
    lora = recipe.lora.model_copy(update={"r": 4})
    import dataclasses

    with (
        site._pool.borrow(dataclasses.replace(recipe, lora=lora)) as worker,
        pytest.raises(ConfigError, match="not those of the job's model"),
    ):
        read_values(path, worker, read_facts(path))
    assert json.loads((path / FACTS).read_text())["proposal"]["lora"]["r"] == 2
