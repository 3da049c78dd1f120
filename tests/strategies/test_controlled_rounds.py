"""Rounds with a controller: what sites are asked, and what their releases are taken for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedpriv.config.groups import Decision, GroupTerms
from fedpriv.controllers.base import Seen
from fedpriv.errors import RoundError
from fedpriv.gradients.groups import Groups, GroupScaling
from fedpriv.methods.dp_lora.server_half import DpLoraServer
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.privacy.accounting.filter import RdpFilter
from fedpriv.privacy.config import PrivacySection
from fedpriv.privacy.mechanism.noise_share import SharedGrid
from fedpriv.privacy.mechanism.privatised import public
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


class Counting:
    """A controller whose clip norms say how many rounds it has seen."""

    together, lift = False, 1.0

    def __init__(self, share: float | None = None, rate: float = 1.0, bits: float = 0.0) -> None:
        self.bits, self._share, self._rate = bits, share, rate
        self.seen: list[Seen] = []

    def decide(self, number: int) -> Decision:
        norms = (1.0 + len(self.seen), 2.0)
        return Decision(clip_norms=norms, weights=(0.25, 0.75), share=self._share, rate=self._rate)

    def see(self, seen: Seen) -> None:
        self.seen.append(seen)

    def state(self) -> Any:
        return public({})

    def restore(self, state: Any) -> None: ...


def proposal(terms: GroupTerms, **changes: Any) -> Proposal:
    return Proposal(
        job_id="job", method="dp-lora", steps=STEPS, seed=0, fields=("text",),
        model=ModelSection(), lora=LoraSection(), privacy=PRIVACY, base_digest=ZEROS,
        vector_digest=ZEROS, groups=terms, **changes,
    )  # fmt: skip


def control(counting: Counting, terms: GroupTerms) -> ControllerRun:
    return ControllerRun(counting, GROUPS, terms, clip_norm=CLIP, rounds=STEPS)


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


FIXED = GroupTerms(by="adapters", count=2)
ADAPTIVE = GroupTerms(by="adapters", count=2, adaptive=True)


def test_a_round_that_is_asked_again_has_the_same_decision_and_the_next_another() -> None:
    counting = Counting()
    made = rounds(counting, FIXED, min_sites=2)
    grid = Sites({7: offer("a"), 8: offer("b")}, {7: np.ones(SIZE), 8: np.ones(SIZE)})
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
    assert [one.number for one in counting.seen] == [1, 2]


def test_a_mean_of_sites_is_scaled_back_once() -> None:
    counting = Counting(bits=0.2)
    terms = FIXED.model_copy(update={"bits": 0.2})
    made = rounds(counting, terms)
    scaling = GroupScaling(GROUPS, terms, counting.decide(1), CLIP)
    values = np.concatenate([np.arange(0.1, 0.7, 0.1), [0.0, 0.0]])
    grid = Sites({7: offer("a"), 8: offer("b", noise_multiplier=2.0)}, {7: values, 8: 4 * values})
    made.run(1, grid)
    mean = (values + 4 * values / 4) / (10 + 10 / 4)  # weights of one over the variance
    assert made.update.vector.value == pytest.approx(-scaling.gradient(mean), rel=1e-5)
    assert counting.seen[0].within is not None
    assert counting.seen[0].within.value == pytest.approx([0.5, 0.5])


def test_a_release_without_the_values_that_were_asked_for_is_not_used() -> None:
    terms = FIXED.model_copy(update={"bits": 0.2})
    made = rounds(Counting(bits=0.2), terms)
    with pytest.raises(RoundError, match="unusable"):
        made.run(1, Sites({7: offer("a")}, {7: np.ones(SIZE)}))
    assert not made.update.vector.value.any()


def test_sites_weigh_by_the_noise_that_each_made_of_the_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each by its own budget at its own order, and at the rate that was asked for."""
    counting = Counting(share=0.3, rate=0.5)
    made = rounds(counting, ADAPTIVE)
    own = {7: (1.0, 8), 8: (1.6, 30)}
    offers = {node: offer(f"s{node}", noise_multiplier=n, order=o) for node, (n, o) in own.items()}
    values = {7: np.full(SIZE, 3.0), 8: np.full(SIZE, 5.0)}
    taken: list[Aggregate] = []
    gradient = ControllerRun.gradient

    def watched(self: ControllerRun, number: int, mean: Aggregate, before: Any) -> Aggregate:
        taken.append(mean)
        return gradient(self, number, mean, before)

    monkeypatch.setattr(ControllerRun, "gradient", watched)
    made.run(1, Sites(offers, values))
    noises = [n * RdpFilter(o, 0.1, n, STEPS).noise_of(0.3, 0.5) for n, o in own.values()]
    assert noises[0] < 1.0  # a large share, at half of the rate
    assert abs(noises[1] / noises[0] - 1.6) > 1e-3  # as the orders differ
    units, weights = 0.05 * 100, [1 / noise**2 for noise in noises]
    expected = (3 * weights[0] + 5 * weights[1]) / (units * sum(weights))
    assert taken[0].gradient.value == pytest.approx(np.full(SIZE, expected), rel=1e-5)
    assert taken[0].noise_variance == pytest.approx(CLIP**2 / (units**2 * sum(weights)))
    assert taken[0].units == pytest.approx(2 * units)
    assert counting.seen[0].spent == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("order", "noise"),
    [(None, 1.0), (8, 1e9)],
    ids=["no order", "a budget that buys nothing"],
)
def test_a_site_whose_order_and_noise_can_not_be_is_left_out(
    order: int | None, noise: float
) -> None:
    made = rounds(Counting(share=0.1), ADAPTIVE)
    values = {7: np.ones(SIZE), 8: np.full(SIZE, 9.0)}
    other = offer("b", order=order, noise_multiplier=noise)
    made.run(1, Sites({7: offer("a", order=8), 8: other}, values))
    assert {name: site.status for name, site in made.outcome.sites.items()} == {"a": "ok"}
    assert list(made.refused) == [8]


def test_a_secure_sum_is_asked_for_under_the_decision_and_scaled_back() -> None:
    counting, numbers = Counting(), {"a": range(100, 106), "b": range(-40, 20, 10)}
    nodes = {name: Node(name, values) for name, values in numbers.items()}
    roster = Roster.of(node.entry for node in nodes.values())
    shared = SharedNoise(max_colluding=0, sites=2, roster=roster.digest, noise_multiplier=1.0)
    update = Update(OptimizerSection(name="sgd", lr=1.0), public(np.zeros(SIZE, np.float32)))
    made = SecureRounds(
        proposal(FIXED, shared=shared),
        update,
        DpLoraServer(SIZE),
        min_sites=2,
        timeout=60.0,
        sites=2,
        roster=roster,
        state=None,
        keep=lambda _: None,
        control=control(counting, FIXED),
    )
    decision = counting.decide(1)
    made.run(1, Summing(*nodes.values()))
    grid = SharedGrid(1.0, CLIP, "default", 2, SIZE)
    total = sum(np.array(list(values)) for values in numbers.values()) * grid.step
    scaling = GroupScaling(GROUPS, FIXED, decision, CLIP)
    assert update.vector.value == pytest.approx(-scaling.gradient(total / 20.0), rel=1e-5)
    noise = total_deviation(grid, 2, 0) / 20.0
    assert counting.seen[0].deviation == pytest.approx(tuple(noise / scaling.scales))
    asked = [one for one in nodes["a"].asked if isinstance(one, StepRequest)]
    assert [one.decision for one in asked] == [decision]
    assert made.outcome.decision == decision
    assert any(isinstance(one, SetRequest) for one in nodes["a"].asked)
