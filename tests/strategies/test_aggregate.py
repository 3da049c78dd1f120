from __future__ import annotations

import io
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv import wire as wire_module
from fedpriv.errors import ProtocolError, RoundError
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.privatised import Privatised, TrustModel, public, received
from fedpriv.public_update.config import OptimizerSection
from fedpriv.public_update.update import Aggregate, Update
from fedpriv.wire import Blocks, encode
from fedpriv_strategies import aggregate
from fedpriv_strategies.aggregate import SiteMove, SiteSum, WeightedMean


def stored(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def arrived(vector: Any) -> Blocks:
    arrays = {name: stored(block) for name, block in encode(vector, "float32")}
    return Blocks(arrays.__getitem__, arrays.keys(), vector.size, "float32")


def site(vector: Any, noise: float, units: float, maker: Any = received) -> SiteSum:
    return SiteSum(maker(arrived(np.asarray(vector, np.float32))), noise, units, 1e4)


def weighted_mean(sums: Sequence[SiteSum]) -> Privatised[Vector]:
    mean = WeightedMean(sums[0].value.value.size)
    for item in sums:
        mean.add(item)
    assert mean.sites == len(sums)
    return mean.take()


@given(
    values=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=6),
    noise=st.floats(0.1, 50),
)
def test_equal_noise_is_the_pooled_sum_over_the_pooled_expectation(
    values: list[float], noise: float
) -> None:
    sums = [site([v, -v], noise, 3.0 + i) for i, v in enumerate(values)]
    expected = sum(np.float64(np.float32(v)) for v in values) / sum(
        3.0 + i for i in range(len(values))
    )
    assert weighted_mean(sums).value == pytest.approx([expected, -expected], rel=1e-5, abs=1e-6)


def test_weights_are_inverse_variances_and_their_own_sizes() -> None:
    one = site([6.0], 1.0, 10.0)
    two = site([3.0], 2.0, 20.0)
    assert weighted_mean([one, two]).value == pytest.approx((6 + 3 / 4) / (10 + 20 / 4))


def test_the_noise_in_the_mean_has_the_variance_that_is_stated() -> None:
    rng, size, mean = np.random.default_rng(0), 20_000, WeightedMean(20_000)
    for noise, units in ((1.0, 10.0), (3.0, 40.0), (0.5, 25.0)):
        mean.add(site(rng.normal(scale=1e4 * noise, size=size), noise, units))
    stated = mean.noise_variance
    found = float(np.square(mean.take().value, dtype=np.float64).mean())
    assert found == pytest.approx(stated, rel=5 * (2 / size) ** 0.5)
    mean.add(site(np.zeros(size), 2.0, 10.0))
    assert mean.noise_variance == pytest.approx((2e4 / 10) ** 2)  # of the new mean alone


def test_the_mean_rests_on_the_word_of_its_sites() -> None:
    sent, known = (site([1, 1], 1.0, 1.0, maker) for maker in (received, public))
    assert weighted_mean([sent, known]).trust_model == TrustModel.RECEIVED
    assert weighted_mean([known]).trust_model == TrustModel.PUBLIC


def test_it_is_unbiased_for_the_mean_and_best_among_linear_weights() -> None:
    """Two sites measure the same mean with different noise: no other weights do better."""
    sizes, sigmas = np.array([10.0, 20.0]), np.array([1.0, 3.0])

    def variance(a: np.ndarray) -> float:
        return float((a**2 * sigmas**2).sum() / (a @ sizes) ** 2)

    chosen = sizes / sigmas**2  # what minimises it has a factor of n: a = 1/σ² is for equal n
    assert variance(chosen) <= variance(1 / sigmas**2)
    equal = np.array([10.0, 10.0])
    best = 1 / sigmas**2
    for other in ([1.0, 1.0], [1.0, 0.0], [0.5, 0.5], [1.0, 0.2]):
        a = np.array(other)
        assert (best**2 * sigmas**2).sum() / (best @ equal) ** 2 <= (
            (a**2 * sigmas**2).sum() / (a @ equal) ** 2 + 1e-15
        )


def test_two_sites_give_what_the_pooled_records_give(make_worker: Callable[..., Any]) -> None:
    """Linear, hence exact: the sites' clipped sums add up to the pooled one."""
    from fedpriv.data.encode import Example

    worker = make_worker("llama", microbatch=3)
    rng = np.random.default_rng(0)
    units = [
        tuple(
            Example([1, *ids], [-100, *ids])
            for ids in (rng.integers(3, 250, size=rng.integers(3, 40)).tolist() for _ in range(k))
        )
        for k in (1, 2, 1, 3, 1, 0, 1)
    ]
    parameters = worker.vector.read() + rng.normal(size=worker.vector.size).astype(np.float32) / 20
    method = DpLora()
    parts = [
        method.clipped_sum(worker, chosen, parameters, 0.5).value.numpy()
        for chosen in (units[:3], units[3:])
    ]
    pooled = method.clipped_sum(worker, units, parameters, 0.5).value.numpy()
    assert np.abs(parts[0] + parts[1] - pooled).max() < 1e-12
    mean = weighted_mean([site(part, 1.3, 0.2 * n) for part, n in zip(parts, (3, 4), strict=True)])
    assert mean.value == pytest.approx(pooled / (0.2 * 7), abs=1e-6)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (wire_module, aggregate):
        monkeypatch.setattr(module, "BLOCK", 50)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("size", [1, 49, 50, 51, 99, 100, 101, 1000, 1001])
def test_blocks_add_up_to_what_whole_vectors_do(size: int) -> None:
    rng = np.random.default_rng(size)
    vectors = rng.normal(size=(3, size)).astype(np.float32)
    noises, units = [1.0, 1.7, 0.4], [3.0, 5.0, 7.0]
    weights = [1 / noise**2 for noise in noises]
    expected = sum(w * v.astype(np.float64) for w, v in zip(weights, vectors, strict=True))
    expected /= sum(w * n for w, n in zip(weights, units, strict=True))
    sums = [site(*item) for item in zip(vectors, noises, units, strict=True)]
    found = weighted_mean(sums).value
    assert found.dtype == np.float32
    assert np.array_equal(found, expected.astype(np.float32))
    other = weighted_mean(sums[::-1]).value
    assert np.allclose(other, found, rtol=1e-6, atol=1e-12)  # the order is that of arrival


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reply_that_is_wrong_in_its_last_block_adds_nothing(bad: float) -> None:
    good = np.linspace(-1, 1, 120, dtype=np.float32)
    alone = weighted_mean([site(good, 1.0, 10.0)]).value
    broken = {name: stored(block) for name, block in encode(good * 100, "float32")}
    broken["000002"] = stored(np.append(np.ones(19, np.float32), np.float32(bad)))
    mean = WeightedMean(120)
    mean.add(site(good, 1.0, 10.0))
    with pytest.raises(ProtocolError, match="'000002'"):
        blocks = received(Blocks(broken.get, broken.keys(), 120, "float32"))  # type: ignore[arg-type]
        mean.add(SiteSum(blocks, 1.0, 10.0, 1.0))
    assert mean.sites == 1
    assert np.array_equal(mean.take().value, alone)


def test_a_reply_of_another_length_adds_nothing() -> None:
    mean = WeightedMean(3)
    mean.add(site([1, 2, 3], 1.0, 1.0))
    for other in ([1, 2], [1, 2, 3, 4]):
        with pytest.raises(ProtocolError, match="Expected 3 values"):
            mean.add(site(other, 1.0, 1.0))
    assert np.array_equal(mean.take().value, np.float32([1, 2, 3]))


def test_a_reply_that_changes_while_it_is_read_spoils_the_round() -> None:
    """It was half added, so going on without it is no longer possible."""
    contents = [stored(np.ones(3, np.float32)), stored(np.full(3, math.nan, np.float32))]
    blocks = Blocks(lambda name: contents.pop(0), ["000000"], 3, "float32")
    with pytest.raises(RoundError, match="changed while it was read"):
        WeightedMean(3).add(SiteSum(received(blocks), 1.0, 1.0, 1.0))


def test_after_a_mean_was_taken_another_one_begins() -> None:
    mean = WeightedMean(2)
    mean.add(site([1, 2], 1.0, 1.0, public))
    taken = mean.take()
    with pytest.raises(RoundError, match="no sites"):
        mean.take()
    mean.add(site([5, 5], 1.0, 10.0))
    assert np.array_equal(mean.take().value, np.float32([0.5, 0.5]))
    assert np.array_equal(taken.value, np.float32([1, 2]))
    assert taken.trust_model == TrustModel.PUBLIC


MEMORY = """
import io, resource, sys
import numpy as np
from fedpriv.privacy.mechanism.privatised import received
from fedpriv.wire import BLOCK, Blocks
from fedpriv_strategies.aggregate import SiteMove, SiteSum, WeightedMean

def read(name):
    stream = io.BytesIO()
    np.save(stream, np.full(BLOCK, int(name) + 1, dtype=np.float32))
    return stream.getvalue()

names = [f"{index:06d}" for index in range(8)]
mean = WeightedMean(8 * BLOCK)
for _ in range(int(sys.argv[1])):
    mean.add(SiteSum(received(Blocks(read, names, 8 * BLOCK, "float32")), 1.0, 1.0, 1e9))
vector = mean.take().value
assert (vector.reshape(8, BLOCK) == np.arange(1, 9)[:, None]).all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def test_memory_does_not_grow_with_the_number_of_sites() -> None:
    def peak(sites: int) -> int:
        command = [sys.executable, "-c", MEMORY, str(sites)]
        return int(subprocess.check_output(command, env=os.environ, text=True))

    payload = 8 * wire_module.BLOCK * 4
    assert peak(8) - peak(2) < payload / 4


def test_a_site_can_not_say_more_than_its_mechanism_can() -> None:
    """Honest sums pass, though all records point one way; what is ten times as long does not."""
    generator = np.random.default_rng(0)
    size, units, noise, clip = 4096, 20.0, 0.8, 2.0
    mean = WeightedMean(size)
    for _ in range(200):
        count = generator.binomial(100, 0.2)
        direction = generator.standard_normal(size)
        honest = count * clip * direction / np.linalg.norm(direction)
        honest += noise * clip * generator.standard_normal(size)
        blocks = received(arrived(honest.astype(np.float32)))
        mean.add(SiteSum(blocks, noise, units, clip))
    for factor in (10.0, 1e30):
        blocks = received(arrived((honest * factor).astype(np.float32)))
        with pytest.raises(ProtocolError, match="larger than"):
            mean.add(SiteSum(blocks, noise, units, clip))
    assert mean.sites == 200
    assert np.isfinite(mean.take().value).all()


def move(vector: Any, noise: float, units: float, steps: int = 3, **settings: Any) -> SiteMove:
    value = received(arrived(np.asarray(vector, np.float32)))
    return SiteMove(value, noise, units, 1.0, 0.0, steps, OptimizerSection(**settings))


def test_moves_are_averaged_by_expected_units_over_the_variance_of_the_noise() -> None:
    moves = [move([0.01, 0.0], 1.0, 30.0, lr=1.0), move([0.0, 0.02], 2.0, 80.0, lr=1.0)]
    first, second = 30.0, 80.0 / 4
    wanted = np.array([0.01 * first, 0.02 * second]) / (first + second)
    assert weighted_mean(moves).value == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.95, 0.5), (0.0, 0.0)])
def test_an_honest_move_is_within_what_a_site_can_make(
    name: Any, momentum: float, decay: float, betas: tuple[float, float]
) -> None:
    """Clipped vectors all in one direction in every step, and noise: the longest there is."""
    size, units, noise, steps = 400, 20.0, 0.5, 5
    settings = OptimizerSection(
        name=name, lr=0.1, momentum=momentum, weight_decay=decay, betas=betas
    )
    start = np.full(size, 1.0, dtype=np.float32)
    update = Update(settings, public(start))
    generator = np.random.default_rng(0)
    for _ in range(steps):
        total = np.full(size, units / math.sqrt(size)) + noise * generator.standard_normal(size)
        gradient = received((total / units).astype(np.float32))
        update.move(Aggregate(gradient, (noise / units) ** 2, units), lr=0.1)
    move = start - update.vector.value
    norm = float(np.linalg.norm(start))
    made = SiteMove(received(arrived(move)), noise, units, 1.0, norm, steps, settings)
    longest = made.largest_norm(size)
    assert float(np.linalg.norm(move)) < longest
    weighted_mean([made])
    huge = np.full(size, 1.1 * longest / math.sqrt(size))
    with pytest.raises(ProtocolError, match="larger than"):
        weighted_mean([replace(made, value=received(arrived(huge.astype(np.float32))))])
