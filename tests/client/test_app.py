"""What a site says when something goes wrong: one of a few public pairs, and never a text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message
from flwr.common.serde import message_to_proto

import fedpriv.errors
from fedpriv import wire as wire_module
from fedpriv.errors import BudgetError, ConfigError, DataError, FedprivError, PausedError
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.names import Wire
from fedpriv.privacy.config import PrivacySection
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.private_training.released import GradientSum
from fedpriv.protocol import FAILED, Offer, Proposal, Refusal, StepReply, StepRequest
from fedpriv.wire import encode
from fedpriv_client.app import client_app
from fedpriv_simulation.inline import InlineGrid
from fedpriv_strategies.messages import QUERY, TRAIN, as_arrays, as_blocks, message

MARKER = "Jane-Doe-1956"
ANY = "sha256:" + "0" * 64
PROPOSAL = Proposal(
    job_id="job-1",
    method="dp-lora",
    steps=4,
    seed=0,
    fields=("text",),
    model=ModelSection(),
    lora=LoraSection(),
    privacy=PrivacySection(epsilon=5.0, delta=1e-3, sample_rate=0.5, max_records_per_unit=1),
    base_digest=ANY,
    vector_digest=ANY,
)
ZEROS = as_arrays(public(np.zeros(3, dtype=np.float32)))


def subclasses(kind: type[FedprivError]) -> Iterator[type[FedprivError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from subclasses(child)


OURS = [kind for kind in subclasses(FedprivError) if kind.__module__ == fedpriv.errors.__name__]
FOREIGN: list[Exception] = [
    ValueError(MARKER),
    KeyError(MARKER),
    MemoryError(MARKER),
    ExceptionGroup(MARKER, [BudgetError(MARKER)]),
    UnicodeDecodeError("utf-8", MARKER.encode(), 0, 1, MARKER),
    type(MARKER, (RuntimeError,), {"code": MARKER})(MARKER),
]


def fake(**parts: Any) -> SimpleNamespace:
    """A site of which a job may train 120 values."""
    limits = SimpleNamespace(max_trainable=120)
    return SimpleNamespace(settings=SimpleNamespace(limits=limits), **parts)


def raises(error: Exception) -> Callable[..., Any]:
    def work(*_: Any) -> Any:
        error.__cause__ = ValueError(MARKER)
        error.add_note(MARKER)
        raise error

    return work


def reply(site: Any, kind: str, vector: ArrayRecord | None = ZEROS) -> Message:
    """The answer of a site to a proposal, or to a request that is well formed but for `vector`."""
    with InlineGrid({2: client_app(site)}, 1) as grid:
        if kind == QUERY:
            asked = message(PROPOSAL, 2, QUERY, "0")
        else:
            asked = message(StepRequest(job_id="job-1", slot=0), 2, TRAIN, "1", vector)
        [answer] = grid.send_and_receive([asked], timeout=60)
    return answer


def wire(answer: Message) -> bytes:
    """Everything that leaves, as Flower sends it."""
    return message_to_proto(answer).SerializeToString()


def body(answer: Message) -> dict[str, Any]:
    assert set(answer.content) == {"fedpriv"}
    assert set(answer.content["fedpriv"]) == {"body"}
    found: dict[str, Any] = json.loads(answer.content["fedpriv"]["body"])
    return found


STEP = StepReply(
    kind="gradient-sum",
    slot=0,
    epsilon_spent=1.0,
    epsilon_committed=2.0,
    ledger_rows=1,
    ledger_head="0" * 64,
)


@pytest.mark.parametrize("wire", get_args(Wire))
def test_a_vector_arrives_and_the_answer_travels_as_the_job_says(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_module, "BLOCK", 50)
    monkeypatch.setattr("fedpriv_client.app.signed_report", lambda *_: None)
    monkeypatch.setattr("fedpriv_client.app.write_report", lambda *_: None)
    asked, released = np.random.default_rng(0).normal(size=(2, 120)).astype(np.float32)
    seen = []

    def step(request: StepRequest, vector: Any, change: Any) -> Any:
        assert change is None
        seen.append(request.digest(vector))
        return STEP, GradientSum(released)

    site = fake(step=step, wire=wire)
    answer = reply(site, TRAIN, as_arrays(public(asked)))
    assert seen == [StepRequest(job_id="job-1", slot=0).digest(asked)]
    arrays = answer.content["arrays"]
    expected = dict(encode(released, wire))
    assert arrays.keys() == expected.keys()
    assert all(np.array_equal(arrays[name].numpy(), expected[name]) for name in arrays)
    assert as_blocks(arrays, 120, wire).value.vector() == pytest.approx(released, rel=0.1, abs=0.02)


@pytest.mark.parametrize(
    "arrays",
    [
        None,
        {"vector": Array(np.zeros(3, np.float32))},
        {"000001": Array(np.zeros(3, np.float32))},
        {"000000": Array(np.zeros(3))},
        {"000000": Array(np.full(3, np.nan, np.float32))},
        {"000000": Array("float32", (10**15,), "numpy.ndarray", b"")},
        {"000000": Array(np.zeros(121, np.float32))},
        {"000000": Array("float32", (-1,), "numpy.ndarray", b"")},
        {"000000": Array("float32", (4,), "numpy.ndarray", ZEROS["000000"].data)},
        {"000000": Array("float32", (1 << 60,) * 1000, "numpy.ndarray", ZEROS["000000"].data)},
    ],
)
def test_a_malformed_request_is_refused_before_the_site_hears_of_it(arrays: Any) -> None:
    site = fake(step=raises(AssertionError("a slot would be paid")))
    answer = reply(site, TRAIN, None if arrays is None else ArrayRecord(arrays))
    assert body(answer) == {"refused": "protocol", "kind": "ProtocolError"}


@pytest.mark.parametrize("kind", [QUERY, TRAIN])
@pytest.mark.parametrize("error", OURS)
def test_of_our_errors_code_and_class_leave_and_nothing_else(
    error: type[FedprivError], kind: str
) -> None:
    work = raises(error(MARKER))
    answer = reply(fake(consider=work, step=work), kind)
    named = ConfigError if error is DataError else error
    assert body(answer) == {"refused": named.code, "kind": named.__name__}
    assert MARKER.encode() not in wire(answer)


@pytest.mark.parametrize("kind", [QUERY, TRAIN])
@pytest.mark.parametrize("error", FOREIGN)
def test_of_foreign_errors_a_constant_leaves(error: Exception, kind: str) -> None:
    """Not even their class: which one it is may depend on a record."""
    work = raises(error)
    answer = reply(fake(consider=work, step=work), kind)
    assert body(answer) == {"refused": "failed", "kind": "StepFailedError"}
    assert MARKER.encode() not in wire(answer)


def test_a_marker_that_leaves_would_be_seen() -> None:
    """The mutation: an answer that says it is caught by the same look at the wire."""
    leaky = fake(consider=lambda *_: Offer.model_construct(site=MARKER, epsilon=1.0))
    assert MARKER.encode() in wire(reply(leaky, QUERY))


@pytest.mark.parametrize(
    ("error", "level"), [(PausedError("no yes yet"), "INFO"), (BudgetError("no"), "ERROR")]
)
def test_waiting_for_a_person_is_no_error(
    error: FedprivError, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        answer = reply(fake(consider=raises(error)), QUERY)
    assert body(answer)["refused"] == error.code
    [told] = [record for record in caplog.records if str(error) in record.getMessage()]
    assert told.levelname == level


def test_names_that_somebody_else_chose_do_not_leave() -> None:
    error = type(MARKER, (BudgetError,), {"code": MARKER})(MARKER)
    error.code = MARKER
    answer = reply(fake(consider=raises(error)), QUERY)
    assert body(answer) == {"refused": "budget", "kind": "BudgetError"}
    assert MARKER.encode() not in wire(answer)


def test_each_of_our_errors_but_one_is_told_apart() -> None:
    """Whether records or settings are wrong is nobody else's business."""
    assert len({Refusal.of(kind("")) for kind in OURS}) == len(OURS) - 1
    assert Refusal.of(DataError("")) == Refusal.of(ConfigError(""))


@pytest.mark.parametrize(
    "changes",
    [{"refused": MARKER}, {"kind": "patient 7"}, {"kind": "x" * 65}, {"text": "patient 7"}],
)
def test_a_refusal_has_no_room_for_a_text(changes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="Refusal"):
        Refusal.model_validate(FAILED.model_dump() | changes)
