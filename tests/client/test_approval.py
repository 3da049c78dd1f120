"""A job that waits for a person: nothing is spent, and a yes is to one proposal alone."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from client_setting import TERMS, Setting, request

from fedpriv.errors import BudgetError, JobRefusedError, PausedError, ProtocolError
from fedpriv.protocol import Proposal, Refusal
from fedpriv_client import proposals
from fedpriv_client.app import client_app
from fedpriv_client.control import Orders
from fedpriv_client.proposals import KeptProposal, kept_proposals, proposals_folder
from fedpriv_client.site import Site
from fedpriv_simulation.inline import InlineGrid
from fedpriv_strategies.messages import QUERY, message

Make = Callable[..., Any]
SERVER = "fed.example.org:8443"
WAITS = {"refused": "paused", "kind": "PausedError"}


@pytest.fixture
def setting(tmp_path: Path, model_folder: Make) -> Setting:
    return Setting(tmp_path, model_folder("llama"))


def asking(setting: Setting, **others: Any) -> Site:
    return setting.site(server=SERVER, ask=True, **others)


def approve(setting: Setting, proposal: Proposal) -> None:
    Orders.change(
        setting.folder / "state",
        lambda stands: stands.approving(proposal.job_id, proposal.digest(), "a test"),
    )


def answer(site: Site, proposal: Proposal) -> dict[str, Any]:
    """What leaves, as a server gets it."""

    def permit(job: str) -> None:
        Orders.read(site.settings.state_dir).check(job)

    with InlineGrid({2: client_app(site, permit)}, 1) as grid:
        [reply] = grid.send_and_receive([message(proposal, 2, QUERY, "0")], timeout=60)
    found: dict[str, Any] = json.loads(reply.content["fedpriv"]["body"])
    return found


def test_nothing_happens_before_a_person_has_said_yes(setting: Setting) -> None:
    site = asking(setting)
    for _ in range(2):
        with pytest.raises(PausedError, match="fedpriv-client approve job-1"):
            site.consider(setting.proposal)
    with pytest.raises(ProtocolError, match="made no offer"):
        site.step(request(), setting.vector)
    assert site.ledger.head.rows == 1
    assert site.ledger.epsilon_allocated == site.ledger.epsilon_spent == 0
    approve(setting, setting.proposal)
    assert site.consider(setting.proposal).epsilon > 0
    site.step(request(), setting.vector)
    site.close()


def test_a_yes_is_to_that_very_proposal(setting: Setting) -> None:
    """Whatever is changed in it, under the same id, somebody has to be asked again."""
    site = asking(setting)
    approve(setting, setting.proposal)
    privacy = setting.proposal.privacy.model_copy(update={"epsilon": 5.5})
    for changed in (setting.change(seed=1), setting.change(privacy=privacy)):
        with pytest.raises(PausedError, match="waits for somebody"):
            site.consider(changed)
    assert site.consider(setting.proposal).epsilon > 0
    site.close()


def test_a_yes_survives_a_restart(setting: Setting) -> None:
    site = asking(setting)
    approve(setting, setting.proposal)
    site.close()
    site = asking(setting)
    assert site.consider(setting.proposal).epsilon > 0
    site.close()


def test_a_refused_job_stays_refused(setting: Setting) -> None:
    state = setting.folder / "state"
    site = asking(setting)
    approve(setting, setting.proposal)
    Orders.change(state, lambda stands: stands.refusing("job-1"))
    refused = {"refused": "refused", "kind": "JobRefusedError"}
    assert answer(site, setting.proposal) == answer(site, setting.change(seed=1)) == refused
    with pytest.raises(JobRefusedError, match="--undo"):
        approve(setting, setting.change(seed=1))
    Orders.change(state, lambda stands: stands.not_refusing("job-1"))
    assert "epsilon" not in answer(site, setting.proposal)  # the yes of before is forgotten
    approve(setting, setting.proposal)
    assert "epsilon" in answer(site, setting.proposal)
    site.close()


def test_what_goes_beyond_the_limits_is_refused_and_nobody_is_asked(setting: Setting) -> None:
    site = asking(setting, max_steps=3)
    with pytest.raises(BudgetError):
        site.consider(setting.proposal)
    assert list(kept_proposals(setting.folder / "state")) == []
    site.close()


@pytest.mark.parametrize("fault", ["", "one record less", "nothing can be kept", "no model"])
def test_what_a_waiting_site_answers_depends_on_nothing(
    setting: Setting, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on records, nor on the disk that they take, nor on memory (law 18)."""
    if fault == "one record less":
        setting.data.write_text("".join(setting.data.open().readlines()[1:]))
    site = asking(setting)
    if fault == "nothing can be kept":
        proposals_folder(setting.folder / "state").write_text("no folder")
    if fault == "no model":
        monkeypatch.setattr(Site, "_prepare", lambda *_: pytest.fail("the model was loaded"))
    assert answer(site, setting.proposal) == WAITS
    assert Refusal.of(PausedError("This site is paused.")).model_dump() == WAITS
    site.close()


def test_a_proposal_is_kept_for_people_whether_or_not_they_are_asked(setting: Setting) -> None:
    site = setting.site(server=SERVER)
    offer = site.consider(setting.proposal)
    [kept] = kept_proposals(setting.folder / "state")
    assert kept.proposal == setting.proposal
    assert kept.digest == setting.proposal.digest()
    assert (kept.server, kept.allocated) == (SERVER, offer.epsilon)
    assert kept.plan.noise_multiplier == offer.noise_multiplier
    path = proposals_folder(setting.folder / "state") / f"{kept.digest[7:]}.json"
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.stat().st_mtime_ns
    site.consider(setting.proposal)
    assert path.stat().st_mtime_ns == before
    site.close()


def test_two_budgets_are_kept_for_people_to_see(setting: Setting) -> None:
    terms = dataclasses.replace(TERMS, budget_alone=9.0)
    site = setting.site(terms, server=SERVER)
    site.consider(setting.proposal)
    [kept] = kept_proposals(setting.folder / "state")
    assert kept.allocated_alone == kept.allocated  # a job without a secure sum
    site.close()


def test_whoever_sends_many_proposals_fills_no_disk(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What somebody has decided on stays, however old."""
    monkeypatch.setattr(proposals, "MOST", 3)
    site = asking(setting)
    approve(setting, setting.proposal)
    site.consider(setting.proposal)
    for number in range(8):
        with pytest.raises(PausedError):
            site.consider(setting.change(seed=10 + number))
    kept = [one.proposal.seed for one in kept_proposals(setting.folder / "state")]
    assert sorted(kept) == [0, 15, 16, 17]
    site.close()


@pytest.mark.parametrize("text", ["", "{}", '{"format": 1}'])
def test_a_kept_proposal_that_was_changed_is_left_out(setting: Setting, text: str) -> None:
    site = asking(setting)
    with pytest.raises(PausedError):
        site.consider(setting.proposal)
    [path] = proposals_folder(setting.folder / "state").iterdir()
    whole = path.read_text()
    path.write_text(text)
    assert list(kept_proposals(setting.folder / "state")) == []
    path.write_text(whole.replace('"seed": 0', '"seed": 7'))
    with pytest.raises(ValueError, match="another digest"):
        KeptProposal.read(path)
    with pytest.raises(PausedError):
        site.consider(setting.proposal)
    assert KeptProposal.read(path).proposal == setting.proposal
    site.close()
