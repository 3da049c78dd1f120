"""A site and its held-out records: who may look, at what, and what a look costs."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv.config.looks import LooksSection
from fedpriv.data.store import Unit
from fedpriv.errors import FedprivError, ProtocolError, SlotError, StepFailedError
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.private_training.held_out_sum import Distances
from fedpriv.protocol import Centres, LocalSteps, Proposal, StepRequest
from fedpriv.public_update.config import DenoiseSection, OptimizerSection
from fedpriv_client import site as module
from fedpriv_client import ticks
from fedpriv_client.site import Site
from tests.client.client_setting import Setting, request

Make = Callable[..., Any]
LOOKS = LooksSection(looks=2, slots=3)
CENTRES = Centres(loss=5.5, accuracy=0.25)
FIRST = 4  # after the rounds of the setting


class HeldOut(Setting):
    """A site with a file of seven held-out records, declared as ten."""

    def __init__(self, folder: Path, model: Path) -> None:
        super().__init__(folder, model)
        rows = [{"note": f"kept apart {i} cough {i * i}"} for i in range(7)]
        self.held_out = folder / "held-out.jsonl"
        self.held_out.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.looking = self.change(steps=FIRST + 6, evaluation=LOOKS)

    def open(self, **limits: Any) -> Site:
        """A site that allows looks unless told otherwise."""
        known = {"evaluation": True, "held_out": 10}
        closed = self.site(**{**known, **limits})
        settings = dataclasses.replace(closed.settings, held_out=self.held_out)
        closed.close()
        return Site(settings, self.pool, closed._csprng)


def asks(slot: int = FIRST, centres: Centres | None = CENTRES, **changes: Any) -> StepRequest:
    return request(slot, centres=centres, **changes)


@pytest.fixture
def setting(tmp_path: Path, model_folder: Make) -> HeldOut:
    return HeldOut(tmp_path, model_folder("llama"))


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"evaluation": False}, "is not allowed here"),
        ({"held_out": None}, "declares no number of held-out records"),
    ],
)
def test_a_look_is_refused_unless_the_site_allows_it(
    setting: HeldOut, limits: Any, words: str
) -> None:
    site = setting.open(**limits)
    with pytest.raises(ProtocolError, match=f"evaluation.sites.*{words}"):
        site.consider(setting.looking)
    assert site.ledger.head.rows == 1
    site.close()


def test_looks_are_off_by_default(setting: HeldOut) -> None:
    assert not setting.limits().evaluation
    site = setting.site(held_out=10)
    with pytest.raises(ProtocolError, match="not allowed here"):
        site.consider(setting.looking)
    site.consider(setting.proposal)
    with pytest.raises(ProtocolError, match="looks at no held-out records"):
        site.step(asks(0), setting.vector)
    site.close()


def test_an_offer_says_the_declared_number_and_never_the_counted_one(setting: HeldOut) -> None:
    site = setting.open()
    offer = site.consider(setting.looking)
    assert (offer.declared_size, offer.held_out_size) == (24, 10)
    assert site.consider(setting.change(job_id="job-2")).held_out_size is None
    site.close()


def test_a_look_is_at_held_out_units_only_and_a_round_at_the_others(
    setting: HeldOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, set[str]] = {}

    def noting(kind: type[Any], name: str) -> None:
        original = kind.clipped_sum

        def noted(self: Any, worker: Any, units: Any, *rest: Any) -> Any:
            found: list[Unit] = list(units)
            texts = {worker.base.tokenizer.decode(e.input_ids) for unit in found for e in unit}
            seen[name] = seen.get(name, set()) | texts
            return original(self, worker, found, *rest)

        monkeypatch.setattr(kind, "clipped_sum", noted)

    noting(DpLora, "round")
    noting(Distances, "look")
    site = setting.open()
    privacy = setting.proposal.privacy.model_copy(update={"sample_rate": 1.0})
    site.consider(setting.looking.model_copy(update={"privacy": privacy}))
    site.step(request(0), setting.vector)
    site.step(asks(), setting.vector)
    site.close()
    assert len(seen["round"]) == 24 and all("note" in text for text in seen["round"])
    assert len(seen["look"]) == 7 and all("kept apart" in text for text in seen["look"])


def test_the_steps_of_a_look_are_paid_together_before_they_are_computed(
    setting: HeldOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = setting.open()
    offer = site.consider(setting.looking)
    monkeypatch.setattr("fedpriv.private_training.held_out_sum.look", lambda *_: 1 / 0)
    with pytest.raises(StepFailedError):
        site.step(asks(), setting.vector)
    reserved = ["terms", "plan", "reserve", "reserve", "reserve"]
    assert [row.kind for row in site.ledger.rows()] == reserved
    monkeypatch.undo()
    reply, released = site.step(asks(), setting.vector)
    assert [row.kind for row in site.ledger.rows()] == [*reserved, *["release"] * 3]
    assert (reply.kind, released.kind, reply.slot) == ("held-out-sum", "held-out-sum", FIRST)
    assert released.values.shape == (2,)
    assert reply.epsilon_committed == offer.epsilon  # of all ten slots, from the first on
    site.close()


def test_a_repeated_look_costs_nothing_and_says_the_same(setting: HeldOut) -> None:
    site = setting.open()
    site.consider(setting.looking)
    first = site.step(asks(), setting.vector)
    again = site.step(asks(), setting.vector)
    site.close()
    site = setting.open()
    site.consider(setting.looking)
    restarted = site.step(asks(), setting.vector)
    for reply, released in (again, restarted):
        assert reply == first[0]
        assert np.array_equal(released.values, first[1].values)
    assert site.ledger.slots("job-1") == [(slot, True) for slot in (4, 5, 6)]
    other = site.step(asks(FIRST + 3), setting.vector)
    assert not np.array_equal(other[1].values, first[1].values)
    site.close()


@pytest.mark.slow
def test_every_step_of_a_look_ends_at_a_tick(
    setting: HeldOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At which one depends on the declared number, not on what is held out."""
    monkeypatch.setattr(ticks, "_seconds_a_record", lambda *_: 1e-4)
    waited: list[float] = []

    @contextmanager
    def noting(seconds: float) -> Iterator[None]:
        waited.append(seconds)
        yield

    monkeypatch.setattr(ticks, "until_tick", noting)
    for kept in (7, 1):
        lines = setting.held_out.read_text().splitlines(keepends=True)
        setting.held_out.write_text("".join(lines[:kept]))
        site = setting.open(ticks=True)
        site.consider(setting.looking)
        site.step(asks(), setting.vector)
        site.close()
        shutil.rmtree(setting.folder / "state")
    each = 0.1 + 1.25 * 11 * 1e-4  # all of the ten that are declared, and a tenth more
    assert waited == pytest.approx([each] * 2 * LOOKS.slots)


@pytest.mark.parametrize(
    "centres",
    [Centres(loss=5.5000001, accuracy=0.25), Centres(loss=5.5, accuracy=0.26)],
)
def test_other_centres_for_a_look_that_was_paid_are_refused(
    setting: HeldOut, centres: Centres
) -> None:
    """With a narrow range they would be other questions, under the same reservation."""
    site = setting.open()
    site.consider(setting.looking)
    site.step(asks(), setting.vector)
    with pytest.raises(SlotError, match="another request"):
        site.step(asks(centres=centres), setting.vector)
    site.close()


@pytest.mark.parametrize(
    "wrong",
    [asks(0), asks(1), asks(FIRST + 1), asks(FIRST + 6), request(FIRST), request(FIRST + 3)],
    ids=lambda r: f"{r.slot}-{'look' if r.centres else 'round'}",
)
def test_a_look_begins_where_the_plan_has_one(setting: HeldOut, wrong: StepRequest) -> None:
    site = setting.open()
    site.consider(setting.looking)
    with pytest.raises(SlotError, match="none begins at"):
        site.step(wrong, setting.vector)
    assert site.ledger.head.rows == 1
    site.close()


def test_disk_space_for_held_out_records_is_reserved_at_the_start(
    setting: HeldOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    reserve = module.reserve_disk_space

    def noted(settings: Any, folder: Path, units: int) -> Any:
        asked.append(units)
        return reserve(settings, folder, units)

    monkeypatch.setattr(module, "reserve_disk_space", noted)
    site = setting.open()
    assert asked[-2:] == [24, 10]
    monkeypatch.setattr(module, "reserve_disk_space", lambda *_: pytest.fail("looked at the disk"))
    site.consider(setting.looking)
    site.close()


@pytest.mark.parametrize(
    "change",
    [
        {"looks": 0},
        {"slots": 0},
        {"loss_range": 0.0},
        {"loss_range": 1e7},
        {"loss_range": float("nan")},
        {"accuracy_range": 1.1},
        {"accuracy_range": 0.0},
        {"looks": 4},  # no steps are left to train
    ],
)
def test_a_proposal_of_looks_is_bounded(setting: HeldOut, change: Any) -> None:
    body = setting.looking.model_dump(mode="json")
    body["evaluation"] |= change
    with pytest.raises(ProtocolError, match="Proposal"):
        Proposal.parse(json.dumps(body))


@pytest.mark.parametrize("field", ["loss", "accuracy"])
@pytest.mark.parametrize("value", ["NaN", "1e999", "-1", "1e7"])
def test_centres_are_finite_and_bounded(field: str, value: str) -> None:
    body = asks().model_dump_json()
    old = {"loss": '"loss":5.5', "accuracy": '"accuracy":0.25'}[field]
    assert old in body
    with pytest.raises(FedprivError, match="StepRequest"):
        StepRequest.parse(body.replace(old, f'"{field}":{value}'))


def test_the_rate_of_local_steps_falls_over_the_steps_that_train(
    setting: HeldOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks are steps of the plan, and none of training: with them nothing is trained otherwise."""
    seen: list[tuple[int, int]] = []

    def noted(optimizer: Any, number: int, steps: int) -> float:
        seen.append((number, steps))
        return 1e-3

    monkeypatch.setattr("fedpriv.private_training.local_steps.learning_rate", noted)
    local = LocalSteps(count=2, optimizer=OptimizerSection(), denoise=DenoiseSection())
    site = setting.open()
    site.consider(setting.looking.model_copy(update={"local": local}))
    site.step(request(2), setting.vector)
    reply, _ = site.step(asks(), setting.vector)
    assert seen == [(3, 4), (4, 4)]
    assert reply.kind == "held-out-sum"
    site.close()
