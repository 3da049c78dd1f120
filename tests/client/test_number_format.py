"""What a site's `auto` came to holds for the life of a job, whatever becomes of its file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.worker import ModelRecipe
from fedpriv_client import number_format as module
from fedpriv_client.disk_space import FORMATS
from fedpriv_client.number_format import MOST, settle
from fedpriv_client.site_job import recipe_of
from fedpriv_client.site_settings import SiteSettings
from tests.client.client_setting import Setting

Make = Callable[..., Any]


class Auto:
    """A site whose file says `auto`, and a trial that comes to what a test says.

    Attributes:
        found: what the next trials come to.
        exact: what each trial so far was told.
    """

    def __init__(self, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
        self.setting, self.found, self.exact = setting, "mixed", list[bool]()
        with_site = setting.site()
        with_site.close()
        plain = with_site.settings
        self.settings: SiteSettings = replace(
            plain,
            compute=ComputeSection(device="cpu", dtype="auto"),
            terms=replace(plain.terms, simulated=False),
        )
        monkeypatch.setattr(module, "settled_dtype", self._trial)

    def _trial(self, recipe: ModelRecipe, *_: Any, exact: bool) -> str:
        assert recipe.compute.dtype == "float32"
        self.exact.append(exact)
        return self.found

    def dtype(self, **changes: Any) -> str:
        """Of the recipe of a proposal, after it was settled."""
        proposal, settings = self.setting.change(**changes), self.settings
        recipe = recipe_of(proposal, settings)
        settled = settle(settings, proposal, recipe, self.setting.pool, lambda *_: None)
        return settled.compute.dtype

    @property
    def file(self) -> Path:
        return self.settings.state_dir / FORMATS


@pytest.fixture
def auto(tmp_path: Path, model_folder: Make, monkeypatch: pytest.MonkeyPatch) -> Auto:
    return Auto(Setting(tmp_path, model_folder("llama")), monkeypatch)


def test_it_is_tried_once_a_job_and_kept(auto: Auto) -> None:
    assert auto.dtype() == "mixed"
    auto.found = "float32"
    assert [auto.dtype(), auto.dtype(job_id="job-2"), auto.dtype()] == ["mixed", "float32", "mixed"]
    assert auto.exact == [False, False]
    # Own models and what a server hands over are computed as the job was, without a trial.
    assert recipe_of(auto.setting.proposal, auto.settings).compute.dtype == "mixed"


def test_strict_numerics_are_not_tried(auto: Auto) -> None:
    privacy = auto.setting.proposal.privacy.model_copy(update={"numerics": "strict"})
    auto.dtype(privacy=privacy)
    assert auto.exact == [True]


def test_a_simulated_site_tries_nothing(auto: Auto) -> None:
    terms = replace(auto.settings.terms, simulated=True)
    auto.settings = replace(auto.settings, terms=terms)
    assert auto.dtype() == "float32"
    assert auto.exact == []


def test_what_the_file_of_the_site_states_is_taken(auto: Auto) -> None:
    auto.settings = replace(auto.settings, compute=ComputeSection(device="cpu", dtype="bfloat16"))
    assert auto.dtype() == "bfloat16"
    assert auto.exact == [] and not auto.file.exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"job-1": "float64"}', '{"job-1": []}'])
def test_a_file_that_is_none_is_tried_again(auto: Auto, text: str) -> None:
    auto.file.write_text(text)
    assert recipe_of(auto.setting.proposal, auto.settings).compute.dtype == "float32"
    assert auto.dtype() == "mixed"
    assert auto.exact == [False]


def test_a_disk_that_fails_changes_no_answer(
    auto: Auto, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_beside", full)
    assert auto.dtype() == "mixed"
    assert f"{FORMATS}: not written: No space left" in caplog.text


def test_the_oldest_jobs_are_forgotten(auto: Auto) -> None:
    for number in range(MOST + 1):
        auto.dtype(job_id=f"job-{number}")
    assert len(auto.exact) == MOST + 1
    auto.dtype(job_id=f"job-{MOST}")
    assert len(auto.exact) == MOST + 1
    auto.dtype(job_id="job-0")
    assert len(auto.exact) == MOST + 2


def test_a_site_settles_it_before_it_offers(auto: Auto) -> None:
    site = auto.setting.site()
    site.settings = auto.settings
    try:
        site.consider(auto.setting.proposal)
        assert site._job is not None
        assert site._job.recipe.compute.dtype == "mixed"
        assert auto.file.exists()
    finally:
        site.close()
