"""What a node is sent of the synthetic set: once all of it, and what changed after that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fedpriv_strategies.pe_sgd import PeSgdStrategy

from fedpriv.config.job import (
    DenoiseSection,
    LoraSection,
    ModelSection,
    OptimizerSection,
    PrivacySection,
)
from fedpriv.config.synthetic import ProjectionSection
from fedpriv.errors import RawValueError, RoundError
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.protocol import Proposal
from fedpriv.synthetic.records import SyntheticSet
from fedpriv.training.update import Aggregate, Update

SIZE = 6
PROPOSAL = Proposal(
    job_id="job",
    method="pe-sgd",
    steps=4,
    seed=0,
    fields=("text",),
    model=ModelSection(),
    lora=LoraSection(),
    privacy=PrivacySection(),
    base_digest="sha256:" + "0" * 64,
    vector_digest="sha256:" + "1" * 64,
    projection=ProjectionSection(size=2),
)


def made(*texts: str) -> Any:
    return public(SyntheticSet({"text": text} for text in texts))


class Evolving:
    """Stands where an `Evolution` would; no model."""

    def __init__(self, advance: Any = None) -> None:
        self.current, self.previous = made("a", "b"), None
        self.span = SimpleNamespace(values=lambda trained: 2)
        self.settings = ProjectionSection(size=2)
        self._advance = advance

    def advance(self, mean: Any, scale: float, number: int) -> Any:
        return self._advance()

    def lift(self, mean: Any, parameters: Any) -> Any:
        return public(np.zeros(SIZE, dtype=np.float32)), mean

    def become(self, *texts: str) -> None:
        self.previous, self.current = self.current, made(*texts)


def strategy(evolution: Any) -> PeSgdStrategy:
    start = public(np.zeros(SIZE, dtype=np.float32))
    update = Update(OptimizerSection(), DenoiseSection(), start, [(SIZE,)])
    return PeSgdStrategy(PROPOSAL, update, min_sites=1, timeout=60.0, sites=2, evolution=evolution)


def test_a_node_is_sent_the_set_once_and_what_changed_after_that() -> None:
    evolution = Evolving()
    found = strategy(evolution)
    first = found._change(7)
    assert first is not None and first.base is None and len(first.records) == 2
    found._answered(7, usable=True)
    evolution.become("a", "c")
    second = found._change(7)
    assert second is not None and second.records == {1: {"text": "c"}}
    assert second.apply(first.apply(None)).digest == evolution.current.value.digest
    found._answered(7, usable=True)
    same = found._change(7)
    assert same is not None and same.records == {} and same.base == same.digest


def test_a_node_that_missed_a_change_or_held_another_set_gets_all_of_it() -> None:
    evolution = Evolving()
    found = strategy(evolution)
    found._answered(7, usable=True)
    found._answered(8, usable=True)
    evolution.become("a", "c")
    found._answered(8, usable=False)  # it refused
    evolution.become("d", "c")
    for node in (7, 8):
        change = found._change(node)
        assert change is not None and change.base is None and len(change.records) == 2


def test_as_many_values_come_as_the_set_has_records() -> None:
    evolution = Evolving()
    found = strategy(evolution)
    assert found._values == 2
    evolution.span.values = lambda trained: trained
    assert found._values == SIZE


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (RoundError("The generator made 0 records."), "The generator made"),
        (OSError("secret"), "OSE"),
    ],
)
def test_a_generator_that_fails_leaves_the_set_and_the_round(
    error: Exception, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The model has moved already: to ask again would move it twice."""

    def fail() -> None:
        raise error

    found = strategy(Evolving(fail))
    mean = public(np.ones(2, dtype=np.float32))
    found._moved(found._lifted(Aggregate(mean, 0.0, 3.0)), 1)
    assert found.outcome.evolved is None
    assert f"stays as it is. {shown}" in caplog.text
    assert "secret" not in caplog.text


def test_a_raw_set_is_not_sent() -> None:
    evolution = Evolving()
    evolution.current = SyntheticSet([{"text": "a"}])
    with pytest.raises(RawValueError):
        strategy(evolution)._change(7)
