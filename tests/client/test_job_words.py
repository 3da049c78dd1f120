"""Jobs of every kind in plain words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedpriv.config.looks import LooksSection
from fedpriv.models.config import ModelSection
from fedpriv.privacy.config import PrivacySection
from fedpriv.protocol import LocalSteps
from fedpriv.public_update.config import DenoiseSection, OptimizerSection
from fedpriv_client.job_words import METHODS, described
from tests.client.page_setting import PROPOSAL, Place


def words(place: Place) -> dict[str, str]:
    [job] = place.jobs.jobs
    return dict(described(job, 250))


LOCAL = LocalSteps(count=3, optimizer=OptimizerSection(), denoise=DenoiseSection())
KINDS: list[tuple[dict[str, Any], str, str]] = [
    ({"method": "pe-sgd"}, "How", "through those of a synthetic set"),
    ({"method": "of-their-own"}, "How", "Method of-their-own. Nothing counts for more"),
    ({"local": LOCAL}, "How long", "10 rounds of 3 private steps each: 30 steps in all"),
    ({"local": LOCAL}, "What leaves", "10 times, the move that the noisy steps of a round make"),
    ({"evaluation": LooksSection(looks=2)}, "How long", "2 looks of 4 at held-out records"),
    ({"evaluation": LooksSection(looks=2)}, "What leaves", "2 times, two noisy scores of a look"),
    (
        {"privacy": PrivacySection(normalise="adapters")},
        "How",
        "each adapter's part of a fixed length, are added up.",
    ),
    (
        {"model": ModelSection(task="classification", labels=("no", "yes"))},
        "What it trains",
        "to give a text one of the labels no, yes",
    ),
    (
        {"model": ModelSection(quantize="4bit")},
        "What it trains",
        "stays as it is, with its weights rounded to 4 bits.",
    ),
    (
        {
            "model": ModelSection(begin="somewhere", begin_as="merged"),
            "begin_digest": "sha256:" + "0" * 64,
        },
        "What it trains",
        "It begins at the adapter that this site allows, which is merged.",
    ),
    ({"fields": ("completion", "prompt")}, "From what", "(completion, prompt)"),
]


@pytest.mark.parametrize(("changes", "key", "text"), KINDS)
def test_a_job_of_any_kind_is_told(
    tmp_path: Path, changes: dict[str, Any], key: str, text: str
) -> None:
    place = Place(tmp_path)
    place.propose(**changes)
    assert text in words(place)[key]


def test_a_unit_that_is_no_record_is_named(tmp_path: Path) -> None:
    place = Place(tmp_path)
    privacy = {"unit": "patient", "max_records_per_unit": 4}
    place.propose(privacy=PROPOSAL.privacy.model_copy(update=privacy))
    assert words(place)["From what"].endswith(
        "at most 4 of one patient. All records of one patient together are protected."
    )


def test_every_method_of_ours_has_words() -> None:
    assert set(METHODS) == {"dp-lora", "pe-sgd"}
