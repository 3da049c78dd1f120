"""The names of `import fedpriv` have types, although they are looked up when they are used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, assert_type

import pytest

import fedpriv
from fedpriv.config.job import JobConfig
from fedpriv.privacy.accounting.planning import Planned


def typed(run: fedpriv.PrivateStep, federation: Path) -> None:
    """Never called: strict mypy checks it, and would report a name without a type."""
    assert_type(fedpriv.load_job(federation), JobConfig)
    assert_type(fedpriv.simulate(federation).metrics, list[dict[str, Any]])
    assert_type(fedpriv.compare(federation).report, Path)
    assert_type(run.epsilon, float)
    fedpriv.simulate(federation, rounds=2)  # type: ignore[call-arg]


def test_a_name_has_the_type_that_the_stub_says() -> None:
    planned = fedpriv.plan(epsilon=4, delta=1e-5, sample_rate=0.05, steps=100)
    assert_type(planned, Planned)
    assert 0.99 * 4 < planned.epsilon <= 4
    refused: Callable[[], object] = lambda: fedpriv.plan(epsilon=-1)  # noqa: E731
    with pytest.raises(fedpriv.FedprivError, match="greater than 0"):
        refused()
