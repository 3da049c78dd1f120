"""`fedpriv forecast`, as a coordinator uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedpriv.doctor.studies import DENOISING
from fedpriv.report.figures import upper
from tests.forecasting.federation_files import federation_file
from tests.forecasting.made_up_runs import runs, write
from tests.forked_commands import command


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    return write(tmp_path / "border.json", runs(scatter=0.01))


def shown(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return command("fedpriv", "forecast", *map(str, arguments))


@pytest.mark.slow
def test_it_says_what_studies_found_of_a_method(
    tmp_path: Path, measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    file = federation_file(tmp_path / "f.toml", (50, 60))
    asked = (file, "--table", measured)
    assert DENOISING not in shown(*asked).stdout
    assert DENOISING in shown(*asked, "--set", "denoise.where=server").stdout


def test_a_forecast_says_what_it_read_and_what_is_expected(
    tmp_path: Path, measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    file = federation_file(tmp_path / "f.toml", (50, 60, 70, 80, 90, 100))
    done = shown(file, "--table", measured)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    words = " ".join(done.stdout.split())
    for sentence in (
        "sites 6, with 50 to 100 units each to train on",
        "trust each site adds all of its noise (local)",
        "plan 30 steps at a sample rate of 0.2",
        "measured notes: made-up notes; 27 federations",
        "measured with embedded, 100 trained values",
        "over a model trained alone: joining is expected to pay,",
        "Other hospitals' patients This table has no such measurement: nothing is said of it.",
        "A new hospital that begins with the adapter This table has no such measurement",
        "ε = 4 at each site, and ε = 4.000 if all others work with the server.",
        "site-3 80 units",
        "Of all 6 sites: 6 is expected to pay against one own model;",
        "twice the sites",
        "a secure sum, of which one site may collude",
        "can't be told by this table. Where it was measured, they were worth more than joining,",
        "measured runs that no curve had seen,",
    ):
        assert sentence in words, sentence


def test_a_forecast_for_programs(tmp_path: Path, measured: Path) -> None:
    file = federation_file(tmp_path / "f.toml", (None,) * 16)
    done = shown("--json", file, "--table", measured, "--size", "64", "--set", "privacy.epsilon=8")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kind"] == "notes" and found["sites"] == 16 and len(found["of_sites"]) == 16
    best = next(one for one in found["ways"] if one["way"] == found["best"])
    assert best["over_alone"]["low"] < best["over_alone"]["gain"] < best["over_alone"]["high"]
    assert best["verdict"].startswith("is expected to pay") and best["outside"] == []
    assert [one["what"] for one in found["changes"]][:2] == [
        "twice the sites",
        "four times the sites",
    ]


def test_the_three_questions_are_answered_with_their_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    made = runs(scatter=0.002, others=lambda records, noise: 0.4)
    for run in made[:6]:  # of a few federations, what a single hospital hands on
        run["outside"]["single"] = [3.9] * 3
    table = write(tmp_path / "border.json", made)
    privacy = 'trust = "secure-sum"\nmax_colluding = 8\nclip_norm = 1'
    lora = "[lora]\nr = 2\nalpha = 4"
    file = federation_file(tmp_path / "f.toml", (64,) * 16, privacy=privacy, rest=lora)
    done = shown(file, "--table", table)
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "Other hospitals' patients Over the base model: joining is expected to pay, +0." in words
    assert (
        "single hospital could hand on at the same ε: no verdict, too little measured: 3" in words
    )
    assert "Over one that begins with the base model: with 0 own records joining is exp" in words
    assert "; with 64 own records joining is expected to pay, +0." in words
    found = json.loads(shown(file, "--table", table, "--json").stdout)
    assert f"ε = {upper(found['price']['epsilon_alone'])} if all others work" in words
    assert "About 0.012 MB come to each site, and at most as many go back." in words
    assert found["price"]["epsilon_alone"] > found["price"]["epsilon"] == 4
    assert found["price"]["megabytes"] == pytest.approx(30 * 100 * 4 / 1e6)
    asked = [(one["question"], one["over"]) for one in found["answers"]]
    assert asked[:3] == [("own", "alone"), ("outside", "base"), ("outside", "single")]
    gains = [one["gain"]["gain"] for one in found["answers"] if one["over"] == "base"]
    assert gains == pytest.approx([0.4, 0.4, 0.2, 0.2, 0.2], abs=0.01)
    assert asked[3:] == [(own, "base") for own in ("0", "4", "16", "64")]


def test_outside_there_is_no_verdict(tmp_path: Path, measured: Path) -> None:
    file = federation_file(tmp_path / "f.toml", (4000,) * 4)
    words = " ".join(shown(file, "--table", measured).stdout.split())
    assert "outside what was measured, so there is no verdict" in words
    assert "the gains are the curve drawn further: records at a site: 4e+03" in words
    assert "expected to pay" not in words and "expected not to pay" not in words


def test_what_begins_at_public_records_is_not_forecast(tmp_path: Path, measured: Path) -> None:
    begun = "[synthetic]\nsize = 20\ndata = 'public.jsonl'\nwarm_start = 4"
    done = shown(federation_file(tmp_path / "f.toml", rest=begun), "--table", measured)
    assert done.returncode == 2 and not done.stdout
    assert "synthetic.warm_start: begins at public records, and too few" in done.stderr
    assert "with --set synthetic.warm_start=0" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{file}", "--set", "privacy.epsilonn=3"], "privacy.epsilonn: unknown key (got 3)"),
        (
            ["{file}", "--kind", "tales"],
            "border.json: --kind: is not a kind in the table (got 'tales')",
        ),
        (["{file}", "--size", "site-1=9"], "f.toml: --size: the file has a size for site-1"),
        (["{file}", "--size", "site-99=few"], "f.toml: --size: expected a number of units"),
        (["{folder}/none.toml"], "none.toml: no such file"),
        (["{file}", "--table", "{folder}/none.json"], "none.json: no such file"),
        (["{file}", "--table", "{file}"], "f.toml: is not JSON"),
        ([], "Missing argument"),
    ],
)
def test_what_is_wrong_is_one_message(
    arguments: list[str], words: str, tmp_path: Path, measured: Path
) -> None:
    file = federation_file(tmp_path / "f.toml")
    filled = [one.format(file=file, folder=tmp_path) for one in arguments]
    done = shown(*([] if "--table" in filled else ["--table", measured]), *filled)
    assert done.returncode == 2
    assert words in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_a_forecast_loads_neither_torch_nor_transformers_nor_flower(
    tmp_path: Path, measured: Path
) -> None:
    file = federation_file(tmp_path / "f.toml")
    code = (
        "import sys; sys.argv = ['fedpriv', 'forecast', sys.argv[1], '--table', sys.argv[2]]\n"
        "from fedpriv.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = ('torch', 'transformers', 'peft', 'flwr', 'datasets', 'matplotlib')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    program = [sys.executable, "-c", code, str(file), str(measured)]
    child = subprocess.run(program, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines()[-1] == "[]"
