"""The command line as a person types it: real processes."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.config.load import load_job
from fedpriv.doctor.studies import DENOISING, PE_SGD
from fedpriv.errors import DossierError
from fedpriv.privacy.accounting import planning
from fedpriv.report.figures import upper
from tests.forked_commands import command
from tests.waiting import held_fedpriv, wait_until

ROOT = Path(__file__).parents[1]

Make = Callable[..., Any]
BIN = Path(sys.executable).parent


def fedpriv(*arguments: str | Path, program: str = "fedpriv") -> subprocess.CompletedProcess[str]:
    return command(program, *map(str, arguments))


def test_help_lists_the_commands_without_loading_torch() -> None:
    program = [str(BIN / "fedpriv"), "--help"]  # as it is installed
    shown = subprocess.run(program, capture_output=True, text=True)
    assert shown.returncode == 0
    for word in ("simulate", "init", "report", "ledger", "plan", "provision"):
        assert word in shown.stdout
    code = (
        "import sys; sys.argv = ['fedpriv', '--version']\n"
        "from fedpriv.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'transformers', 'flwr', 'matplotlib') if m in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    version, modules = child.stdout.splitlines()
    assert re.fullmatch(r"fedpriv \d+\.\d+\.\d+", version)
    assert modules == "[]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "wanted"),
    [("fedpriv-client", "give the site's file"), ("fedpriv-server", "give the federation file")],
)
def test_the_network_commands_want_their_file(program: str, wanted: str) -> None:
    shown = fedpriv(program=program)
    assert shown.returncode == 2
    assert wanted in shown.stderr


@pytest.mark.slow
def test_simulate_prints_json_and_the_other_commands_read_its_run(
    federation: Make, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shown = fedpriv("simulate", federation(rounds=2), "--out", out, "--json")
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout)
    assert result["rounds"] == 2
    assert result["private"] is True
    assert set(result["sites"]) == {"site-0", "site-1"}
    assert result["bytes_up"] > 0
    assert {"eval_loss", "eval_accuracy"} <= result["after"].keys()

    ledger = out / "sites" / "site-0" / "ledger.db"
    shown = fedpriv("ledger", "show", ledger, "--json")
    found = json.loads(shown.stdout)
    assert found["epsilon_committed"] == result["sites"]["site-0"]["epsilon_committed"]
    assert [row["kind"] for row in found["rows"]] == ["terms", "plan", *["reserve", "release"] * 2]
    assert "the claim" in fedpriv("ledger", "show", ledger).stdout

    (out / "report.html").unlink()
    assert fedpriv("report", out).returncode == 0
    assert (out / "report.html").exists()
    budget = out / "sites" / "site-0" / "budget.json"
    budget.write_text(budget.read_text().replace('"declared_size": 24', '"declared_size": 9'))
    refused = fedpriv("report", out)
    assert refused.returncode == 4
    assert "signature" in refused.stderr


@pytest.mark.slow
def test_a_ledger_that_pays_no_more_has_its_own_code(federation: Make, tmp_path: Path) -> None:
    file, ledger = federation(rounds=2), tmp_path / "kept.db"
    terms = ("--size", "24", "--epsilon", "0.5", "--delta", "1e-3", "--max-records-per-unit", "1")
    assert fedpriv("ledger", "init", ledger, *terms, "--simulated").returncode == 0
    named = ("--set", f"sites.site-1.ledger='{ledger}'")
    refused = fedpriv("simulate", file, "--out", tmp_path / "run", *named)
    assert refused.returncode == 4
    assert f"{file}: sites.site-1: " in refused.stderr
    assert "of the budget 0.5" in refused.stderr


def test_simulate_prints_tables(federation: Make, tmp_path: Path) -> None:
    shown = fedpriv("simulate", federation(), "--rounds", "1", "--out", tmp_path / "run")
    assert shown.returncode == 0, shown.stderr
    for words in ("Held-out loss", "Next-token accuracy", "site-1", "ε spent", " up, ", "Adapter:"):
        assert words in shown.stdout
    assert shown.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "privacy.epsilonn=3"], "Did you mean 'epsilon'?"),
        (["--set", "privacy.epsilon=0"], "privacy.epsilon"),
        (["--resume"], "--resume needs --out"),
        (["--rounds", "many"], "many"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_two(
    federation: Make, tmp_path: Path, arguments: list[str], words: str
) -> None:
    shown = fedpriv("simulate", federation(), *arguments)
    assert shown.returncode == 2
    assert words in shown.stderr
    assert "Traceback" not in shown.stderr
    assert not (tmp_path / "runs").exists()


def test_a_missing_file_and_a_missing_ledger_are_named(tmp_path: Path) -> None:
    for words, code in (("simulate",), 2), (("ledger", "show"), 4):
        shown = fedpriv(*words, tmp_path / "x.toml")
        assert shown.returncode == code
        assert str(tmp_path / "x.toml") in shown.stderr
        assert "Traceback" not in shown.stderr


def test_a_full_disk_is_one_message_and_any_other_fault_is_not_hidden(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import typer

    from fedpriv.command_line import run

    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # put back afterwards
    app = typer.Typer()

    @app.command()
    def write(number: int) -> None:
        if not number:  # an error may quote what somebody else wrote
            raise DossierError("unit = \x1b[2JVERIFIED\nis not known")
        raise OSError(number, os.strerror(number), "run.json")

    monkeypatch.setattr(sys, "argv", ["write", str(errno.ENOSPC)])
    with pytest.raises(SystemExit) as ended:
        run(app)
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "error: run.json: No space left on device. Make room and start again.\n"
    )
    monkeypatch.setattr(sys, "argv", ["write", str(errno.EACCES)])
    with pytest.raises(SystemExit):
        run(app)
    assert (
        capsys.readouterr().err
        == "error: run.json: Permission denied. Name another path, or repair this one.\n"
    )
    monkeypatch.setattr(sys, "argv", ["write", "0"])
    with pytest.raises(SystemExit):
        run(app)
    assert capsys.readouterr().err == "error: unit = \\x1b[2JVERIFIED\nis not known\n"
    monkeypatch.setattr(sys, "argv", ["write", str(errno.EBADF)])
    with pytest.raises(SystemExit) as ended:
        run(app)
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "OSError" in said
    assert f"{__file__}:" in said
    assert "Bad file descriptor" not in said  # of an error that is not ours: it may quote a record


@pytest.mark.parametrize("shown", [False, True], ids=["usual", "dev-mode"])
def test_a_fault_of_a_thread_is_told_without_its_text(shown: bool) -> None:
    code = """
import threading, typer
from fedpriv.command_line import run

app = typer.Typer()

@app.command()
def work():
    def read():
        raise ValueError("Jane Doe, 52, presented with")
    one = threading.Thread(target=read, name="reader")
    one.start()
    one.join()
    two = threading.Thread(target=lambda: exit("bye"))
    two.start()
    two.join()

run(app)
"""
    options = ["-X", "dev"] if shown else []
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True)
    assert "ValueError" in done.stderr and "in read" in done.stderr
    assert ("Jane" in done.stderr) is shown
    assert shown or done.stderr.startswith("error: a fault of a thread (reader)\n")
    assert "bye" not in done.stderr


def test_init_copies_the_embedded_federation_once(tmp_path: Path) -> None:
    shown = fedpriv("init", tmp_path / "mine")
    assert shown.returncode == 0
    assert (tmp_path / "mine" / "federation.toml").exists()
    sites = {site.name for site in load_job(tmp_path / "mine" / "federation.toml").sites}
    names = {*sites, *(f"{name}-held-out" for name in sites), "held-out"}
    assert {path.name for path in (tmp_path / "mine").glob("*.gz")} == {
        f"{name}.jsonl.gz" for name in names
    }
    again = fedpriv("init", tmp_path / "mine")
    assert again.returncode == 2
    assert "not empty" in again.stderr


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on_and_it_does(federation: Make, tmp_path: Path) -> None:
    file, out = federation(rounds=3), tmp_path / "run"
    words = [*held_fedpriv(tmp_path, 1), "simulate", str(file), "--out", str(out)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: (out / "metrics.jsonl").exists() or child.poll() is not None)
    child.send_signal(signal.SIGINT)
    stdout, stderr = child.communicate()
    assert child.returncode == 130, stderr
    assert f"--out {out} --resume" in stdout
    assert "Traceback" not in stderr
    assert json.loads((out / "run.json").read_text())["status"] == "interrupted"
    shown = fedpriv("simulate", file, "--out", out, "--resume", "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["rounds"] == 3


def test_ctrl_c_before_a_run_is_there_says_that_nothing_was_spent(
    federation: Make, tmp_path: Path
) -> None:
    """The library is loaded first, which takes seconds."""
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Stop:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'fedpriv_simulation.simulate': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Stop())\n"
        f"sys.argv = {['fedpriv', 'simulate', str(federation()), '--out', str(tmp_path / 'run')]}\n"
        "from fedpriv.cli import main\n"
        "main()\n"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.returncode == 130, child.stderr
    assert "Stopped before the run began; nothing was spent." in child.stdout
    assert "Traceback" not in child.stderr and not (tmp_path / "run" / "run.json").exists()


PLAN = ("--epsilon", "3", "--delta", "1e-5", "--sample-rate", "0.02", "--steps", "400")


def test_plan_prints_json() -> None:
    shown = fedpriv("plan", *PLAN, "--size", "250", "--records", "4", "--json")
    assert shown.returncode == 0, shown.stderr
    figures = json.loads(shown.stdout)
    assert figures["solved_for"] == "noise_multiplier"
    assert (figures["delta"], figures["sample_rate"], figures["steps"]) == (1e-5, 0.02, 400)
    assert 2.97 <= figures["epsilon"] <= 3 == figures["target_epsilon"]
    assert figures["expected_batch"] == 5
    assert [row["records"] for row in figures["group"]] == [4]
    assert {"one_more_round", "accountant", "curve"} <= figures.keys()
    assert [row["parameters"] for row in figures["defaults"]][-1] is None
    sigma = str(figures["noise_multiplier"])
    checked = fedpriv("plan", *PLAN, "--noise-multiplier", sigma, "--json")
    assert json.loads(checked.stdout)["epsilon"] == figures["epsilon"]
    assert json.loads(checked.stdout)["within_target"] is True


PLANNED = ("plan", "--epsilon", "4", "--sample-rate", "0.1", "--steps", "30", "--check")


@pytest.mark.slow
def test_plan_is_checked_by_another_accountant() -> None:
    done = fedpriv(*PLANNED)
    assert done.returncode == 0, done.stderr
    assert re.search(r"prv-accountant 0\.2\.\d: 3\.9\d+ to 4\.0\d+, about 3\.9\d+\n", done.stdout)
    found = json.loads(fedpriv(*PLANNED, "--json").stdout)["second"]
    assert found["lower"] < found["estimate"] < found["upper"] and found["agrees"]
    raises = ("plan", "--sample-rate", "0.2", "--steps", "1000", "--noise-multiplier", "0.5")
    done = fedpriv(*raises, "--check")
    assert done.returncode == 0 and "prv-accountant can't compute this one" in done.stdout
    assert "problem" in json.loads(fedpriv(*raises, "--check", "--json").stdout)["second"]
    assert json.loads(fedpriv(*raises, "--json").stdout)["second"] is None


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_plan_that_another_accountant_contradicts_exits_with_one(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = planning.epsilon_upper
    monkeypatch.setattr(planning, "epsilon_upper", lambda *given: factor * real(*given))
    result = CliRunner().invoke(app, list(PLANNED))
    assert (result.exit_code, "ours is outside" in result.output) == (1, True)


@pytest.mark.parametrize("columns", ["80", "12"])
def test_plan_in_a_pipe_is_plain_text_of_any_width(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    shown = fedpriv("plan", *PLAN[:2], *PLAN[4:], "--size", "250")
    assert shown.returncode == 0, shown.stderr
    assert "\x1b" not in shown.stdout
    words = " ".join(shown.stdout.split())
    sigma = re.search(r"noise multiplier ([\d.]+) solved", words)
    assert sigma and float(sigma[1]) == pytest.approx(0.92, abs=0.01)
    assert "1e-05 the default" in words
    assert re.search(r"400 █+ 2\.99\d < plan", words)
    assert re.search(r"600 ░+ 3\.\d", words)
    assert re.search(r"up to \d+ M learning rate 0\.\d+, clip norm", words)
    for sentence in ("One more round costs", "secret Poisson", "for 5."):
        assert sentence in words


def test_plan_says_what_a_round_of_several_steps_costs(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    text = (
        "[job]\nrounds = {}\nsync = {}\n[privacy]\nepsilon = 3\ndelta = 1e-5\nsample_rate = 0.02\n"
        '[evaluation]\ndata = "e.jsonl"\n[[sites]]\nname = "a"\ndata = "a.jsonl"\nsize = 250\n'
    )
    costs = []
    for rounds, sync in ((400, 1), (50, 8)):
        file.write_text(text.format(rounds, sync))
        costs.append(json.loads(fedpriv("plan", str(file), "--json").stdout)["one_more_round"])
    assert costs[1] == pytest.approx(8 * costs[0])


def test_plan_says_what_looks_cost(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(
        "[job]\nrounds = 400\n[privacy]\nepsilon = 3\ndelta = 1e-5\nsample_rate = 0.02\n"
        '[evaluation]\ndata = "e.jsonl"\n[evaluation.sites]\nlooks = 5\nslots = 8\n'
        '[[sites]]\nname = "a"\ndata = "a.jsonl"\nsize = 250\nheld_out = 0.2\n'
    )
    shown = fedpriv("plan", str(file), "--json")
    assert shown.returncode == 0, shown.stderr
    figures = json.loads(shown.stdout)
    looks = figures["looks"]
    assert (figures["steps"], looks["steps"], looks["training_steps"]) == (440, 40, 400)
    assert looks["noise_multiplier_without"] < figures["noise_multiplier"]
    assert looks["epsilon_without"] < figures["epsilon"] <= 3
    assert figures["choosing"]["look"]["steps"] == 8
    words = " ".join(fedpriv("plan", str(file)).stdout.split())
    assert "Of the 440 steps, 40 look at held-out records of the sites." in words


def test_plan_says_what_a_secure_sum_rests_on(tmp_path: Path) -> None:
    options = ("--epsilon", "4", "--delta", "1e-5", "--sample-rate", "0.2", "--steps", "30")
    file = tmp_path / "federation.toml"
    text = (
        "[job]\nrounds = 25\n[privacy]\nepsilon = 4\ndelta = 1e-5\nsample_rate = 0.2\n"
        'trust = "secure-sum"\nspare_slots = 5\n[evaluation]\ndata = "held.jsonl"\n'
    )
    sites = [
        f'[[sites]]\nname = "{name}"\ndata = "{name}.jsonl"\nsize = 250\n' for name in "abcdefghij"
    ]
    file.write_text(text + "".join(sites))
    by_default = fedpriv("plan", str(file), "--json")
    assert json.loads(by_default.stdout)["alone"]["max_colluding"] == 4
    file.write_text(text + "".join(sites[:4]))
    shown = fedpriv("plan", str(file), "--json")
    assert shown.returncode == 0, shown.stderr
    figures = json.loads(shown.stdout)
    alone = figures["alone"]
    assert [alone[key] for key in ("sites", "max_colluding", "shares")] == [4, 1, 3]
    assert alone["epsilon"] == pytest.approx(9.9, abs=0.1)
    assert alone["noise_multiplier"] ** 2 * 3 == pytest.approx(figures["noise_multiplier"] ** 2)
    by_itself = json.loads(fedpriv("plan", *options, "--json").stdout)
    without = figures["choosing"] | {"look": by_itself["choosing"]["look"]}
    assert by_itself == figures | {"alone": None, "choosing": without}
    assert figures["choosing"]["look"] is None
    words = " ".join(fedpriv("plan", str(file)).stdout.split())
    assert "of which each adds one part of 3 of it" in words
    assert re.search(r"Alone: if all other sites .* and ε is 9\.\d+\.", words)


def test_plan_says_what_choosing_settings_costs_as_the_page_does() -> None:
    page = " ".join(
        (ROOT / "docs/how-to/choosing-settings.md").read_text().replace("> ", "").split()
    )
    (line,) = re.findall(r"fedpriv (plan [^`]*? --budget [\d.]+) ", page)
    words = " ".join(fedpriv(*line.split()).stdout.split())
    said = re.search(r"Choosing settings: .*? such jobs fit\.", words)
    assert said and said[0] in page, words
    figures = json.loads(fedpriv(*line.split(), "--json").stdout)["choosing"]
    for part in ("trial", "look", "repeated"):
        assert upper(figures[part]["epsilon"]) in said[0]
        assert f"{100 * figures[part]['share']:.3g}%" in said[0]


def test_plan_says_what_methods_can_do(tmp_path: Path) -> None:
    text = (
        "[job]\nrounds = 60\n[privacy]\nepsilon = 4\nsample_rate = 0.1\n[lora]\nr = 4\n"
        'target_modules = ["q_proj"]\n[evaluation]\ndata = "e.jsonl"\n'
    )
    sites = (f'[[sites]]\nname = "{name}"\ndata = "a.jsonl"\nsize = 250\n' for name in "abcd")
    file = tmp_path / "federation.toml"
    file.write_text(text + "".join(sites))
    found = json.loads(fedpriv("plan", str(file), "--methods", "--json").stdout)
    expected = 100 / (found["noise_multiplier"] * 2)  # noise of four sites
    assert found["methods"]["signal_to_noise"] == pytest.approx(expected)
    assert [one["count"] for one in found["methods"]["matrices"]] == [4, 4]  # four layers: A, B
    words = " ".join(fedpriv("plan", str(file), "--methods").stdout.split())
    assert "at rank 4 it can't raise the cosine of a gradient above 2.0 times" in words
    assert "a synthetic set of more than about" in words
    assert DENOISING in words and PE_SGD in words
    of_a_site = ("--batch", "25", "--size", "250")  # and not of all sites
    again = json.loads(fedpriv("plan", str(file), "--methods", "--json", *of_a_site).stdout)
    assert again["methods"]["signal_to_noise"] == pytest.approx(expected)
    over_network = text.replace(
        "[job]", '[server]\naddress = "127.0.0.1:9"\n[job]\nengine = "network"'
    )
    file.write_text(over_network + '[[sites]]\nname = "a"\n')
    shown = fedpriv("plan", str(file), "--methods")
    assert shown.returncode == 2 and "--size: is missing" in shown.stderr


def test_plan_keeps_to_what_the_sites_grant(tmp_path: Path) -> None:
    text = '[job]\nrounds = 9\n[privacy]\nepsilon = 4\n[evaluation]\ndata = "e.jsonl"\n'
    file = tmp_path / "federation.toml"

    def planned(*caps: str) -> subprocess.CompletedProcess[str]:
        names = zip("ab", caps, strict=True)
        site = '[[sites]]\nname = "{}"\ndata = "a.jsonl"\nsize = 99\n{}\n'
        file.write_text(text + "".join(site.format(name, cap) for name, cap in names))
        return fedpriv("plan", str(file), "--json")

    assert 0.99 < json.loads(planned("epsilon = 1", "epsilon = 1").stdout)["epsilon"] <= 1
    assert 3.99 < json.loads(planned("", "epsilon = 8").stdout)["epsilon"] <= 4
    differ = planned("epsilon = 1", "")
    assert differ.returncode == 2 and "--epsilon 1 or 4" in differ.stderr


def test_plan_says_when_a_plan_is_too_dear() -> None:
    shown = fedpriv("plan", *PLAN, "--noise-multiplier", "0.5")
    assert shown.returncode == 0
    assert "above the 3 asked for" in shown.stdout
    assert "leave one of the others out" in " ".join(shown.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--epsilon, --sample-rate, --steps, --noise-multiplier: too few values"),
        ([*PLAN, "--batch", "5", "--size", "250"], "--sample-rate: contradicts the batch of 5"),
        ([*PLAN, "--size", "100000"], "--delta: must be below 1/size"),
        ([*PLAN[:4], "--batch", "5"], "--batch: says no rate"),
        ([*PLAN, "--noise-multiplier", "0"], "--noise-multiplier: is float 0.0. It should be"),
        (
            [*PLAN, "--records", "0"],
            "Invalid value for '--records': 0 is not in the range",
        ),
        (["--epsilon", "1e-3", *PLAN[4:6], "--noise-multiplier", "1"], "one costs"),
        (["--epsilon", "much"], "much"),
        ([*PLAN, "--budget", "0"], "--budget: must be above 0"),
        ([*PLAN, "--methods"], "--methods: needs to know the model"),
    ],
)
def test_a_plan_that_is_none_is_one_message(arguments: list[str], words: str) -> None:
    shown = fedpriv("plan", *arguments)
    assert shown.returncode == 2
    assert words in shown.stderr
    assert "Traceback" not in shown.stderr


def test_plan_loads_neither_torch_nor_transformers_nor_flower() -> None:
    code = (
        f"import sys; sys.argv = ['fedpriv', 'plan', *{PLAN!r}]\n"
        "from fedpriv.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = ('torch', 'transformers', 'peft', 'flwr', 'datasets', 'matplotlib')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines()[-1] == "[]"


def test_ctrl_c_while_an_object_is_cleared_away_is_not_lost() -> None:
    """Python drops what __del__ raises, and with it a KeyboardInterrupt."""
    code = """
import os, signal, time, typer
from fedpriv.command_line import run
app = typer.Typer()
class Cleared:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
@app.command()
def serve():
    Cleared()
    print("cleared", flush=True)
    time.sleep(60)
run(app)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "cleared\n", "")
