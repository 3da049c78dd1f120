"""The noise of a federation, from its file alone."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError
from fedpriv_forecasting.federation import Federation, changes, federation_of
from fedpriv_forecasting.table import Point
from tests.forecasting.federation_files import federation_file
from tests.forecasting.made_up_runs import point

SIZES = st.lists(st.integers(10, 10_000), min_size=2, max_size=20)
EPSILONS = st.sampled_from([1.0, 2.0, 4.0, 8.0])  # each costs a calibration


def of(sizes: list[int], epsilon: float = 4.0, *, secure_sum: bool = False) -> Federation:
    return Federation(
        sizes=tuple(sizes),
        epsilons=(epsilon,) * len(sizes),
        delta=1e-5,
        sample_rate=0.2,
        rounds=30,
        slots=30,
        secure_sum=secure_sum,
        stated_colluding=1 if secure_sum else None,
    )


@given(sizes=SIZES, more=SIZES, epsilon=EPSILONS, secure_sum=st.booleans())
@settings(deadline=None)
def test_more_sites_never_make_more_noise(
    sizes: list[int], more: list[int], epsilon: float, secure_sum: bool
) -> None:
    fewer, many = (of(s, epsilon, secure_sum=secure_sum) for s in (sizes, sizes + more))
    if secure_sum or len(set(sizes + more)) == 1:
        assert many.noise <= fewer.noise * (1 + 1e-12)
    doubled = replace(fewer, sizes=fewer.sizes * 2, epsilons=fewer.epsilons * 2)
    assert doubled.noise <= fewer.noise / math.sqrt(2) * (1 + 1e-12)


@given(sizes=SIZES, epsilon=EPSILONS)
@settings(deadline=None)
def test_a_secure_sum_a_larger_epsilon_and_more_records_make_less_noise(
    sizes: list[int], epsilon: float
) -> None:
    local = of(sizes, epsilon)
    assert of(sizes, epsilon, secure_sum=True).noise <= local.noise * (1 + 1e-12)
    assert of(sizes, 2 * epsilon).noise < local.noise
    assert of([2 * size for size in sizes], epsilon).noise == pytest.approx(local.noise / 2)


@given(epsilons=st.lists(EPSILONS, min_size=2, max_size=6), sizes=SIZES)
@settings(deadline=None)
def test_sites_of_other_epsilon_are_weighed_as_the_server_does(
    epsilons: list[float], sizes: list[int]
) -> None:
    """By the variance of a sum of independent noise, divided by what the server divides by."""
    found = replace(of(sizes[:2] * 3), sizes=tuple((sizes * 3)[: len(epsilons)]))
    found = replace(found, epsilons=tuple(epsilons))
    sigmas = found.noise_multipliers
    weights = [sigma**-2 for sigma in sigmas]
    deviation = math.sqrt(sum((a * s) ** 2 for a, s in zip(weights, sigmas, strict=True)))
    divisor = sum(a * 0.2 * n for a, n in zip(weights, found.sizes, strict=True))
    assert found.noise == pytest.approx(deviation / divisor / math.sqrt(30))


@pytest.mark.parametrize(("trust", "colluding"), [("local", None), ("secure-sum", 3)])
def test_a_measured_run_has_the_noise_of_the_same_federation(
    trust: str, colluding: int | None
) -> None:
    federation = replace(of([64] * 8, secure_sum=trust == "secure-sum"), stated_colluding=colluding)
    sigma = federation.noise_multipliers[0]
    run = point(8, 64, sigma, trust=trust, max_colluding=colluding, own={"alone": [0.0] * 4})
    shares = {"local": 1, "secure-sum": 5}[trust]
    by_hand = sigma * math.sqrt(8 / shares) / (0.2 * 8 * 64) / math.sqrt(30)
    assert federation.noise == pytest.approx(by_hand)
    assert Point.model_validate(run).noise == pytest.approx(by_hand)


def test_facts_are_those_of_the_file(tmp_path: Path) -> None:
    file = federation_file(
        tmp_path / "f.toml",
        (100, 400, 50),
        privacy='trust = "secure-sum"\nspare_slots = 5\nmax_colluding = 2',
        site="held_out = 0.2",
    )
    found = federation_of(load_job(file))
    assert found.sizes == (80, 320, 40)
    assert (found.rounds, found.slots, found.max_colluding) == (30, 35, 2)
    assert found.records == pytest.approx((80 * 320 * 40) ** (1 / 3))
    capped = federation_of(load_job(federation_file(tmp_path / "g.toml", site="epsilon = 2")))
    assert set(capped.epsilons) == {2.0} and capped.max_colluding is None


def test_sizes_that_a_file_over_the_network_has_not_are_given(tmp_path: Path) -> None:
    job = load_job(federation_file(tmp_path / "f.toml", (None, None, None)))
    assert federation_of(job, ["site-1=50", "70"]).sizes == (70, 50, 70)
    with pytest.raises(ConfigError, match=r"sites\.site-0\.size: is not known"):
        federation_of(job, ["site-1=50"])


def test_a_size_that_the_file_has_is_not_passed_over(tmp_path: Path) -> None:
    job = load_job(federation_file(tmp_path / "f.toml", (64, 64)))
    for size in ("site-1=500", "500"):
        with pytest.raises(ConfigError, match=r"--size: the file has a size") as refused:
            federation_of(job, [size])
        assert "--set sites.site-" in str(refused.value)
    changed = load_job(federation_file(tmp_path / "f.toml", (64, 64)), ["sites.site-1.size=500"])
    assert federation_of(changed).sizes == (64, 500)


def test_one_site_alone_is_no_federation(tmp_path: Path) -> None:
    job = load_job(federation_file(tmp_path / "f.toml", (64,)))
    with pytest.raises(ConfigError, match="has a single site"):
        federation_of(job)


@pytest.mark.parametrize("size", ["site-9=50", "site-1=", "0", "-5", "many", "1e3", "", "²"])
def test_a_size_that_is_none_is_refused(size: str, tmp_path: Path) -> None:
    job = load_job(federation_file(tmp_path / "f.toml", (None, None)))
    with pytest.raises(ConfigError, match="--size: expected a number of units"):
        federation_of(job, ["70", size])


def test_delta_is_held_against_sizes_that_are_given(tmp_path: Path) -> None:
    job = load_job(federation_file(tmp_path / "f.toml", (None, None)))
    with pytest.raises(ConfigError, match=r"privacy\.delta: is not below 1 / 100000"):
        federation_of(job, ["100000"])


def test_a_site_that_would_refuse_a_secure_sum_is_named(tmp_path: Path) -> None:
    privacy, site = 'trust = "secure-sum"', "epsilon = 2"
    job = load_job(federation_file(tmp_path / "f.toml", (64, 64), privacy=privacy, site=site))
    with pytest.raises(ConfigError, match=r"sites\.site-0\.epsilon: is less than the job's 4"):
        federation_of(job)


def test_what_could_be_otherwise_costs_what_it_costs() -> None:
    now = of([64] * 16)
    found = dict(changes(now))
    assert found["twice the sites"].noise == pytest.approx(now.noise / math.sqrt(2))
    assert found["twice the ε"].noise_multipliers[0] < now.noise_multipliers[0]
    assert found["twice the rounds"].slots == 60
    assert found["twice the sample rate"].noise_multipliers[0] > now.noise_multipliers[0]
    shared = found["a secure sum, of which one site may collude"]
    assert shared.noise == pytest.approx(now.noise / math.sqrt(15))
    assert found["a secure sum, of which 7 may collude"].noise > shared.noise
    back = dict(changes(shared))
    assert back["each site adds all of its noise"].noise == pytest.approx(now.noise)
    assert back["2 sites may collude, for 1"].noise > shared.noise
    assert back["twice the sites"].max_colluding == 1
