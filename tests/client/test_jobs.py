"""The jobs of a site: what became of each, under which name it is found, what it costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting.accountant import epsilon_upper
from fedpriv.privacy.ledger import administration
from fedpriv_client.account import write_account
from fedpriv_client.orders import Orders
from fedpriv_client.site_settings import adapters_folder
from tests.client.page_setting import PROPOSAL, Place
from tests.server.test_signed import OVER


def states(place: Place) -> dict[str, str]:
    return {job.name.rpartition("-")[0]: job.state for job in place.jobs.jobs}


def test_a_job_is_what_its_proposal_its_orders_and_the_ledger_say(tmp_path: Path) -> None:
    place = Place(tmp_path).with_history()
    expected = {
        "notes": "waits for approval",
        "nonsense": "refused",
        "summer": "begun",
        "spring": "finished",
    }
    assert states(place) == expected
    assert [job.name for job in place.jobs.waiting] == [PROPOSAL.job_id]
    place.approve(PROPOSAL)
    assert states(place) == expected | {"notes": "not begun"}
    Orders.change(place.state, lambda stands: stands.refusing("summer"))
    assert states(place)["summer"] == "refused"
    with place.ledger() as ledger:
        administration.close_job(ledger, "summer-12ab34cd")
    assert states(place)["summer"] == "closed"


def test_a_job_whose_adapter_came_can_still_spend_what_is_left_of_its_plan(
    tmp_path: Path,
) -> None:
    """A server may send any vector as the adapter, and ask for further steps."""
    place = Place(tmp_path).with_history()
    (adapters_folder(place.state) / "summer-12ab34cd").mkdir(parents=True)
    assert states(place)["summer"] == "handed over"
    with place.ledger() as ledger:
        administration.close_job(ledger, "summer-12ab34cd")
    assert states(place)["summer"] == "closed"


def test_a_job_that_a_person_refused_is_refused_though_an_adapter_came(tmp_path: Path) -> None:
    place = Place(tmp_path).with_history()
    (adapters_folder(place.state) / "summer-12ab34cd").mkdir(parents=True)
    Orders.change(place.state, lambda stands: stands.refusing("summer"))
    assert states(place)["summer"] == "refused"


def test_what_has_expired_waits_for_nobody_but_goes_on_where_it_began(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.propose(OVER)
    place.run(place.propose(OVER, job_id="summer-12ab34cd"), 3)
    assert states(place) == {"notes": "expired", "summer": "waits for approval"}
    place.approve(OVER.model_copy(update={"job_id": "summer-12ab34cd"}))
    assert states(place)["summer"] == "begun"


def test_a_job_that_began_before_people_were_asked_waits_for_them(tmp_path: Path) -> None:
    """It would otherwise go on for nobody, with no way to say yes."""
    place = Place(tmp_path)
    place.run(place.propose(), 2)
    [job] = place.jobs.waiting
    assert (job.state, job.paid) == ("waits for approval", 2)
    place.approve(PROPOSAL)
    assert states(place) == {"notes": "begun"}


def test_where_nobody_is_asked_nothing_waits(tmp_path: Path) -> None:
    place = Place(tmp_path, approve="automatic")
    place.propose()
    assert states(place) == {"notes": "not begun"}
    assert place.jobs.waiting == ()


def test_they_are_the_same_while_a_process_has_the_ledger(tmp_path: Path) -> None:
    place = Place(tmp_path).with_history()
    before = place.jobs
    with place.ledger() as ledger:
        with pytest.raises(ConfigError, match="The client writes it when it starts"):
            _ = place.jobs
        write_account(ledger, place.settings)
        assert place.jobs == before


def test_the_price_is_the_accountants_under_both_claims(tmp_path: Path) -> None:
    place = Place(tmp_path, alone=60.0)
    place.propose(**place.shared())
    [job] = place.jobs.jobs
    delta = place.settings.terms.delta
    assert job.epsilon == epsilon_upper([job.plan.event()], delta)
    assert job.epsilon_alone == epsilon_upper([job.plan.alone.event()], delta)
    assert job.proposal is not None
    assert job.proposal.allocated_alone is not None
    assert job.proposal.allocated_alone > job.proposal.allocated > 0


def test_a_job_is_found_by_its_id_or_its_name(tmp_path: Path) -> None:
    place = Place(tmp_path).with_history()
    assert place.jobs.find("notes").name == place.jobs.find(PROPOSAL.job_id).name
    assert place.jobs.find("spring").state == "finished"
    with pytest.raises(ConfigError, match=r"got 'other'.*notes-1a2b3c4d, nonsense-00000001"):
        place.jobs.find("other")


def test_of_several_proposals_the_one_is_named_by_its_digest(tmp_path: Path) -> None:
    place = Place(tmp_path)
    first, second = place.propose(), place.propose(seed=1)
    with pytest.raises(ConfigError, match="matches several proposals") as refused:
        place.jobs.find("notes")
    assert first.digest() in str(refused.value) and second.digest() in str(refused.value)
    assert place.jobs.find("notes", second.digest()).digest == second.digest()
    place.approve(first)
    assert place.jobs.find("notes").digest == second.digest()  # the one that waits
    with pytest.raises(ConfigError, match="JOB: was not proposed"):
        place.jobs.find("notes", "sha256:" + "0" * 64)
