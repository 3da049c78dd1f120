"""What a server believes of a look, whom it asks again, and what it makes of too few answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedpriv.config.looks import LooksSection
from fedpriv.errors import BudgetError, FedprivError, PausedError, RoundError
from fedpriv.methods.dp_lora.server_half import DpLoraServer
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.privacy.config import PrivacySection
from fedpriv.privacy.ledger.ledger import Head
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.protocol import Centres, Offer, Proposal, Refusal, StepReply, StepRequest
from fedpriv.public_update.config import OptimizerSection
from fedpriv_strategies.averaged import AveragedUpdate
from fedpriv_strategies.looks import TRIES, Look, look
from fedpriv_strategies.messages import as_arrays
from fedpriv_strategies.rounds import Rounds
from tests.strategies.asked_grid import AskedGrid

STEPS, SIZE = 10, 6
ZEROS = "sha256:" + "0" * 64
LOOKS = LooksSection(looks=2, slots=4, loss_range=2.0, accuracy_range=0.5)
CENTRES = Centres(loss=3.0, accuracy=0.25)
PROPOSAL = Proposal(
    job_id="job", method="dp-lora", steps=STEPS + LOOKS.steps, seed=0, fields=("text",),
    model=ModelSection(), lora=LoraSection(), base_digest=ZEROS, vector_digest=ZEROS,
    privacy=PrivacySection(epsilon=4.0, delta=1e-5, sample_rate=0.1, clip_norm=0.5),
    evaluation=LOOKS,
)  # fmt: skip
Answer = Callable[[StepRequest], Any]


def offer(site: str, **changes: Any) -> Offer:
    figures: dict[str, Any] = {
        "site": site, "dataset_id": "0" * 32, "declared_size": 1000, "held_out_size": 200,
        "delta": 1e-5, "noise_multiplier": 1.0, "epsilon": 4.0, "budget": 8.0, "ledger_rows": 1,
        "ledger_head": "0" * 64,
    }  # fmt: skip
    return Offer(**(figures | changes))


def reply(slot: int, **changes: Any) -> StepReply:
    figures: dict[str, Any] = {
        "kind": "held-out-sum", "slot": slot, "epsilon_spent": 1.0, "epsilon_committed": 4.0,
        "ledger_rows": 7, "ledger_head": "1" * 64,
    }  # fmt: skip
    return StepReply(**(figures | changes))


class Answering(AskedGrid):
    """Nodes that answer what a function makes of each request; None is silence."""

    def __init__(self, answers: dict[int, Answer]) -> None:
        super().__init__()
        self.answers = answers
        self.asked: list[tuple[int, StepRequest]] = []
        self.groups: list[str] = []

    def get_node_ids(self) -> list[int]:
        return list(self.answers)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"{node}-{len(self.asked)}"
            self.groups.append(message.metadata.group_id)
            request = StepRequest.parse(message.content.config_records["fedpriv"]["body"])
            self.asked.append((node, request))
            answer = self.answers[node](request)
            if answer is None:
                continue
            body, values = answer if isinstance(answer, tuple) else (answer, None)
            body = Refusal.of(body) if isinstance(body, FedprivError) else body
            content = RecordDict({"fedpriv": ConfigRecord({"body": body.model_dump_json()})})
            if values is not None:
                content["arrays"] = as_arrays(public(np.array(values, np.float32)))
            replies.append(Message(content, reply_to=message))
        return iter(replies)


def looked(answers: dict[int, Answer], *, min_sites: int = 1, number: int = 1) -> Any:
    update = AveragedUpdate(OptimizerSection(), public(np.zeros(SIZE, dtype=np.float32)))
    method = DpLoraServer(SIZE)
    rounds = Rounds(PROPOSAL, update, method, min_sites=min_sites, timeout=1.0, sites=3)
    rounds.offers = {node: offer(f"site-{node}", noise_multiplier=node) for node in answers}
    grid = Answering(answers)
    found = look(rounds, number, CENTRES, grid)
    return found, grid, rounds


def good(request: StepRequest) -> Any:
    return reply(request.slot), [4.0, -8.0]


@pytest.mark.parametrize("number", [1, 2])
def test_a_look_asks_for_slots_after_those_of_all_rounds(number: int) -> None:
    found, grid, rounds = looked({1: good, 2: good}, number=number)
    assert [request.slot for _, request in grid.asked] == [STEPS + 4 * (number - 1)] * 2
    assert all(request.centres == CENTRES for _, request in grid.asked)
    assert set(grid.groups) == {str(5 * number)}  # as a site's mailbox orders them
    assert isinstance(found, Look) and (found.number, found.counted) == (number, 2)
    expected = 0.5 * 0.1 * 200 * 4  # clip norm × rate × declared held-out units × steps
    site = found.sites["site-2"]
    assert site.loss.mean == pytest.approx(3.0 + 2.0 * 4.0 / expected)
    assert site.accuracy.mean == pytest.approx(0.25 + 0.5 * -8.0 / expected)
    assert site.loss.deviation == pytest.approx(2.0 * 2.0 * 0.5 * 2 / expected)
    assert found.loss.mean == pytest.approx(site.loss.mean)
    both = 2.0 * math.sqrt(1 + 4) * 0.5 * 2 / (2 * expected)
    assert found.loss.deviation == pytest.approx(both)
    assert found.bytes_up > 2 * 2 * 4 and found.bytes_down > 2 * SIZE * 4
    assert rounds.heads == {name: Head(7, "1" * 64) for name in ("site-1", "site-2")}


@pytest.mark.parametrize("error", [PausedError, None])
def test_who_may_answer_yet_is_asked_again_in_the_same_words(error: Any) -> None:
    tries: list[StepRequest] = []

    def late(request: StepRequest) -> Any:
        tries.append(request)
        if len(tries) == 1:
            return error and error("not now")
        return good(request)

    found, grid, _ = looked({1: good, 2: late})
    assert found.counted == 2 and len(grid.asked) == 3
    vector = np.zeros(SIZE, dtype=np.float32)
    assert tries[0].digest(vector) == tries[1].digest(vector)


@pytest.mark.parametrize(
    ("answer", "status", "times"),
    [
        (lambda request: None, "no reply", TRIES),
        (lambda request: BudgetError("no"), "refused: budget (BudgetError)", 1),
        (lambda request: PausedError("no"), "waits for a person's yes (paused)", TRIES),
        (lambda request: (reply(request.slot, kind="gradient-sum"), [1.0, 1.0]), "unusable", 1),
        (lambda request: (reply(request.slot + 4), [1.0, 1.0]), "unusable", 1),
        (lambda request: (reply(request.slot), [1.0, 1.0, 1.0]), "unusable", 1),
        (lambda request: (reply(request.slot), [1e6, 1.0]), "unusable", 1),
        (lambda request: reply(request.slot), "unusable", 1),
    ],
)
def test_what_can_not_be_used_is_left_out_and_stops_nothing(
    answer: Answer, status: str, times: int
) -> None:
    found, grid, _ = looked({1: good, 2: answer})
    assert found.sites["site-2"].status == status
    assert found.sites["site-2"].loss is None
    assert found.counted == 1 and found.loss == found.sites["site-1"].loss
    assert [node for node, _ in grid.asked].count(2) == times


def test_too_few_sites_make_no_mean_but_each_is_shown() -> None:
    found, _, _ = looked({1: good, 2: lambda request: None}, min_sites=2)
    assert (found.loss, found.accuracy, found.counted) == (None, None, 1)
    assert found.sites["site-1"].loss is not None
    nobody, _, _ = looked({1: lambda request: None}, min_sites=1)
    assert (nobody.loss, nobody.counted) == (None, 0)


def test_an_offer_without_a_declared_number_is_not_used() -> None:
    update = AveragedUpdate(OptimizerSection(), public(np.zeros(SIZE, dtype=np.float32)))
    rounds = Rounds(PROPOSAL, update, DpLoraServer(SIZE), min_sites=1, timeout=1.0, sites=1)

    class Offering(Answering):
        def send_and_receive(
            self, messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterator[Message]:
            [asked] = messages
            asked.metadata.__dict__["_message_id"] = "1"
            body = offer("a", held_out_size=None).model_dump_json()
            content = RecordDict({"fedpriv": ConfigRecord({"body": body})})
            return iter([Message(content, reply_to=asked)])

    with pytest.raises(RoundError, match="0 sites accept"):
        rounds.propose(Offering({1: good}))
