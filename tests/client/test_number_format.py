"""A site whose file says `auto` tries the number format of a job before it offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.worker import ModelRecipe
from fedpriv_client import number_format as module
from fedpriv_client.number_format import settle
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
        return settle(proposal, recipe, self.setting.pool, lambda *_: None).compute.dtype


@pytest.fixture
def auto(tmp_path: Path, model_folder: Make, monkeypatch: pytest.MonkeyPatch) -> Auto:
    return Auto(Setting(tmp_path, model_folder("llama")), monkeypatch)


def test_a_job_is_computed_as_a_trial_comes_out(auto: Auto) -> None:
    assert auto.dtype() == "mixed"
    assert auto.exact == [False]
    # Own models and what a server hands over are computed in float32, without a trial.
    assert recipe_of(auto.setting.proposal, auto.settings).compute.dtype == "float32"


def test_strict_numerics_are_not_tried(auto: Auto) -> None:
    privacy = auto.setting.proposal.privacy.model_copy(update={"numerics": "strict"})
    auto.dtype(privacy=privacy)
    assert auto.exact == [True]


def test_a_site_settles_it_before_it_offers(auto: Auto) -> None:
    site = auto.setting.site()
    site.settings = auto.settings
    try:
        site.consider(auto.setting.proposal)
        assert site._job is not None
        assert site._job.recipe.compute.dtype == "mixed"
    finally:
        site.close()
