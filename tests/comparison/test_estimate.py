from collections.abc import Sequence
from typing import Any

import pytest

from fedpriv.config.load import load_job
from fedpriv_comparison import estimate


def test_what_is_done_once_is_not_taken_for_the_cost_of_each_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, met = [0.0], set[int]()

    def work(part: Sequence[int]) -> None:  # 10 ms a record, and 5 s when one is met first
        clock[0] += sum(0.01 if item in met else 5.0 for item in part)
        met.update(part)

    monkeypatch.setattr(estimate.time, "monotonic", lambda: clock[0])
    assert estimate._each(work, range(1000)) == pytest.approx(0.01)
    assert 200 <= len(met) <= 1000  # as many as take two seconds


@pytest.mark.parametrize(
    ("settings", "kind", "expected"),
    [
        (["personal.validation=0", "personal.rates=[3e-3]", "personal.epochs=7"], "personal", 7),
        (["personal.validation=0", "personal.rates=[3e-3]", "personal.epochs_alone=9"], "alone", 9),
        ([], "alone", 3 * estimate.STOPPED + estimate.STOPPED),
        (["personal.rates=[1e-3, 3e-3]", "personal.epochs=3"], "personal", 3 * 6 + 3),
    ],
)
def test_own_training_takes_the_passes_that_its_settings_say(
    settings: list[str], kind: Any, expected: int
) -> None:
    config = load_job(None, settings)
    assert estimate._passes(config, kind, 64) == expected
