"""A round of a secure sum: who is in it, what it comes to, and what becomes of a void slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedpriv.errors import (
    BudgetError,
    PausedError,
    RoundError,
    SetError,
    ShareLostError,
    SlotError,
    StepFailedError,
    SyntheticSetError,
)
from fedpriv.methods.dp_lora.server_half import DpLoraServer
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.privacy.config import PrivacySection
from fedpriv.privacy.mechanism.noise_share import SharedGrid
from fedpriv.privacy.mechanism.privatised import TrustModel, public
from fedpriv.protocol import Proposal, Ready, SetRequest, SharedNoise, StepRequest
from fedpriv.public_update.config import OptimizerSection
from fedpriv.public_update.update import Aggregate, learning_rate
from fedpriv.secure_sum.ready import Ephemeral, SlotId, sign_member
from fedpriv.secure_sum.roster import Roster
from fedpriv_strategies.averaged import AveragedUpdate
from fedpriv_strategies.secure_rounds import TRIES, SecureRounds, SumState
from fedpriv_strategies.sum_of_set import total_deviation
from tests.strategies.summing_nodes import SILENT, UNITS, Node, Summing

SIZE, ROUNDS = 6, 3
ZEROS = "sha256:" + "0" * 64
NUMBERS = {"a": range(-3, 3), "b": (7, 0, -90, 12, 5, 1), "c": (100, -100, 2, 2, 2, 2)}


class Setting:
    """Three honest nodes, and the server's half of a job that adds them up.

    Attributes:
        kept: every state that was written down, in order.
        released: what the update was moved along, with its learning rate.
    """

    def __init__(self, *, spare: int = 0, min_sites: int = 2, schedule: str = "constant") -> None:
        self.nodes = {name: Node(name, numbers) for name, numbers in NUMBERS.items()}
        self.grid = Summing(*self.nodes.values())
        self.roster = Roster.of(node.entry for node in self.nodes.values())
        shared = SharedNoise(
            max_colluding=1, sites=3, roster=self.roster.digest, noise_multiplier=1.0,
            spare_slots=spare,
        )  # fmt: skip
        self.proposal = Proposal(
            job_id="job", method="dp-lora", steps=ROUNDS + spare, seed=0, fields=("text",),
            model=ModelSection(), lora=LoraSection(), base_digest=ZEROS, vector_digest=ZEROS,
            privacy=PrivacySection(epsilon=4.0, delta=1e-5, sample_rate=0.1, clip_norm=0.5),
            shared=shared,
        )  # fmt: skip
        self.optimizer = OptimizerSection(lr=0.5, schedule=schedule)  # type: ignore[arg-type]
        self.min_sites = min_sites
        self.kept: list[SumState] = []
        self.released: list[tuple[Aggregate, float]] = []
        self.start(None)

    def start(self, state: SumState | None) -> None:
        """The server's process, with the state that was kept."""
        update = AveragedUpdate(self.optimizer, public(np.zeros(SIZE, dtype=np.float32)))

        def step(released: Aggregate, *, lr: float) -> None:
            self.released.append((released, lr))

        update.move = step  # type: ignore[method-assign]
        self.rounds = SecureRounds(
            self.proposal,
            update,
            DpLoraServer(SIZE),
            min_sites=self.min_sites,
            timeout=60.0,
            sites=3,
            roster=self.roster,
            state=state,
            keep=self.kept.append,
        )

    def run(self, number: int = 1) -> Aggregate:
        self.rounds.run(number, self.grid)
        return self.released[-1][0]

    def fails(self, number: int = 1) -> RoundError:
        with pytest.raises(RoundError) as caught:
            self.rounds.run(number, self.grid)
        return caught.value

    def mean(self, *names: str) -> list[float]:
        """What the sum over these sites comes to, from whole numbers without end."""
        grid = SharedGrid(1.0, 0.5, "default", 2, SIZE)
        units = 0.1 * UNITS * len(names)
        columns = zip(*(map(int, self.nodes[name].numbers) for name in names), strict=True)
        return [float(np.float32(sum(column) * grid.step / units)) for column in columns]

    def states(self) -> dict[str, str]:
        return {name: site.status for name, site in self.rounds.outcome.sites.items()}

    def members(self, node: str = "a") -> list[list[str]]:
        """Of the sets that a node was told, in order."""
        sets = [one for one in self.nodes[node].asked if isinstance(one, SetRequest)]
        return [[member.name for member in one.members] for one in sets]


def test_the_mean_is_the_exact_sum_over_the_expected_units() -> None:
    setting = Setting()
    found = setting.run()
    assert found.gradient.value.tolist() == setting.mean("a", "b", "c")
    assert found.gradient.trust_model == TrustModel.AGGREGATE
    assert found.units == pytest.approx(30.0)
    grid = SharedGrid(1.0, 0.5, "default", 2, SIZE)
    assert found.noise_variance == pytest.approx((total_deviation(grid, 3, 1) / 30.0) ** 2)
    assert found.noise_variance == pytest.approx(3 / 2 * (0.5 / 30.0) ** 2, rel=0.01)
    assert set(setting.states().values()) == {"ok"}
    assert setting.rounds.heads["a"].rows == 5
    site = setting.rounds.outcome.sites["a"]
    assert (site.epsilon_spent, site.epsilon_committed) == (1.0, 4.0)


def test_bytes_are_counted_as_they_travel() -> None:
    setting = Setting()
    setting.run()
    outcome = setting.rounds.outcome
    bits = next(one.bits for one in setting.nodes["a"].asked if isinstance(one, SetRequest))
    assert outcome.bytes_up > 3 * SIZE * bits // 8
    assert outcome.bytes_up < 3 * (SIZE * bits // 8 + 1000)
    assert outcome.bytes_down > 3 * 4 * SIZE


def test_a_set_is_kept_before_any_site_is_told_of_it() -> None:
    setting = Setting()
    seen: list[SumState] = []
    setting.grid.before_sets = lambda: seen.append(setting.kept[-1])
    setting.run()
    (state,) = seen
    assert state.request is not None
    assert (state.round, state.slot) == (1, 0)
    (told,) = [one for one in setting.nodes["a"].asked if isinstance(one, SetRequest)]
    assert told == state.request


def test_who_is_not_ready_is_in_no_set() -> None:
    setting = Setting()
    setting.nodes["b"].on_ready = lambda _: SILENT
    found = setting.run()
    assert setting.members() == [["a", "c"]]
    assert found.gradient.value.tolist() == setting.mean("a", "c")
    assert found.units == pytest.approx(20.0)
    assert not setting.nodes["b"].slots(SetRequest)
    assert setting.states()["b"] == "no reply"


def test_who_is_away_is_not_asked_and_in_no_set() -> None:
    setting = Setting()
    setting.rounds.propose(setting.grid)
    setting.grid.away = {"c"}
    setting.run()
    assert setting.members() == [["a", "b"]]
    assert not setting.nodes["c"].asked
    assert setting.states()["c"] == "absent"


def forged(ready: Ready) -> Ready:
    member = ready.member.model_copy(update={"signature": "0" * 128})
    return ready.model_copy(update={"member": member})


def of_another(ready: Ready) -> Ready:
    """In another's name."""
    return ready.model_copy(update={"member": ready.member.model_copy(update={"name": "a"})})


def with_another_key(ready: Ready) -> Ready:
    member = ready.member.model_copy(update={"key": Ephemeral().public})
    return ready.model_copy(update={"member": member})


def of_another_slot(ready: Ready) -> Ready:
    return ready.model_copy(update={"slot": ready.slot + 1})


def signed_otherwise(**changes: Any) -> Callable[[Node, Setting], Callable[[Ready], Ready]]:
    """Signed by the site itself, for something else."""

    def lie(node: Node, setting: Setting) -> Callable[[Ready], Ready]:
        def said(ready: Ready) -> Ready:
            known = {"proposal": setting.proposal.digest(), "slot": ready.slot, "request": ZEROS}
            slot_id = SlotId(**{**known, **changes})
            member = sign_member(node.signing_key, slot_id, node.name, Ephemeral())
            return ready.model_copy(update={"member": member})

        return said

    return lie


@pytest.mark.parametrize(
    "lie",
    [
        lambda *_: forged,
        lambda *_: of_another,
        lambda *_: with_another_key,
        lambda *_: of_another_slot,
        signed_otherwise(),
        signed_otherwise(slot=2),
        signed_otherwise(proposal=ZEROS),
    ],
)
def test_who_is_ready_for_something_else_is_left_out_and_the_others_go_on(lie: Any) -> None:
    setting = Setting()
    node = setting.nodes["b"]
    node.on_ready = lie(node, setting)
    found = setting.run()
    assert setting.members() == [["a", "c"]]
    assert found.gradient.value.tolist() == setting.mean("a", "c")
    assert setting.states()["b"] == "unusable"
    assert not node.slots(SetRequest)


@pytest.mark.parametrize(
    ("answer", "heals"),
    [
        (SILENT, True),
        (PausedError("later"), True),
        (StepFailedError(), True),
        (SyntheticSetError("another"), True),
        (BudgetError("no"), False),
        (SlotError("given"), False),
    ],
)
def test_too_few_may_be_ready_later_if_they_did_not_refuse_for_good(
    answer: Any, heals: bool
) -> None:
    setting = Setting(min_sites=3)
    setting.nodes["b"].on_ready = lambda _: answer
    error = setting.fails()
    assert error.may_heal is heals
    assert "2 sites are ready, 3 are needed" in str(error)
    assert not setting.members()
    assert setting.kept[-1].request is None
    setting.nodes["b"].on_ready = lambda ready: ready
    setting.run()
    assert setting.nodes["a"].slots(StepRequest) == [0, 0]
    assert setting.members() == [["a", "b", "c"]]


def test_a_lost_reply_is_asked_for_again_with_the_same_set() -> None:
    setting = Setting()
    setting.nodes["b"].on_share = lambda _: SILENT
    error = setting.fails()
    assert error.may_heal
    assert "1 of 3 shares are missing" in str(error)
    assert not setting.released
    setting.nodes["b"].on_share = lambda share: share
    found = setting.run()
    assert found.gradient.value.tolist() == setting.mean("a", "b", "c")
    for node in setting.nodes.values():
        first, again = [one for one in node.asked if isinstance(one, SetRequest)]
        assert first == again
        assert node.slots(StepRequest) == [0]


def test_a_restarted_server_asks_the_same_set_for_the_same_slot() -> None:
    setting = Setting()
    setting.nodes["b"].on_share = lambda _: SILENT
    setting.fails()
    setting.nodes["b"].on_share = lambda share: share
    setting.start(setting.kept[-1])
    found = setting.run()
    assert found.gradient.value.tolist() == setting.mean("a", "b", "c")
    for node in setting.nodes.values():
        first, again = [one for one in node.asked if isinstance(one, SetRequest)]
        assert first == again
        assert node.slots(StepRequest) == [0]


def test_a_restarted_server_waits_for_those_who_are_in_the_set() -> None:
    setting = Setting()
    setting.nodes["b"].on_share = lambda _: SILENT
    setting.fails()
    setting.start(setting.kept[-1])
    setting.grid.away = {"c"}
    error = setting.fails()
    assert error.may_heal
    assert "c" in str(error)
    setting.grid.away = set()
    setting.nodes["b"].on_share = lambda share: share
    setting.run()
    assert setting.members()[0] == setting.members()[-1] == ["a", "b", "c"]


def test_who_never_comes_back_after_a_restart_costs_a_spare_slot() -> None:
    setting = Setting(spare=1)
    setting.nodes["b"].on_share = lambda _: SILENT
    setting.fails()
    setting.start(setting.kept[-1])
    setting.grid.away = {"b"}
    for _ in range(TRIES):
        if setting.released:
            break
        try:
            setting.run()
        except RoundError as error:
            assert error.may_heal
    assert setting.members()[-1] == ["a", "c"]
    assert setting.nodes["a"].slots(StepRequest) == [0, 1]


WRONG_SHARES: list[Callable[[Any], Any]] = [
    lambda _: ShareLostError("gone"),
    lambda _: StepFailedError(),
    lambda _: SlotError("another set"),
    lambda _: SetError("wrong"),
    lambda share: share[0],
    lambda share: (share[0].model_copy(update={"kind": "gradient-sum"}), share[1]),
    lambda share: (share[0].model_copy(update={"slot": 9}), share[1]),
    lambda share: (share[0], share[1][:-1]),
    lambda share: (share[0], np.concatenate([share[1], share[1]])),
    lambda share: (share[0], share[1].astype(np.uint64)),
    lambda share: (share[0], share[1].astype(np.float32)),
]


@pytest.mark.parametrize("lie", WRONG_SHARES)
def test_a_share_that_will_never_come_voids_the_slot_and_a_spare_one_goes_on(lie: Any) -> None:
    setting = Setting(spare=1)
    node = setting.nodes["b"]
    node.on_share = lambda share: lie(share) if node.asked[-1].slot == 0 else share
    found = setting.run()
    assert found.gradient.value.tolist() == setting.mean("a", "c")  # who failed may fail again
    assert node.slots(StepRequest) == [0, 1]
    assert [state.slot for state in setting.kept] == [0, 0, 1, 1]
    setting.run(2)
    setting.run(3)
    assert node.slots(StepRequest) == [0, 1, 2, 3]


@pytest.mark.parametrize("lie", WRONG_SHARES)
def test_without_a_spare_slot_a_void_one_ends_the_job(lie: Any) -> None:
    setting = Setting()
    setting.nodes["b"].on_share = lie
    error = setting.fails()
    assert not error.may_heal
    assert "privacy.spare_slots" in str(error)
    assert not setting.released


def test_spare_slots_are_kept_for_those_that_later_rounds_need() -> None:
    setting = Setting(spare=1, min_sites=3)
    setting.nodes["b"].on_share = lambda _: ShareLostError("gone")
    assert not setting.fails().may_heal
    assert setting.nodes["a"].slots(SetRequest) == [0, 1]


def test_one_site_that_fails_again_and_again_costs_a_round_one_slot() -> None:
    setting = Setting(spare=1)
    setting.nodes["b"].on_share = lambda _: ShareLostError("gone")
    setting.run()
    assert setting.nodes["a"].slots(SetRequest) == [0, 1]


def test_shares_that_are_missing_for_long_cost_a_spare_slot() -> None:
    setting = Setting(spare=1)
    node = setting.nodes["b"]
    node.on_share = lambda share: SILENT if node.asked[-1].slot == 0 else share
    for _ in range(TRIES - 1):
        assert setting.fails().may_heal
    setting.run()
    assert setting.nodes["a"].slots(SetRequest) == [0] * TRIES + [1]


def test_without_a_spare_slot_missing_shares_are_waited_for() -> None:
    setting = Setting()
    node = setting.nodes["b"]
    node.on_share = lambda _: PausedError("later")
    for _ in range(TRIES + 2):
        assert setting.fails().may_heal
    node.on_share = lambda share: share
    setting.run()
    assert set(setting.nodes["a"].slots(SetRequest)) == {0}


def test_a_sum_that_is_larger_than_honest_ones_is_void() -> None:
    setting = Setting(spare=1)
    node = setting.nodes["b"]

    def lie(share: Any) -> Any:
        body, values = share
        far = np.full_like(values, 2 ** (8 * values.itemsize - 2))
        return (body, values + far) if body.slot == 0 else share

    node.on_share = lie
    found = setting.run()
    assert node.slots(SetRequest) == [0, 1]
    assert found.gradient.value.tolist() == setting.mean("a", "b", "c")


def test_another_round_has_another_slot_and_the_schedule_counts_rounds() -> None:
    setting = Setting(spare=2, schedule="linear")
    node = setting.nodes["b"]
    void = {0, 2}
    node.on_share = lambda share: ShareLostError("") if node.asked[-1].slot in void else share
    for number in range(1, ROUNDS + 1):
        setting.run(number)
    assert node.slots(StepRequest) == [0, 1, 2, 3, 4]
    assert [state.round for state in setting.kept if state.request is None] == [1, 1, 2, 2, 3]
    rates = [learning_rate(setting.optimizer, n, ROUNDS) for n in range(1, ROUNDS + 1)]
    assert [lr for _, lr in setting.released] == rates
    assert rates[0] > rates[1] > rates[2]


def test_a_void_slot_is_never_asked_again_by_a_restarted_server() -> None:
    setting = Setting(spare=1)
    setting.nodes["b"].on_share = lambda _: ShareLostError("gone")
    setting.nodes["c"].on_ready = lambda ready: SILENT if ready.slot == 1 else ready
    setting.nodes["a"].on_ready = lambda ready: SILENT if ready.slot == 1 else ready
    assert setting.fails().may_heal  # too few are ready for the spare slot
    for node in setting.nodes.values():
        node.on_share = node.on_ready = lambda answer: answer
    setting.start(setting.kept[-1])
    setting.run()
    assert setting.nodes["b"].slots(StepRequest) == [0, 1, 1]


def test_an_offer_of_less_noise_than_the_others_have_is_refused() -> None:
    setting = Setting()
    node = setting.nodes["b"]
    node.on_offer = lambda made: made.model_copy(update={"noise_multiplier": 0.9})
    setting.run()
    assert setting.members() == [["a", "c"]]
    assert len(setting.rounds.refused) == 1


class Kept(DpLoraServer):
    """Sites hold a set of public records, of which a site may know nothing."""

    def __init__(self) -> None:
        super().__init__(SIZE)
        self.held: list[str | None] = []

    def change(self, held: str | None) -> None:
        self.held.append(held)


def test_what_a_site_holds_is_forgotten_when_it_says_that_it_does_not() -> None:
    setting = Setting()
    setting.rounds.method = method = Kept()
    setting.rounds.propose(setting.grid)
    setting.rounds._held = dict.fromkeys(setting.rounds.offers, ZEROS)
    setting.nodes["b"].on_ready = lambda _: SyntheticSetError("another")
    setting.run(1)
    setting.nodes["b"].on_ready = lambda ready: ready
    setting.run(2)
    assert method.held == [ZEROS, ZEROS, ZEROS, None, None, None]
