"""The site's page: what is on it, and that nothing of records is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpriv.process import Status, only_process
from fedpriv.secure_sum.roster import Roster, RosterEntry
from fedpriv_client.account import write_account
from fedpriv_client.job_words import cost, described
from fedpriv_client.page import _limits, page, write_site_page
from fedpriv_client.report import write_budget_report
from fedpriv_client.roster_entry import own_key
from fedpriv_client.settings import site_settings
from tests.client.client_setting import Setting, request
from tests.client.page_setting import PROPOSAL, Place

Make = Callable[..., Any]
SITE_KEYS = [Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex() for _ in range(4)]
MARKER = "Jane-Doe-1956"
TIMES = re.compile(r"<time.*?</time>|first on .*? UTC")


class _Text(HTMLParser):
    """What a reader hears of a page, and what it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self._style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._style = tag == "style"
        self.links += [v or "" for k, v in attrs if k in ("href", "src", "action", "formaction")]

    def handle_endtag(self, tag: str) -> None:
        self._style = False

    def handle_data(self, data: str) -> None:
        if not self._style:
            self.words.append(data)


def text_of(html: str) -> str:
    return " ".join(" ".join(_Text(html).words).split())


def test_a_job_is_told_in_plain_words(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.propose()
    [job] = place.jobs.waiting
    words = dict(described(job, 250))
    assert words["What it trains"].startswith("An adapter (LoRA) of rank 16 beside the base model")
    assert "30 rounds of 1 private step each: 30 steps in all" in words["How long"]
    assert "5%, about 12 of 250" in words["How long"]
    assert "by this site" in words["How"]
    assert "30 times, one noisy sum" in words["What leaves"]
    assert "coordinator at localhost:8443" in words["Who proposed it"]
    assert cost(place.jobs, job).startswith("ε = 2.996 by itself at δ = 1e-5. Of ε = 12 for life")
    text = text_of(page(place.file, place.config))
    assert all(sentence in text for sentence in words.values())
    assert job.name in text and job.digest in text


def test_both_claims_of_a_secure_sum_are_told(tmp_path: Path) -> None:
    place = Place(tmp_path, alone=60.0)
    place.propose(**place.shared())
    [job] = place.jobs.waiting
    assert job.epsilon_alone is not None and job.epsilon_alone > job.epsilon
    assert "if all other sites of a secure sum worked with the server" in cost(place.jobs, job)
    words = dict(described(job, 250))
    assert "of which 1 may work with the server" in words["How"]
    assert "masked share" in words["What leaves"]
    text = text_of(page(place.file, place.config))
    assert "With trust in most sites" in text and " Alone " in text
    assert "alone, it trusts nobody" in text
    assert "ε of one job, alone at most 60, if all other sites of a secure sum worked" in text


@pytest.mark.parametrize(("least", "own"), [(None, "0.173 × C"), (0.25, "0.25 × C")])
def test_what_a_site_adds_itself_in_a_secure_sum_is_told(
    tmp_path: Path, least: float | None, own: str
) -> None:
    """Of four sites one may collude, so that the noise of a step is divided by √3."""
    place = Place(tmp_path, alone=60.0)
    allow = place.file.allow.model_copy(update={"min_noise_alone": least})
    settings = site_settings(place.file, place.config)
    names = zip("abcd", SITE_KEYS, strict=True)
    roster = Roster.of(RosterEntry(name=name, public_key=key) for name, key in names)
    settings = replace(settings, limits=replace(settings.limits, roster=roster))
    shown = dict(_limits(place.file.model_copy(update={"allow": allow}), settings))
    assert shown["Noise of this site alone in a step of a secure sum"] == f"at least {own}"


def test_the_page_has_all_jobs_and_what_became_of_them(tmp_path: Path) -> None:
    place = Place(tmp_path).with_history()
    text = text_of(page(place.file, place.config))
    assert "1 job waits for your decision" in text
    for shown in ("nonsense-00000001 refused 0 of 30", "spring-77aa0000 finished 30 of 30"):
        assert shown in text
    assert "summer-12ab34cd begun 12 of 40" in text
    assert "a person, " in text
    assert "at most 3 Methods dp-lora" in text


def test_left_is_what_the_ledger_says(tmp_path: Path) -> None:
    place = Place(tmp_path).with_history()
    with place.ledger() as ledger:
        left = 12.0 - ledger.epsilon_allocated
        write_account(ledger, place.settings)
        at_work = text_of(page(place.file, place.config))  # while a process has the ledger
    alone = text_of(page(place.file, place.config))
    assert f" {int(left * 1000) / 1000:.3f} " in alone  # rounded down: it is left, not a cost
    assert f" {int(left * 1000) / 1000:.3f} " in at_work


def test_without_a_form_key_there_is_nothing_to_press(tmp_path: Path) -> None:
    place = Place(tmp_path).with_history()
    html = page(place.file, place.config)
    assert "form" not in _Text(html).tags
    assert "fedpriv-client approve JOB" in text_of(html)
    assert "button" in _Text(page(place.file, place.config, "key")).tags


def test_the_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    place = Place(tmp_path).with_history()
    seen = _Text(page(place.file, place.config, "key"))
    assert not {"script", "img", "link", "iframe"} & set(seen.tags)
    assert set(seen.links) == {"#main", "/approve", "/refuse"}


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    place = Place(tmp_path)
    out = tmp_path / "page.html"
    write_site_page(place.file, place.config, out)
    assert out.stat().st_mode & 0o777 == 0o600
    assert "No job has begun here yet." in text_of(out.read_text())


def test_a_full_disk_and_the_last_refusal_are_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    monkeypatch.setattr("fedpriv_client.page.full_disk", lambda folder: f"{folder}: full")
    Status(place.state, connection="connected", activity="stopped", refusal="max-r (LimitError)")
    with only_process(place.state):
        seen = text_of(page(place.file, place.config))
    assert f"{place.state}: full" in seen
    assert "It refused what it was asked last: max-r (LimitError)." in seen


def test_nothing_of_the_sites_own_models_or_faults_is_on_the_page(tmp_path: Path) -> None:
    """What never leaves is on no page that is made to be shown (law 16)."""
    place = Place(tmp_path).with_history()
    Path(place.settings.data).write_text(json.dumps({"note": MARKER}) + "\n")
    Status(place.state, connection="connected", activity="", problem=MARKER)
    (place.state / "evaluation.html").write_text(MARKER)
    for folder in ("personal", "alone", "adapters", "cache"):
        (place.state / folder / MARKER).mkdir(parents=True)
        (place.state / folder / MARKER / "fedpriv.json").write_text(json.dumps({"loss": MARKER}))
    with only_process(place.state):
        html = page(place.file, place.config, "key")
    assert "The client is running: connected" in text_of(html)
    assert MARKER not in html


@pytest.mark.slow
@pytest.mark.parametrize("changed", ["one less", "another text"])
def test_nothing_on_the_page_is_computed_from_records(
    tmp_path: Path, model_folder: Make, changed: str
) -> None:
    """Two populations that differ in one record have the same page, but for the time of day."""
    said = []
    for population in ("", changed):
        folder = tmp_path / (population or "as it is")
        folder.mkdir()
        said.append(_said(folder, model_folder("llama"), population))
    assert said[0] == said[1]
    assert "2 of 4" in said[0]


def _said(folder: Path, model: Path, changed: str) -> str:
    place = Place(folder, approve="automatic")
    setting = Setting(folder, model)
    rows = setting.data.read_text().splitlines(keepends=True)
    if changed == "one less":
        del rows[5]
    elif changed:
        rows[5] = json.dumps({"note": "another text, and a longer one " * 9}) + "\n"
    setting.data.write_text("".join(rows))
    terms, ledger = place.settings.terms, place.settings.ledger
    site = setting.site(terms, ledger=ledger, server="localhost:8443")
    site.consider(setting.proposal)
    for slot in range(2):
        site.step(request(slot), setting.vector)
    write_budget_report(site, "job-1")
    said = page(place.file, place.config, "key")
    site.close()
    return TIMES.sub("", said).replace(str(own_key(place.file)), "the site's key")


def test_a_job_from_before_proposals_were_kept_is_told_of(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.run(PROPOSAL, 2)
    [job] = place.jobs.jobs
    assert (job.state, job.proposal, job.paid) == ("begun", None, 2)
    assert "before proposals were kept" in text_of(page(place.file, place.config))
