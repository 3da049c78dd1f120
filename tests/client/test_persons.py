"""Named persons decide: who may, how many have to, and what a ledger keeps of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpriv.errors import ConfigError, JobRefusedError, PausedError
from fedpriv.privacy.ledger.ledger import read_history
from fedpriv_client.decide import list_jobs
from fedpriv_client.orders import Orders
from fedpriv_client.persons import approve, persons, said_of
from fedpriv_client.roster_entry import own_key
from fedpriv_client.site import Site
from fedpriv_client.site_settings import SiteSettings
from tests.client.client_setting import Setting, request
from tests.client.page_setting import Place
from tests.client.test_approval import asking

Make = Callable[..., Any]
ADA, BEA = "Ada Meyer", "Bea Ito"


@pytest.fixture
def setting(tmp_path: Path, model_folder: Make) -> Setting:
    return Setting(tmp_path, model_folder("llama"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.propose()
    return made


def two(settings: SiteSettings) -> SiteSettings:
    return replace(settings, approvers=(ADA, BEA), approvals=2)


def say(settings: SiteSettings, place: Place, by: str, reason: str = "ethics", **more: Any) -> str:
    [job] = place.jobs.jobs
    text = more.pop("text", "")
    return approve(settings, job, said_of(by, reason, text, agreed=False, **more))


def test_two_persons_have_to_say_yes(place: Place) -> None:
    settings = two(place.settings)
    assert "another person's approval" in say(settings, place, ADA)
    say(settings, place, ADA, "usual")  # who says it twice is one person
    orders = Orders.read(place.state)
    with pytest.raises(PausedError):
        orders.check_approved(place.asked(), settings.approvers, 2)
    assert "begins" in say(settings, place, BEA, text="vote 7/26")
    orders = Orders.read(place.state)
    orders.check_approved(place.asked(), settings.approvers, 2)
    [job] = place.jobs.jobs
    assert [text.partition(",")[0] for text in persons(job)] == [ADA, BEA]
    assert "(usual)" in persons(job)[0] and "(ethics: vote 7/26)" in persons(job)[1]


def test_who_is_not_on_the_list_approves_nothing(place: Place) -> None:
    settings = two(place.settings)
    for by, reason, words in (
        ("Carl", "ethics", "may not approve a job here"),
        (ADA, "", "--reason: is missing"),
        (ADA, "because", "reason: input should be 'agreement'"),
    ):
        with pytest.raises(ConfigError, match=words):
            say(settings, place, by, reason)
    assert Orders.read(place.state) == Orders()


def test_a_yes_of_who_left_the_list_counts_no_more(place: Place) -> None:
    settings = two(place.settings)
    say(settings, place, ADA)
    say(settings, place, BEA)
    orders = Orders.read(place.state)
    with pytest.raises(PausedError):
        orders.check_approved(place.asked(), (ADA, "Carl"), 2)


def test_a_yes_is_to_the_price_that_was_shown(place: Place) -> None:
    """The site's own file decides it, too. At another price somebody is asked anew."""
    settings = replace(place.settings, approvers=(ADA,))
    say(settings, place, ADA)
    orders, asked = Orders.read(place.state), place.asked()
    plan = asked.plan
    orders.check_approved(asked, settings.approvers)
    late = replace(asked, plan=replace(plan, ticks=not plan.ticks))
    orders.check_approved(late, settings.approvers)
    dear = replace(asked, plan=replace(plan, noise_multiplier=plan.noise_multiplier / 2))
    with pytest.raises(PausedError):
        orders.check_approved(dear, settings.approvers)


def test_a_yes_that_states_no_price_does_not_count(place: Place) -> None:
    """As of an older version."""
    say(place.settings, place, ADA)
    orders, asked = Orders.read(place.state), place.asked()
    orders.check_approved(asked)
    without = {k: yes.model_copy(update={"plan": None}) for k, yes in orders.approved.items()}
    with pytest.raises(PausedError):
        orders.model_copy(update={"approved": without}).check_approved(asked)


def test_a_yes_is_to_one_ledger_at_its_delta(place: Place) -> None:
    """Other patients would pay from another ledger, and at a smaller δ a secure sum costs more."""
    settings = replace(place.settings, approvers=(ADA,))
    say(settings, place, ADA)
    orders, asked = Orders.read(place.state), place.asked()
    orders.check_approved(asked, settings.approvers)
    for change in ({"dataset_id": "other"}, {"delta": asked.delta / 2}):
        with pytest.raises(PausedError):
            orders.check_approved(replace(asked, **change), settings.approvers)


def test_who_left_the_list_takes_no_other_yes_away(place: Place) -> None:
    settings = two(place.settings)
    say(settings, place, BEA)
    say(settings, place, ADA)
    say(replace(settings, approvers=(BEA, "Carl")), place, "Carl")
    Orders.read(place.state).check_approved(place.asked(), (BEA, "Carl"), 2)


def test_a_text_is_shown_as_it_was_typed(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    settings = replace(place.settings, approvers=(ADA,))
    say(settings, place, ADA, text="see [/docs/votes]")
    list_jobs(place.file, place.config, as_json=False)
    said = capsys.readouterr().out
    assert "[/docs/v" in said.replace("\n", "")
    assert f"Key that signs the reports: {own_key(place.file)}" in said


def test_a_no_is_kept_with_its_reason_until_it_is_taken_back(place: Place) -> None:
    said = said_of(BEA, "recipients", "a company", agreed=False)
    Orders.change(place.state, lambda stands: stands.refusing("notes", said))
    [job] = place.jobs.jobs
    assert job.state == "refused"
    assert f"{BEA}, " in persons(job)[0] and "(recipients: a company)" in persons(job)[0]
    with pytest.raises(JobRefusedError):
        say(place.settings, place, ADA)
    stands = Orders.change(place.state, lambda stands: stands.not_refusing("notes"))
    assert stands == Orders()


def begun(setting: Setting, **agreed: bool) -> Site:
    """A site of which two persons approved a job, and that began it."""
    site = asking(setting)
    site.settings = two(site.settings)
    proposal = setting.proposal
    for name in (ADA, BEA):
        said = said_of(name, "ethics", "vote", agreed=agreed.get(name[:3].lower(), False))
        Orders.change(
            setting.folder / "state",
            lambda stands, said=said: stands.approving(setting.asked(), said),
        )
    site.consider(proposal)
    site.step(request(), setting.vector)
    return site


def test_the_ledger_keeps_a_keyed_digest_of_each_person(setting: Setting) -> None:
    site = begun(setting, bea=True)
    rows = site.ledger.rows()
    assert [row.kind for row in rows[:4]] == ["terms", "plan", "approved", "reserve"]
    ada, bea = rows[2].body["approvals"]
    assert set(ada) == {"person", "reason"} and ada["reason"] == "ethics"
    assert (bea["name"], bea["text"]) == (BEA, "vote")  # who agreed
    assert len({ada["person"], bea["person"]}) == 2
    assert ADA not in str([row.body for row in rows])
    history = read_history(rows, Path("a test"))
    assert history.approvals["job-1"] == [ada, bea]
    site.close()


@pytest.mark.parametrize(("by", "text", "said"), [
    ("a" * 201, "", "by: string should have at most 200"),
    ("a", "b" * 1001, "text: string should have at most 1000"),
])  # fmt: skip
def test_what_is_too_long_is_named(by: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        said_of(by, "ethics", text, agreed=False)


def test_a_person_is_not_known_from_one_job_to_the_next(setting: Setting) -> None:
    """Nor by whoever guesses names: the digest is under the site's key."""
    site = begun(setting)
    yes = Orders.read(setting.folder / "state").approved[setting.proposal.digest()]
    key = b"k" * 32
    assert yes.as_row(key, "sha256:a")["person"] != yes.as_row(key, "sha256:b")["person"]
    assert yes.as_row(key, "sha256:a")["person"] != yes.as_row(b"o" * 32, "sha256:a")["person"]
    site.close()


def test_where_no_persons_are_named_ledgers_stay_as_they_were(setting: Setting) -> None:
    site = asking(setting)
    Orders.change(
        setting.folder / "state", lambda stands: stands.approving(setting.asked(), "a person")
    )
    site.consider(setting.proposal)
    site.step(request(), setting.vector)
    assert "approved" not in {row.kind for row in site.ledger.rows()}
    site.close()


@pytest.mark.parametrize(
    "approvals",
    [
        [],
        [{"person": "a"}],
        [{"person": "a", "reason": "ethics", "more": "x"}],
        [{"person": "a", "reason": 3}],
    ],
)
def test_a_row_of_another_form_does_not_follow(setting: Setting, approvals: Any) -> None:
    from fedpriv.errors import LedgerCorruptError
    from fedpriv.privacy.ledger.chain import Row

    site = begun(setting)
    rows = site.ledger.rows()[:2]
    rows.append(Row(3, "approved", {"job": "job-1", "approvals": approvals}, ""))
    with pytest.raises(LedgerCorruptError, match="does not follow"):
        read_history(rows, Path("a test"))
    site.close()
