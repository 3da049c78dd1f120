"""What each simulated site would make of the adapter for itself, and where that is."""

from __future__ import annotations

import json
import re
import shutil
import stat
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from peft import PeftModel
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from fedpriv.adapter_facts import read_facts
from fedpriv.config.load import load_job
from fedpriv.config.sites import SiteSection
from fedpriv.errors import ConfigError, DataError
from fedpriv_simulation.command import _in_words, simulate
from fedpriv_simulation.own_models import own_models, spread

pytestmark = pytest.mark.slow
Make = Callable[..., Any]
APP = typer.Typer()
APP.command()(simulate)
PERSONAL = "[personal]\nvalidation = 0.25\nrates = [3e-2]\nepochs = 3\nbatch_size = 4"
HELD_OUT = [f"sites.site-{index}.held_out=0.4" for index in (0, 1)]


def simulated(file: Path, out: Path, *overrides: str) -> str:
    options = [word for each in (*HELD_OUT, *overrides) for word in ("--set", each)]
    result = CliRunner().invoke(APP, [str(file), "--out", str(out), "--personal", *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def public(federation_in: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("public")
    file = federation_in(folder / "federation", rounds=2, extra=PERSONAL)
    return folder / "run", simulated(file, folder / "run")


def test_every_site_has_its_models_in_its_private_folder(public: tuple[Path, str]) -> None:
    run, _ = public
    for name in ("site-0", "site-1"):
        private = run / "private" / name
        for kind in ("personal", "alone"):
            (folder,) = [path for path in (private / kind).iterdir() if path.is_dir()]
            facts = read_facts(folder)
            assert (facts.kind, facts.held_out) == (kind, "0.4")
            assert facts.proposal == read_facts(run / "adapter").proposal
            assert "not to leave this house" in (folder / "README.md").read_text()
            for path in (private, private / kind, folder):
                assert stat.S_IMODE(path.stat().st_mode) == 0o700
        page = private / "evaluation.html"
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        assert "Not to leave this house" in page.read_text()
        assert not list(private.glob("personal-*"))  # clear text of the records


def test_the_screen_shows_public_records_what_they_are_worth(public: tuple[Path, str]) -> None:
    _, shown = public
    assert "own held-out records" in shown
    for word in (
        "base",
        "federated",
        "alone",
        "personal",
        "two alone",
        "all three",
        "site-0",
        "site-1",
    ):
        assert word in shown
    said = re.findall(r"0\.03×[1-3]", shown)
    assert len(said) == 4, "alone and personal, at each of two sites"
    assert "chose rate × passes by cross-validation" in " ".join(shown.split())


def test_an_own_adapter_loads_in_peft(public: tuple[Path, str]) -> None:
    run, _ = public
    (folder,) = [p for p in (run / "private" / "site-0" / "personal").iterdir() if p.is_dir()]
    base = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
    assert any("lora_B" in name for name, _ in model.named_parameters())


def test_what_may_be_handed_on_knows_nothing_of_it(public: tuple[Path, str]) -> None:
    """Law 16: outside of private/, no file names an own model or holds a figure of one."""
    run, _ = public
    for path in run.rglob("*"):
        if path.is_file() and "private" not in path.relative_to(run).parts:
            text = path.read_bytes()
            assert b"personal/" not in text and b"alone/" not in text, path
    report = (run / "report.html").read_text()
    assert "evaluation.html" not in report


def test_records_that_are_not_public_are_refused_before_anything_runs(
    federation: Make, tmp_path: Path
) -> None:
    """Law 15: who sees what each site alone may see would choose settings by it, for nothing."""
    with pytest.raises(ConfigError) as caught:
        simulated(federation(rounds=1, public=False, extra=PERSONAL), tmp_path / "run")
    assert caught.value.key == "job.data_is_public"
    assert not (tmp_path / "run").exists()


def test_without_anything_kept_apart_nothing_runs(federation: Make, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        APP, [str(federation()), "--out", str(tmp_path / "a"), "--personal"]
    )
    assert isinstance(result.exception, ConfigError)
    assert result.exception.key == "sites.held_out"
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
def test_sites_that_keep_nothing_apart_only_take_part(federation: Make, tmp_path: Path) -> None:
    file, out = federation(rounds=1, extra=PERSONAL), tmp_path / "run"
    command = [str(file), "--out", str(out), "--personal", "--set", HELD_OUT[1]]
    result = CliRunner().invoke(APP, command)
    assert result.exit_code == 0, result.output
    assert not list((out / "private" / "site-0").glob("alone*"))
    assert (out / "private" / "site-1" / "evaluation.html").exists()


@pytest.mark.slow
def test_so_many_sites_train_by_themselves_as_are_asked_for(
    federation: Make, tmp_path: Path
) -> None:
    file, out = federation(rounds=1, extra=PERSONAL), tmp_path / "run"
    options = [word for each in HELD_OUT for word in ("--set", each)]
    command = [str(file), "--out", str(out), "--personal-sites", "1", *options]
    result = CliRunner().invoke(APP, command)
    assert result.exit_code == 0, result.output
    assert len(list((out / "private").glob("site-*/evaluation.html"))) == 1
    assert "mean" not in result.output


@given(count=st.integers(1, 12), sites=st.integers(1, 10))
def test_so_many_sites_are_spread_over_the_list(count: int, sites: int) -> None:
    made = [SiteSection(name=f"s{i}", data="a.jsonl", held_out=0.2) for i in range(sites)]
    job = load_job().model_copy(update={"sites": (*made, SiteSection(name="no", data="a.jsonl"))})
    names = [int(site.name[1:]) for site in spread(job, count)]
    assert len(names) == min(count, sites) == len(set(names))
    assert names == sorted(names)
    if len(names) > 1:
        steps = [b - a for a, b in pairwise(names)]
        assert max(steps) - min(steps) <= 1
    assert spread(job) == tuple(made)


def test_a_site_with_nothing_to_stop_by_is_named(federation: Make, tmp_path: Path) -> None:
    file = federation(rounds=1, extra=PERSONAL)
    data = file.parent / "site-0.jsonl"
    first, *others = data.read_text().splitlines(keepends=True)
    data.write_text(first)
    (file.parent / "others.jsonl").write_text("".join(others))
    with pytest.raises(DataError) as caught:
        simulated(file, tmp_path / "run", "sites.site-0.held_out=others.jsonl")
    assert caught.value.key == "personal.validation"
    assert caught.value.file == file
    assert not list((tmp_path / "run" / "private" / "site-0").glob("personal*"))


def test_whoever_stops_waits_for_nobody(public: tuple[Path, str], tmp_path: Path) -> None:
    """Ctrl-C ends what other sites do after their pass, and what is left is not begun."""
    run, _ = public
    config = load_job(run.parent / "federation" / "federation.toml", HELD_OUT)
    copied = tmp_path / "run"
    shutil.copytree(run, copied, ignore=shutil.ignore_patterns("private"))
    said: list[str] = []

    def stop(text: str) -> None:
        said.append(text)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        own_models(config, copied, config.sites, stop)
    assert len(said) <= 2, "each of two at once, and nothing later"
    assert not list(copied.glob("private/*/evaluation.html"))


def in_words(*overrides: str, **losses: tuple[float, float, float, float]) -> str:
    """Of sites with these losses of base, alone, two alone and all three."""
    names = ("base", "alone", "two alone", "all three")
    rows = {name: dict(zip(names, row, strict=True)) for name, row in losses.items()}
    means = {name: sum(row[name] for row in rows.values()) / len(rows) for name in names}
    return " ".join(_in_words(load_job(None, overrides), rows, means))


def test_nothing_is_said_to_be_gained_over_what_is_worse_than_no_training() -> None:
    said = in_words(a=(0.69, 1.3, 1.2, 0.8), b=(0.69, 0.6, 0.6, 0.5))
    assert "At 1 of 2 sites 'alone' is worse than 'base'" in said
    assert "lower at 1 of 2 sites" in said
    assert "worse than" not in in_words(a=(0.69, 0.6, 0.6, 0.5))


def test_what_is_shown_as_equal_is_a_tie() -> None:
    said = in_words(a=(0.9, 0.6, 0.5004, 0.4996), b=(0.9, 0.6, 0.5001, 0.5004))
    assert "the same on average, and lower at 0 of 2 sites, equal at 2" in said


def test_it_is_said_how_rate_and_passes_were_found() -> None:
    row = (0.9, 0.6, 0.5, 0.4)
    assert "by cross-validation on its own records" in in_words(a=row)
    fixed = ("personal.validation=0", "personal.rates=[1e-2]", "personal.epochs=3")
    said = in_words(*fixed, "personal.epochs_alone=5", a=row)
    assert "fixed ([personal]): 0.01 × 5 alone, and 3 passes from the adapter" in said
