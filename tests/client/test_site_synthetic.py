"""A site and the synthetic set of a request: the same set, or nothing is spent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from fedpriv.errors import ConfigError, ProtocolError, SlotError, SyntheticSetError
from fedpriv.methods.pe_sgd.config import ProjectionSection
from fedpriv.methods.pe_sgd.site_half import PeSgd
from fedpriv.privacy.ledger import administration
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.protocol import LocalSteps, Proposal
from fedpriv.public_update.config import DenoiseSection, OptimizerSection
from fedpriv.synthetic.records import MAX_BYTES, SetChange, SyntheticSet
from fedpriv_client import app
from fedpriv_client.envelope import unpack
from fedpriv_client.site import Site
from fedpriv_strategies.messages import TRAIN, as_arrays, as_text
from tests.client.client_setting import Setting, request

FIRST = SyntheticSet({"text": text} for text in ("fever and chills", "no pain", "a cough"))
SECOND = SyntheticSet({"text": text} for text in ("fever and chills", "chest pain", "a cough"))
WHOLE = SetChange.between(None, FIRST)


@pytest.fixture
def setting(tmp_path: Path, model_folder: Callable[..., Any]) -> Setting:
    return Setting(tmp_path, model_folder("llama"))


def proposal(setting: Setting, size: int = 3, **changes: Any) -> Proposal:
    settings = ProjectionSection(size=size).model_dump(mode="json")
    of_set = {"method": "pe-sgd", "settings": settings, "public_records": size}
    return setting.change(**{**of_set, **changes})


def ready(setting: Setting) -> Site:
    site = setting.site(methods=("pe-sgd",))
    site.consider(proposal(setting))
    return site


def ask(site: Site, setting: Setting, slot: int, change: SetChange | None) -> Any:
    digest = None if change is None else change.digest
    return site.step(request(slot, set_digest=digest), setting.vector, change)


def test_as_many_values_leave_as_there_are_records(setting: Setting) -> None:
    site = ready(setting)
    _, first = ask(site, setting, 0, WHOLE)
    _, second = ask(site, setting, 1, SetChange.between(FIRST, SECOND))
    assert first.values.shape == second.values.shape == (3,)
    assert site.ledger.slots("job-1") == [(0, True), (1, True)]
    site.close()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (None, ProtocolError, "disagree about a synthetic set"),
        (SetChange.between(SECOND, FIRST), SyntheticSetError, "not here"),
        (WHOLE.model_copy(update={"digest": SECOND.digest}), SyntheticSetError, "announced"),
        (SetChange.between(None, SyntheticSet([{"text": "a"}])), ProtocolError, "got 1"),
        (
            SetChange.between(None, SyntheticSet([{"prompt": "a", "completion": "b"}] * 3)),
            ProtocolError,
            "has completion, prompt, the job text",
        ),
    ],
)
def test_another_set_is_refused_before_anything_is_spent(
    setting: Setting, change: Any, error: Any, words: str
) -> None:
    site = ready(setting)
    with pytest.raises(error, match=words):
        ask(site, setting, 0, change)
    assert [row.kind for row in site.ledger.rows()] == ["terms"]
    ask(site, setting, 0, WHOLE)  # and the right one is answered
    site.close()


def test_a_gradient_that_can_not_be_computed_is_refused_before_anything_is_spent(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, worker: Any, parameters: Any) -> int:
        raise MemoryError

    site = ready(setting)
    monkeypatch.setattr(PeSgd, "prepare", fail)
    with pytest.raises(MemoryError):
        ask(site, setting, 0, WHOLE)
    assert [row.kind for row in site.ledger.rows()] == ["terms"]
    site.close()


def test_the_same_slot_with_another_set_is_refused_for_ever(setting: Setting) -> None:
    site = ready(setting)
    ask(site, setting, 0, WHOLE)
    with pytest.raises(SlotError, match="another request"):
        ask(site, setting, 0, SetChange.between(FIRST, SECOND))
    site.close()


def test_a_repeat_is_answered_without_computing_and_after_a_restart(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = ready(setting)
    _, first = ask(site, setting, 0, WHOLE)
    site.close()
    monkeypatch.setattr(PeSgd, "prepare", lambda *_: pytest.fail("computed again"))
    site = ready(setting)
    _, again = ask(site, setting, 0, WHOLE)
    assert np.array_equal(first.values, again.values)
    site.close()


@pytest.mark.parametrize(
    ("changes", "limits", "words"),
    [
        ({}, {"methods": ("pe-sgd",), "max_synthetic": 2}, "3 is more than this site allows, 2"),
        ({}, {"methods": ("dp-lora",)}, "'pe-sgd' is not allowed here"),
        ({"public_records": 0}, {"methods": ("pe-sgd",)}, "3 records of the 0 that would be sent"),
        ({"settings": {"size": "x"}}, {"methods": ("pe-sgd",)}, r"settings\.size: .* integer"),
        ({"settings": {"key": 1}}, {"methods": ("pe-sgd",)}, r"settings\.key: Extra"),
        ({"method": "dp-lora"}, {}, "no use for public records"),
    ],
)
def test_the_site_decides(
    setting: Setting, changes: Any, limits: dict[str, Any], words: str
) -> None:
    site = setting.site(**limits)
    with pytest.raises((ProtocolError, ConfigError), match=words):
        site.consider(proposal(setting, **changes))
    assert site.ledger.head.rows == 1
    site.close()


def test_a_change_that_is_not_the_one_of_the_request_is_refused(setting: Setting) -> None:
    site = ready(setting)
    with pytest.raises(ProtocolError, match="disagree about a synthetic set"):
        site.step(request(0, set_digest=SECOND.digest), setting.vector, WHOLE)
    assert [row.kind for row in site.ledger.rows()] == ["terms"]
    site.close()


@pytest.mark.parametrize(
    ("settings", "limits", "words"),
    [
        ({"size": 257}, {}, "257 is more than the 256 parameters"),
        ({}, {"max_basis": 3 * 256 * 4 - 1}, "are 3,072 bytes, more than this site allows, 3,071"),
    ],
)
def test_gradients_that_do_not_fit_are_refused_with_the_proposal(
    setting: Setting, settings: Any, limits: Any, words: str
) -> None:
    site = setting.site(methods=("pe-sgd",), **limits)
    with pytest.raises(ProtocolError, match=words):
        site.consider(proposal(setting, **settings))
    site.close()


def test_what_the_ledger_refuses_is_refused_before_anything_is_computed(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = ready(setting)
    ask(site, setting, 0, WHOLE)
    monkeypatch.setattr(PeSgd, "prepare", lambda *_: pytest.fail("computed for nothing"))
    with pytest.raises(SlotError, match="another request"):
        ask(site, setting, 0, SetChange.between(FIRST, SECOND))
    administration.close_job(site.ledger, "job-1")
    with pytest.raises(SlotError, match="closed"):
        ask(site, setting, 1, WHOLE)
    site.close()


def test_local_steps_that_can_not_go_on_are_a_move_of_nothing(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another try would run other mechanisms under the same reservations."""
    real, calls = PeSgd.at, []

    def fail_later(self: Any, parameters: Any, moved: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise MemoryError
        return real(self, parameters, moved)

    monkeypatch.setattr(PeSgd, "at", fail_later)
    site = setting.site(methods=("pe-sgd",))
    local = LocalSteps(count=2, optimizer=OptimizerSection(name="sgd"), denoise=DenoiseSection())
    site.consider(proposal(setting, local=local))
    _, move = ask(site, setting, 0, WHOLE)
    assert move.kind == "move"
    assert move.values.shape == (3,) and not move.values.any()
    assert site.ledger.slots("job-1") == [(0, True), (1, True)]
    site.close()


@pytest.mark.parametrize(
    ("optimizer", "denoise", "words"),
    [({"weight_decay": 0.1}, {}, "no weights"), ({}, {"where": "site"}, "no matrices")],
)
def test_local_steps_that_leave_the_span_are_refused(
    setting: Setting, optimizer: Any, denoise: Any, words: str
) -> None:
    site = setting.site(methods=("pe-sgd",))
    local = LocalSteps(
        count=2, optimizer=OptimizerSection(**optimizer), denoise=DenoiseSection(**denoise)
    )
    with pytest.raises(ProtocolError, match=words):
        site.consider(proposal(setting, local=local))
    site.close()


def test_a_method_that_is_gone_is_refused_whatever_the_sites_file_allows(setting: Setting) -> None:
    site = setting.site(methods=("pe-sgd-gradient",))
    with pytest.raises(ConfigError, match=r"no such method is installed .*'pe-sgd-gradient'"):
        site.consider(proposal(setting, method="pe-sgd-gradient"))
    assert site.ledger.head.rows == 1
    site.close()


def test_local_steps_that_would_move_something_else_are_refused_before_anything_is_spent(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a method of another package does: a round's steps would be paid for nothing."""
    site = setting.site(methods=("pe-sgd",))
    local = LocalSteps(count=2, optimizer=OptimizerSection(name="sgd"), denoise=DenoiseSection())
    site.consider(proposal(setting, local=local))
    monkeypatch.setattr(PeSgd, "start", lambda self, parameters: np.zeros(2, dtype=np.float32))
    with pytest.raises(ProtocolError, match="has one step a round"):
        ask(site, setting, 0, WHOLE)
    assert site.ledger.head.rows == 1
    site.close()


def test_a_proposal_that_differs_in_a_type_alone_is_another(setting: Setting) -> None:
    """Python takes 1 for True; the digests, and what a method makes of them, differ."""
    site = setting.site(methods=("pe-sgd",))
    jobs = []
    for ridge in (1, True):
        asked = proposal(setting, settings={"size": 3, "ridge": ridge, "bound": "clipped"})
        site.consider(asked)
        assert site._job is not None
        assert site._job.plan.proposal == asked.digest()
        jobs.append(asked)
    assert jobs[0] == jobs[1]
    site.close()


@pytest.mark.slow
def test_what_one_request_computed_is_gone_before_the_next(setting: Setting) -> None:
    """The gradients of a set are large, and hold on to the model that made them."""
    import gc

    from fedpriv.methods.pe_sgd.span import Span

    site = ready(setting)
    for slot in (0, 1):
        ask(site, setting, slot, WHOLE)
        gc.collect()
        assert not [one for one in gc.get_objects() if isinstance(one, Span)]
    site.close()


def test_a_set_of_megabytes_arrives(setting: Setting) -> None:
    """Through what a site lets in of a server's messages."""
    made = SyntheticSet({"text": f"{i} " + "wörds " * 2000} for i in range(300))
    change = SetChange.between(None, made)
    vector = as_arrays(public(setting.vector))
    content = RecordDict({"arrays": vector, "synthetic": as_text(change.model_dump_json())})
    content["fedpriv"] = ConfigRecord({"body": request(0).model_dump_json()})
    sent = make_message(Metadata(1, "", 0, 2, "", "1", 0.0, 60.0, TRAIN), content=content)
    contents = {key: item.deflate() for key, item in get_all_nested_objects(sent).items()}
    root = get_object_tree(sent).object_id
    arrived = unpack(root, contents, largest=MAX_BYTES)
    assert app._change(arrived) == change
    with pytest.raises(ProtocolError, match="are allowed here"):
        unpack(root, contents, largest=1 << 20)
