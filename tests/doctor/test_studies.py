"""What studies found, by what a file asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.config.load import load_job
from fedpriv.doctor.studies import DENOISING, NORMALISE, PE_SGD, advice

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], []),
        (["denoise.where=server"], [DENOISING]),
        (["privacy.normalise=adapters"], [NORMALISE]),
        (["job.method=pe-sgd", "synthetic.data=s.jsonl"], [PE_SGD]),
    ],
)
def test_each_method_has_its_study(
    federation: Callable[..., Any], changes: list[str], expected: list[str]
) -> None:
    assert list(advice(load_job(federation(), changes))) == expected


@pytest.mark.parametrize("said", [DENOISING, PE_SGD, NORMALISE])
def test_the_page_is_there(said: str) -> None:
    page = said.partition("(")[2].partition(")")[0]
    assert (ROOT / page).is_file()
