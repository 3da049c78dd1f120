"""What a node is sent of the synthetic set: once all of it, and what changed after that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from fedpriv.errors import RawValueError, RoundError
from fedpriv.methods.pe_sgd.server_half import PeSgdServer
from fedpriv.methods.server_half import ServerContext
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.privacy.config import PrivacySection
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.protocol import LocalSteps, Proposal
from fedpriv.public_update.config import DenoiseSection, OptimizerSection
from fedpriv.public_update.update import Aggregate
from fedpriv.synthetic.config import SyntheticSection
from fedpriv.synthetic.evolution import Evolution
from fedpriv.synthetic.records import SyntheticSet

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
    settings={"size": 2},
    public_records=2,
)


def made(*texts: str) -> Any:
    return public(SyntheticSet({"text": text} for text in texts))


class Evolving(Evolution):
    """An `Evolution` whose records nobody reads, and that becomes what it is told to."""

    def __init__(self, advance: Any = None) -> None:
        self.current, self.previous = made("a", "b"), None
        self.settings = SyntheticSection(size=2, data="public.jsonl")
        self.examples = (None, None)
        self.scales: list[float] = []
        self._advance = advance

    def advance(self, mean: Any, scale: float, number: int) -> Any:
        self.scales.append(scale)
        return self._advance()

    def become(self, *texts: str) -> None:
        self.previous, self.current = self.current, made(*texts)


class Lifting(PeSgdServer):
    """Needs no model."""

    def lifted(self, worker: Any, parameters: Any, mean: Any) -> Any:
        return np.zeros(SIZE, dtype=np.float32)


@contextmanager
def nobody() -> Iterator[Any]:
    yield None


def server(evolution: Evolution, proposal: Proposal = PROPOSAL) -> PeSgdServer:
    start = public(np.zeros(SIZE, dtype=np.float32))
    return Lifting(ServerContext(proposal, SIZE, lambda: start, nobody, evolution))


def test_a_node_is_sent_the_set_once_and_what_changed_after_that() -> None:
    evolution = Evolving()
    found = server(evolution)
    first = found.change(None)
    assert first is not None and first.base is None and len(first.records) == 2
    held = evolution.current.value.digest
    evolution.become("a", "c")
    second = found.change(held)
    assert second is not None and second.records == {1: {"text": "c"}}
    assert second.apply(first.apply(None)).digest == evolution.current.value.digest
    same = found.change(second.digest)
    assert same is not None and same.records == {} and same.base == same.digest


def test_a_node_that_missed_a_change_or_held_another_set_gets_all_of_it() -> None:
    evolution = Evolving()
    found = server(evolution)
    held = evolution.current.value.digest
    evolution.become("a", "c")
    evolution.become("d", "c")
    for known in (held, None, "sha256:" + "9" * 64):
        change = found.change(known)
        assert change is not None and change.base is None and len(change.records) == 2


def test_as_many_values_come_as_the_set_has_records() -> None:
    found = server(Evolving())
    assert found.values == 2
    assert found.start(np.ones(SIZE, dtype=np.float32)).tolist() == [0, 0]


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

    found = server(Evolving(fail))
    mean = public(np.ones(2, dtype=np.float32))
    lifted = found.gradient(Aggregate(mean, 0.5, 3.0))
    assert lifted.gradient.value.shape == (SIZE,)
    assert (lifted.noise_variance, lifted.units) == (0.0, 3.0)
    assert found.advance(1) is None
    assert f"stays as it is. {shown}" in caplog.text
    assert "secret" not in caplog.text


def test_the_set_is_chosen_by_the_sum_that_the_mean_was_made_of() -> None:
    """Of local steps by SGD, the mean of their coefficients."""
    optimizer = OptimizerSection(name="sgd", lr=0.5)
    local = LocalSteps(count=2, optimizer=optimizer, denoise=DenoiseSection())
    mean = public(np.ones(2, dtype=np.float32))
    for proposal, units, scale in (
        (PROPOSAL, 30.0, 30.0),
        (PROPOSAL.model_copy(update={"local": local}), 60.0, 30.0),
    ):
        evolution = Evolving(lambda: None)
        found = server(evolution, proposal)
        found.gradient(Aggregate(mean, 0.0, units))
        found.advance(1)
        assert evolution.scales == [scale]


def test_a_raw_set_is_not_sent() -> None:
    evolution = Evolving()
    evolution.current = SyntheticSet([{"text": "a"}])  # type: ignore[assignment]
    with pytest.raises((RawValueError, AttributeError)):
        server(evolution).change(None)
