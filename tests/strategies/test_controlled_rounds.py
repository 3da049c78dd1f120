"""Rounds with a controller: what sites are asked, and what their releases are taken for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedpriv.config.groups import Decision, GroupTerms
from fedpriv.controllers.base import Array, Controller, Setting
from fedpriv.errors import RoundError
from fedpriv.gradients.groups import Groups, GroupScaling
from fedpriv.methods.dp_lora.server_half import DpLoraServer
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.privacy.config import PrivacySection
from fedpriv.privacy.mechanism.noise_share import SharedGrid
from fedpriv.privacy.mechanism.privatised import Privatised, public
from fedpriv.protocol import Offer, Proposal, SetRequest, SharedNoise, StepReply, StepRequest
from fedpriv.public_update.config import OptimizerSection
from fedpriv.public_update.controller_run import ControllerRun
from fedpriv.public_update.update import Aggregate, Update
from fedpriv.secure_sum.roster import Roster
from fedpriv_strategies.messages import as_arrays
from fedpriv_strategies.rounds import Rounds
from fedpriv_strategies.secure_rounds import SecureRounds
from fedpriv_strategies.sum_of_set import total_deviation
from tests.strategies.asked_grid import AskedGrid
from tests.strategies.summing_nodes import Node, Summing

NAMES, SHAPES = ["a.lora_A.w", "b.lora_A.w"], [(2,), (4,)]
GROUPS = Groups.of(NAMES, SHAPES, "adapters")
SIZE, STEPS, CLIP = GROUPS.size, 10, 0.5
ZEROS = "sha256:" + "0" * 64
PRIVACY = PrivacySection(epsilon=4.0, delta=1e-5, sample_rate=0.1, clip_norm=CLIP)


class Counting(Controller):
    """A controller whose clip norms say how many rounds it has seen."""

    def __init__(self, bits: float = 0.0) -> None:
        super().__init__(Setting(GROUPS.names, GROUPS.sizes, CLIP))
        self.bits = bits
        self.seen: list[Privatised[Array]] = []

    def decide(self) -> Decision:
        return Decision(clip_norms=(1.0 + len(self.seen), 2.0), weights=(0.25, 0.75))

    def see(self, within: Privatised[Array]) -> None:
        self.seen.append(within)


def proposal(terms: GroupTerms, **changes: Any) -> Proposal:
    return Proposal(
        job_id="job", method="dp-lora", steps=STEPS, seed=0, fields=("text",),
        model=ModelSection(), lora=LoraSection(), privacy=PRIVACY, base_digest=ZEROS,
        vector_digest=ZEROS, groups=terms, **changes,
    )  # fmt: skip


def control(counting: Counting, terms: GroupTerms) -> ControllerRun:
    return ControllerRun(counting, GROUPS, terms, clip_norm=CLIP)


def offer(site: str, **changes: Any) -> Offer:
    figures: dict[str, Any] = {
        "site": site, "dataset_id": "0" * 32, "declared_size": 100, "delta": 1e-5,
        "noise_multiplier": 1.0, "epsilon": 4.0, "budget": 8.0, "ledger_rows": 1,
        "ledger_head": "0" * 64,
    }  # fmt: skip
    return Offer(**(figures | changes))


class Sites(AskedGrid):
    """Sites that release what they are told to; those that are away answer nothing.

    Attributes:
        asked: requests, in order.
    """

    def __init__(self, offers: dict[int, Offer], values: dict[int, Any]) -> None:
        super().__init__()
        self.offers, self.values = offers, values
        self.silent: set[int] = set()
        self.asked: list[StepRequest] = []
        self._count = 0

    def get_node_ids(self) -> list[int]:
        return list(self.offers)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        replies = []
        for item in messages:
            self._count += 1
            item.metadata.__dict__["_message_id"] = f"message-{self._count}"
            answer = self._answer(item)
            if answer is not None:
                replies.append(Message(answer, reply_to=item))
        return iter(replies)

    def _answer(self, item: Message) -> RecordDict | None:
        node, body = item.metadata.dst_node_id, str(item.content.config_records["fedpriv"]["body"])
        if item.metadata.message_type == "query":
            return _content(self.offers[node])
        self.asked.append(request := StepRequest.parse(body))
        if node in self.silent:
            return None
        reply = StepReply(
            kind="gradient-sum", slot=request.slot, epsilon_spent=1.0, epsilon_committed=4.0,
            ledger_rows=2, ledger_head="1" * 64,
        )  # fmt: skip
        content = _content(reply)
        content["arrays"] = as_arrays(public(np.asarray(self.values[node], np.float32)))
        return content


def _content(body: Any) -> RecordDict:
    return RecordDict({"fedpriv": ConfigRecord({"body": body.model_dump_json()})})


def rounds(counting: Counting, terms: GroupTerms, min_sites: int = 1) -> Rounds:
    update = Update(OptimizerSection(name="sgd", lr=1.0), public(np.zeros(SIZE, np.float32)))
    return Rounds(
        proposal(terms),
        update,
        DpLoraServer(SIZE),
        min_sites=min_sites,
        timeout=60.0,
        sites=2,
        control=control(counting, terms),
    )


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Aggregate]:
    """What the rounds hand over to the controller."""
    found: list[Aggregate] = []
    gradient = ControllerRun.gradient

    def watched(self: ControllerRun, mean: Aggregate) -> Aggregate:
        found.append(mean)
        return gradient(self, mean)

    monkeypatch.setattr(ControllerRun, "gradient", watched)
    return found


FIXED = GroupTerms(by="adapters", count=2)
ASKING = GroupTerms(by="adapters", count=2, bits=0.2)


def test_a_round_that_is_asked_again_has_the_same_decision_and_the_next_another() -> None:
    counting, values = Counting(bits=0.2), np.ones(SIZE + 2)
    made = rounds(counting, ASKING, min_sites=2)
    grid = Sites({7: offer("a"), 8: offer("b")}, {7: values, 8: values})
    grid.silent = {8}
    for _ in range(2):
        with pytest.raises(RoundError):
            made.run(1, grid)
        assert not made.update.vector.value.any()
    grid.silent = set()
    made.run(1, grid)
    assert made.outcome.decision == grid.asked[0].decision
    made.run(2, grid)
    said = [(asked.slot, asked.decision.clip_norms) for asked in grid.asked if asked.decision]
    assert said == [(0, (1.0, 2.0))] * 6 + [(1, (2.0, 2.0))] * 2
    assert len(counting.seen) == 2


def test_a_mean_of_sites_is_scaled_back_once() -> None:
    counting = Counting(bits=0.2)
    made = rounds(counting, ASKING)
    scaling = GroupScaling(GROUPS, ASKING, counting.decide(), CLIP)
    values = np.concatenate([np.arange(0.1, 0.7, 0.1), [0.0, 0.0]])
    grid = Sites({7: offer("a"), 8: offer("b", noise_multiplier=2.0)}, {7: values, 8: 4 * values})
    made.run(1, grid)
    mean = (values + 4 * values / 4) / (10 + 10 / 4)  # weights of one over the variance
    assert made.update.vector.value == pytest.approx(-scaling.gradient(mean), rel=1e-5)
    [within] = counting.seen
    assert within.value == pytest.approx([0.5, 0.5])


def test_a_release_without_the_values_that_were_asked_for_is_not_used() -> None:
    made = rounds(Counting(bits=0.2), ASKING)
    with pytest.raises(RoundError, match="unusable"):
        made.run(1, Sites({7: offer("a")}, {7: np.ones(SIZE)}))
    assert not made.update.vector.value.any()


def test_a_controller_is_given_the_mean_and_the_noise_of_what_sites_offered(
    taken: list[Aggregate],
) -> None:
    own = {7: 1.0, 8: 1.6}
    made = rounds(Counting(), FIXED)
    offers = {node: offer(f"s{node}", noise_multiplier=noise) for node, noise in own.items()}
    values = {7: np.full(SIZE, 3.0), 8: np.full(SIZE, 5.0)}
    made.run(1, Sites(offers, values))
    units, weights = 0.1 * 100, [1 / noise**2 for noise in own.values()]
    expected = (3 * weights[0] + 5 * weights[1]) / (units * sum(weights))
    assert taken[0].gradient.value == pytest.approx(np.full(SIZE, expected), rel=1e-5)
    assert taken[0].noise_variance == pytest.approx(CLIP**2 / (units**2 * sum(weights)))
    assert taken[0].units == pytest.approx(2 * units)
    found = {name: site.noise_multiplier for name, site in made.outcome.sites.items()}
    assert found == {"s7": 1.0, "s8": 1.6}


def test_a_secure_sum_is_asked_for_under_the_decision_and_scaled_back(
    taken: list[Aggregate],
) -> None:
    counting = Counting(bits=0.2)
    numbers = {"a": range(100, 108), "b": range(-40, 40, 10)}
    nodes = {name: Node(name, values) for name, values in numbers.items()}
    roster = Roster.of(node.entry for node in nodes.values())
    shared = SharedNoise(max_colluding=0, sites=2, roster=roster.digest, noise_multiplier=1.0)
    update = Update(OptimizerSection(name="sgd", lr=1.0), public(np.zeros(SIZE, np.float32)))
    made = SecureRounds(
        proposal(ASKING, shared=shared),
        update,
        DpLoraServer(SIZE),
        min_sites=2,
        timeout=60.0,
        sites=2,
        roster=roster,
        state=None,
        keep=lambda _: None,
        control=control(counting, ASKING),
    )
    decision = counting.decide()
    made.run(1, Summing(*nodes.values()))
    grid = SharedGrid(1.0, CLIP, "default", 2, SIZE + 2)
    total = np.array([list(values) for values in numbers.values()]).sum(0) * grid.step
    mean = (total / 20.0).astype(np.float32)
    scaling = GroupScaling(GROUPS, ASKING, decision, CLIP)
    assert update.vector.value == pytest.approx(-scaling.gradient(mean), rel=1e-5)
    [within] = counting.seen
    assert within.value == pytest.approx(scaling.within(mean), rel=1e-5)
    [one] = taken
    assert one.noise_variance == pytest.approx((total_deviation(grid, 2, 0) / 20.0) ** 2)
    asked = [item for item in nodes["a"].asked if isinstance(item, StepRequest)]
    assert [item.decision for item in asked] == [decision]
    assert made.outcome.decision == decision
    assert any(isinstance(item, SetRequest) for item in nodes["a"].asked)
