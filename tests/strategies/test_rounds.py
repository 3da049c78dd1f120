"""What the server believes of what sites say, and when a round is asked again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedpriv.errors import BudgetError, FedprivError, JobRefusedError, PausedError, RoundError
from fedpriv.methods.dp_lora.server_half import DpLoraServer
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.privacy.config import PrivacySection
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.protocol import Offer, Proposal, Refusal, StepReply
from fedpriv.public_update.config import OptimizerSection
from fedpriv_strategies.averaged import AveragedUpdate
from fedpriv_strategies.messages import as_arrays
from fedpriv_strategies.rounds import Rounds
from tests.strategies.asked_grid import AskedGrid

SIZE, STEPS = 6, 10
ZEROS = "sha256:" + "0" * 64
PROPOSAL = Proposal(
    job_id="job", method="dp-lora", steps=STEPS, seed=0, fields=("text",), model=ModelSection(),
    lora=LoraSection(), privacy=PrivacySection(epsilon=4.0, delta=1e-5, sample_rate=0.1),
    base_digest=ZEROS, vector_digest=ZEROS,
)  # fmt: skip


def offer(site: str, **changes: Any) -> Offer:
    figures: dict[str, Any] = {
        "site": site, "dataset_id": "0" * 32, "declared_size": 100, "delta": 1e-5,
        "noise_multiplier": 1.0, "epsilon": 4.0, "budget": 8.0, "ledger_rows": 1,
        "ledger_head": "0" * 64,
    }  # fmt: skip
    return Offer(**(figures | changes))


def step(slot: int) -> StepReply:
    return StepReply(
        kind="gradient-sum",
        slot=slot,
        epsilon_spent=1.0,
        epsilon_committed=4.0,
        ledger_rows=2,
        ledger_head="1" * 64,
    )


class Answering(AskedGrid):
    """Nodes that answer what they are told to; one without an answer is silent."""

    def __init__(self, answers: Mapping[int, Any]) -> None:
        super().__init__()
        self.answers = dict(answers)
        self.asked: list[int] = []
        self.waited: list[float | None] = []

    def get_node_ids(self) -> list[int]:
        return list(self.answers)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        self.waited.append(timeout)
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"{node}-{len(self.asked)}"
            self.asked.append(node)
            answer = self.answers[node]
            if isinstance(answer, Silent):
                continue
            body = Refusal.of(answer) if isinstance(answer, FedprivError) else answer
            content = RecordDict({"fedpriv": ConfigRecord({"body": body.model_dump_json()})})
            if isinstance(answer, StepReply):
                content["arrays"] = as_arrays(public(np.ones(SIZE, dtype=np.float32)))
            replies.append(Message(content, reply_to=message))
        return iter(replies)


class Silent:
    """No answer at all."""


def strategy(**options: Any) -> Rounds:
    settings: dict[str, Any] = {"min_sites": 1, "timeout": 60.0, "sites": 2}
    return Rounds(PROPOSAL, update(OptimizerSection()), DpLoraServer(SIZE), **(settings | options))


def update(settings: OptimizerSection) -> AveragedUpdate:
    start = public(np.zeros(SIZE, dtype=np.float32))
    return AveragedUpdate(settings, start)


@pytest.mark.parametrize(
    "lie",
    [
        {"site": "b"},
        {"noise_multiplier": 1e-3},
        {"noise_multiplier": 1e-300},
        {"declared_size": 100_000},
        {"delta": 0.5},
    ],
)
def test_an_offer_that_nobody_can_make_is_refused(lie: dict[str, Any]) -> None:
    made = strategy(site_of={7: "a", 8: "b"}.get)
    made.propose(Answering({7: offer("a", **lie) if "site" not in lie else offer("b"),
                            8: offer("b")}))  # fmt: skip
    assert set(made.offers) == {8}
    assert set(made.refused) == {7}


def test_a_site_with_a_new_key_is_the_same_site() -> None:
    names = {7: "a", 8: "b"}
    made = strategy(site_of=names.get)
    grid = Answering({7: offer("a"), 8: BudgetError("no")})
    made.propose(grid)
    del names[7], names[8]
    names |= {17: "a", 18: "b"}
    grid.answers = {17: offer("a"), 18: offer("b")}
    made.propose(grid)
    assert (set(made.offers), set(made.refused)) == ({17, 18}, set())


def test_who_was_dismissed_speaks_for_nobody() -> None:
    made = strategy(site_of={8: "b"}.get)
    made.propose(Answering({7: offer("a"), 8: offer("b")}))
    assert set(made.offers) == {8}


def test_two_nodes_are_not_one_site() -> None:
    made = strategy()
    made.propose(Answering({7: offer("a"), 8: offer("a")}))
    assert set(made.offers) == {7}


def test_a_paused_site_is_asked_again_and_one_that_refuses_is_not() -> None:
    made = strategy(sites=3)
    grid = Answering({7: offer("a"), 8: PausedError("later"), 9: BudgetError("never")})
    made.propose(grid)
    assert (set(made.offers), set(made.refused)) == ({7}, {9})
    grid.answers[8] = offer("b")
    made.propose(grid)
    assert set(made.offers) == {7, 8}
    assert grid.asked == [7, 8, 9, 8]


def test_who_is_silent_holds_nobody_up() -> None:
    """Waited for in full only while too few have accepted, then shortly and ever less often."""
    made = strategy()
    grid = Answering({7: offer("a"), 8: Silent()})
    for _ in range(40):
        made.propose(grid)
    assert grid.waited[0] == 60.0
    assert set(grid.waited[1:]) == {15.0}
    assert grid.asked.count(8) <= 6


@pytest.mark.parametrize(
    ("answers", "heals"),
    [
        ({7: BudgetError("no"), 8: BudgetError("no")}, False),
        ({7: BudgetError("no"), 8: Silent()}, True),
        ({7: JobRefusedError("no"), 8: JobRefusedError("no")}, False),
        ({7: PausedError("later"), 8: PausedError("later")}, True),
    ],
)
def test_a_proposal_may_heal_while_enough_could_still_accept(
    answers: dict[int, Any], heals: bool
) -> None:
    with pytest.raises(RoundError) as caught:
        strategy().propose(Answering(answers))
    assert caught.value.may_heal is heals


@pytest.mark.parametrize(
    ("answer", "heals"),
    [(Silent(), True), (PausedError("later"), True), (BudgetError("no"), False), (step(5), False)],
)
def test_a_round_may_heal_while_enough_could_still_answer(answer: Any, heals: bool) -> None:
    made = strategy(sites=2, min_sites=2)
    grid = Answering({7: offer("a"), 8: offer("b")})
    made.propose(grid)
    before = made.update.vector.value.copy()
    grid.answers = {7: step(0), 8: answer}
    asked = made.requests(1, grid)
    with pytest.raises(RoundError) as caught:
        made.take(1, grid.send_and_receive(asked))
    assert caught.value.may_heal is heals
    assert np.array_equal(made.update.vector.value, before)


def test_what_a_site_says_that_it_released_is_what_was_asked_for() -> None:
    made = strategy()
    grid = Answering({7: offer("a")})
    made.propose(grid)
    grid.answers = {7: step(0).model_copy(update={"kind": "move"})}
    with pytest.raises(RoundError, match="a: unusable"):
        made.run(1, grid)
    assert not made.update.vector.value.any()


def test_a_site_that_is_away_is_not_asked() -> None:
    made = strategy()
    grid = Answering({7: offer("a"), 8: offer("b")})
    made.propose(grid)
    grid.answers = {7: step(0)}
    asked = made.requests(1, grid)
    assert [message.metadata.dst_node_id for message in asked] == [7]
    made.take(1, grid.send_and_receive(asked))
    states = {name: site.status for name, site in made.outcome.sites.items()}
    assert states == {"a": "ok", "b": "absent"}


def test_a_step_has_its_rounds_rate_and_the_noise_of_who_took_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = OptimizerSection(lr=0.5, schedule="linear")
    own = update(settings)
    made = Rounds(PROPOSAL, own, DpLoraServer(SIZE), min_sites=1, timeout=60.0, sites=2)
    grid = Answering({7: offer("a"), 8: offer("b")})
    made.propose(grid)
    grid.answers = {7: step(0)}
    asked = made.requests(1, grid)
    seen: dict[str, float] = {}
    real = own.move

    def watched(released: Any, **options: Any) -> Any:
        seen.update(options, noise_variance=released.noise_variance, units=released.units)
        return real(released, **options)

    monkeypatch.setattr(own, "move", watched)
    made.take(1, grid.send_and_receive(asked))
    assert seen["lr"] == 0.5  # the first of a falling line
    terms, privacy = made.offers[7], PROPOSAL.privacy
    noise = terms.noise_multiplier * privacy.clip_norm
    units = privacy.sample_rate * terms.declared_size
    assert seen["noise_variance"] == pytest.approx((noise / units) ** 2)
    assert seen["units"] == pytest.approx(units)
