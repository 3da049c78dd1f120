"""The whole path on a tiny model: what it leaves, what it refuses, how it goes on."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.config.load import load_job
from fedpriv.errors import (
    BudgetError,
    ConfigError,
    DataError,
    FedprivError,
    LedgerCorruptError,
    LedgerError,
    NotPrivateError,
    OverlapError,
    RunError,
    RunningError,
)
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.ledger.ledger import Ledger, Terms
from fedpriv.privacy.ledger.rules import PlanRule, RdpRule, SumRule
from fedpriv.private_training.pool import WorkerPool
from fedpriv.report.budget import read
from fedpriv.report.html import write_report
from fedpriv.report.received import verify
from fedpriv.report.rundir import read_run
from fedpriv_client.app import client_app
from fedpriv_server import job as server_job
from fedpriv_server.job import Job
from fedpriv_server.run_directory import RunDirectory
from fedpriv_simulation.command import show, summary
from fedpriv_simulation.inline import InlineGrid
from fedpriv_simulation.simulate import Outcome, Progress, simulate
from fedpriv_simulation.sites import Sites
from fedpriv_strategies.averaged import adapter_of

Make = Callable[..., Any]


def run(file: Path, out: Path, *overrides: str, **options: Any) -> Outcome:
    return simulate(load_job(file, overrides), out, source=file, **options)


def card(outcome: Outcome) -> str:
    return (outcome.run.path / "adapter" / "README.md").read_text()


def adapter_bytes(outcome: Outcome) -> bytes:
    return (outcome.run.path / "adapter" / "adapter_model.safetensors").read_bytes()


class Finished:
    """A run of three rounds that is over, for tests that look at it and change nothing.

    Attributes:
        logged: what was logged by it, from warnings on.
    """

    def __init__(self, file: Path, out: Path) -> None:
        self.file, logged = file, io.StringIO()
        handler = logging.StreamHandler(logged)
        logging.getLogger().addHandler(handler)
        self.outcome = run(file, out)
        logging.getLogger().removeHandler(handler)
        self.logged = logged.getvalue()


@pytest.fixture(scope="module")
def finished(federation_in: Make, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("finished")
    return Finished(federation_in(folder / "federation"), folder / "run")


def test_a_finished_run_leaves_everything(finished: Finished) -> None:
    out = finished.outcome.run.path
    info = json.loads((out / "run.json").read_text())
    assert info["status"] == "finished"
    assert info["private"] is True
    assert info["seeds"]["noise"] == "operating system"
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert finished.logged == ""
    for line in lines:
        assert {"eval_loss", "eval_accuracy", "bytes_up", "bytes_down", "seconds"} < line.keys()
        assert {site["status"] for site in line["sites"].values()} == {"ok"}
    spent = [line["sites"]["site-0"]["epsilon_spent"] for line in lines]
    assert spent == sorted(spent)
    assert spent[0] < spent[2] == lines[2]["sites"]["site-0"]["epsilon_committed"] <= 6.0
    assert (out / "checkpoint" / "latest.safetensors").is_file()
    assert "<svg" in (out / "report.html").read_text()
    first_steps = (Path(__file__).parents[2] / "docs/tutorials/first-steps.md").read_text()
    listing = first_steps.split("runs/clinics-…/\n")[1].split("```")[0]
    named = {word for line in listing.splitlines() for word in re.split("  +", line)[1:-1]}
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    for name in ("site-0", "site-1"):
        files = {file.replace(name, "NAME") for file in files}
    folders = tuple(word for word in named if word.endswith("/"))
    assert {file for file in files if not file.startswith(folders)} == named - set(folders)
    assert set(folders) == {"adapter/", "base/", "checkpoint/"}
    for name in ("site-0", "site-1"):
        report = read(out / "sites" / name / "budget.json")
        verify(report)
        assert [event.count for event in report.events] == [3]
        assert report.epsilon_spent == report.epsilon_committed <= report.budget == 6.0
        assert report.simulated
        left = {path.name for path in (out / "sites" / name).iterdir()}
        assert left == {"budget.json", "ledger.db"}
        own = out / "private" / name
        kept = {path.name for path in own.iterdir()}
        assert kept == {"report.key"}  # no index, no clear text of records
        assert own.stat().st_mode & 0o777 == 0o700


def test_the_page_is_there_while_it_runs_and_stands_still_afterwards(
    federation: Make, tmp_path: Path
) -> None:
    pages = []

    def look(metrics: dict[str, Any]) -> None:
        pages.append((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))

    outcome = run(federation(rounds=2), tmp_path / "run", progress=Progress(round_done=look))
    assert len(pages) == 2
    for page in pages:
        assert '<meta http-equiv="refresh"' in page and "Running: 0 of 2 rounds" in page
    after = outcome.report.read_text(encoding="utf-8")
    assert "http-equiv" not in after and "Finished after 2 of 2 rounds" in after


def test_the_adapter_loads_in_peft_and_is_that_of_the_checkpoint(finished: Finished) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    outcome = finished.outcome
    base = AutoModelForCausalLM.from_pretrained(load_job(finished.file).model.name)
    model = PeftModel.from_pretrained(base, outcome.run.path / "adapter")
    loaded = torch.cat([p.reshape(-1) for n, p in model.named_parameters() if "lora_" in n])
    checkpoint = outcome.run.checkpoint()
    assert checkpoint is not None
    assert np.array_equal(loaded.detach().numpy(), adapter_of(checkpoint.tensors.value))
    assert loaded.detach().abs().max() > 0


@pytest.mark.slow
def test_seeded_runs_repeat_and_say_that_they_are_not_private(
    federation: Make, tmp_path: Path
) -> None:
    first = run(federation(), tmp_path / "a", insecure_seed=5)
    second = run(federation(), tmp_path / "b", insecure_seed=5)
    third = run(federation(), tmp_path / "c", insecure_seed=6)
    assert adapter_bytes(first) == adapter_bytes(second) != adapter_bytes(third)
    assert "NOT PRIVATE" in first.report.read_text()
    assert "NOT PRIVATE" in card(first)
    assert not any(report.private for report in first.budgets.values())
    assert first.run.info["private"] is False


def test_a_site_without_a_seed_draws_from_the_operating_system(
    federation: Make, tmp_path: Path
) -> None:
    """Sample and noise alike; a seed of the file is public."""
    config = load_job(federation())
    for seed, secure in ((None, True), (0, False)):
        sites = Sites(config, tmp_path / str(seed), seed, "sha256:" + "0" * 64, 10**6)
        with contextlib.closing(sites.open(config.sites[0], WorkerPool())) as site:
            assert site._csprng("job", 0).is_secure is secure


def test_unseeded_runs_differ(finished: Finished, tmp_path: Path) -> None:
    first, second = finished.outcome, run(finished.file, tmp_path / "run")
    assert adapter_bytes(first) != adapter_bytes(second)
    assert "NOT PRIVATE" not in first.report.read_text()
    assert "NOT PRIVATE" not in card(first)
    assert "signed budget report" in card(first)


@pytest.mark.slow
def test_updates_travel_as_the_job_says(federation: Make, tmp_path: Path) -> None:
    """Rounded to fewer bytes, they come to nearly the same."""
    vectors, up = [], []
    for wire in ("float32", "bf16", "int8"):
        overrides = (f"job.wire={wire}", "optimizer.name=sgd", "optimizer.lr=10")
        outcome = run(federation(rounds=1), tmp_path / wire, *overrides, insecure_seed=5)
        checkpoint = outcome.run.checkpoint()
        assert checkpoint is not None
        vectors.append(checkpoint.tensors.value["vector"].numpy())
        up.append(outcome.rounds[0]["bytes_up"])
        assert outcome.rounds[0]["bytes_down"] > 4 * vectors[0].size
    exact = np.linalg.norm(vectors[0] - vectors[0].mean())
    assert 0 < np.linalg.norm(vectors[1] - vectors[0]) < 0.005 * exact
    assert 0 < np.linalg.norm(vectors[2] - vectors[0]) < 0.02 * exact
    saved = 2 * vectors[0].size  # two bytes of a value, two sites
    assert up[0] - up[1] == 2 * saved
    assert up[0] - up[2] > 2.5 * saved


def test_a_seed_needs_public_data(federation: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"job\.data_is_public"):
        run(federation(public=False), tmp_path / "run", insecure_seed=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_training_with_little_noise_learns(federation: Make, tmp_path: Path) -> None:
    outcome = run(
        federation(rounds=15),
        tmp_path / "run",
        "privacy.epsilon=5000",
        "privacy.sample_rate=1.0",
        "optimizer.lr=0.05",
        "lora.target_modules=['v_proj', 'o_proj', 'up_proj', 'down_proj']",
        insecure_seed=1,
    )
    assert outcome.rounds[-1]["eval_loss"] < outcome.baseline.eval_loss - 0.05


class Stop:
    """A listener that presses Ctrl-C after a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, metrics: dict[str, Any]) -> None:
        if metrics["round"] == self.after:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_an_interrupted_run_resumes_to_the_same_ledger_and_model(
    federation: Make, tmp_path: Path
) -> None:
    file, out = federation(rounds=4), tmp_path / "run"
    straight = run(file, tmp_path / "straight", insecure_seed=3)
    with pytest.raises(KeyboardInterrupt):
        run(file, out, insecure_seed=3, progress=Progress(round_done=Stop(2)))
    assert json.loads((out / "run.json").read_text())["status"] == "interrupted"
    resumed = run(file, out, insecure_seed=3, resume=True)
    assert [row["round"] for row in resumed.rounds] == [1, 2, 3, 4]
    for name, report in straight.budgets.items():
        assert resumed.budgets[name].epsilon_spent == report.epsilon_spent
        assert resumed.budgets[name].events[0].count == 4
        assert resumed.budgets[name].ledger_rows == report.ledger_rows
    assert adapter_bytes(resumed) == adapter_bytes(straight)


_DYING = """
import itertools, os, signal, sys
from pathlib import Path
from fedpriv.config.load import load_job
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv_simulation.simulate import simulate

file, out, name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
real, calls = getattr(Ledger, name), itertools.count(1)

def deadly(*args):
    found = real(*args)
    if next(calls) == 5:  # of two sites, in the third round
        os.kill(os.getpid(), signal.SIGKILL)
    return found

setattr(Ledger, name, deadly)
simulate(load_job(file), out, source=file)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "amid", ["reserve_all", pytest.param("release_all", marks=pytest.mark.nightly)]
)
def test_a_killed_run_resumes_to_the_same_ledger_total(
    federation: Make, tmp_path: Path, amid: str
) -> None:
    file, out = federation(rounds=5), tmp_path / "run"
    child = subprocess.run([sys.executable, "-c", _DYING, str(file), str(out), amid])
    assert child.returncode == -signal.SIGKILL
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 2
    resumed = run(file, out, resume=True)
    assert [row["round"] for row in resumed.rounds] == list(range(1, 6))
    for report in resumed.budgets.values():
        assert [event.count for event in report.events] == [5]
        with Ledger.open(out / "sites" / report.site / "ledger.db") as ledger:
            assert ledger.epsilon_spent == ledger.epsilon_committed
            assert ledger.slots(report.job) == [(slot, True) for slot in range(5)]


@pytest.mark.slow
def test_a_repeated_slot_gets_the_stored_reply(federation: Make, tmp_path: Path) -> None:
    """A server that forgets its last checkpoint asks again, and pays nothing."""
    file, out = federation(rounds=3), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(file, out, progress=Progress(round_done=Stop(1)))
    (out / "checkpoint" / "latest.safetensors").unlink()
    resumed = run(file, out, resume=True)
    assert [row["round"] for row in resumed.rounds] == [1, 2, 3]
    assert all(report.events[0].count == 3 for report in resumed.budgets.values())


@pytest.mark.slow
def test_a_restored_ledger_stops_the_run(federation: Make, tmp_path: Path) -> None:
    file, out = federation(rounds=4), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(file, out, progress=Progress(round_done=Stop(1)))
    path = out / "sites" / "site-0" / "ledger.db"
    backup = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        run(file, out, resume=True, progress=Progress(round_done=Stop(2)))
    path.write_bytes(backup)
    with pytest.raises(FedprivError, match=r"back in time"):
        run(file, out, resume=True)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["privacy.epsilonn=3"], "privacy.epsilonn"),
        (["privacy.epsilon=0"], "privacy.epsilon"),
        (["privacy.delta=0.05"], "privacy.delta"),
        (["data.columns={text='letter'}"], "letter"),
        (["lora.target_modules=['no_such_layer']"], "lora.target_modules"),
        (["sites.site-1.data='nowhere.jsonl'"], "sites.site-1.data"),
        (["sites.site-1.data='empty.jsonl'"], "sites.site-1"),
        (["evaluation.data='nowhere.jsonl'"], "evaluation.data"),
        (["job.method='magic'"], "job.method"),
        (["model.name='no/such-model-anywhere'"], "model.name"),
        (["compute.device='cuda:7'"], "compute.device"),
        (["privacy.unit='patient_id'"], "patient_id"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(
    federation: Make, tmp_path: Path, overrides: list[str], key: str
) -> None:
    file, out = federation(), tmp_path / "run"
    (file.parent / "empty.jsonl").write_text("")
    with pytest.raises(FedprivError) as caught:
        run(file, out, *overrides)
    assert key in str(caught.value)
    assert isinstance(caught.value, ConfigError)
    assert caught.value.file is not None
    assert not out.exists()


def test_a_model_that_cannot_be_trained_privately_is_refused(
    federation: Make, tmp_path: Path, model_folder: Make
) -> None:
    file, out = federation(), tmp_path / "run"
    overrides = (
        f"model.name='{model_folder('deberta')}'",
        "model.task=classification",
        f"model.labels={[str(patient) for patient in range(12)]}",
        "data.columns={text='note', label='patient'}",
        "lora.target_modules=['query_proj']",
    )
    with pytest.raises(NotPrivateError, match="deberta"):
        run(file, out, *overrides)
    assert not out.exists()


def test_an_unlisted_label_is_named_by_its_row_not_its_text(
    federation: Make, tmp_path: Path, model_folder: Make
) -> None:
    file = federation()
    overrides = (
        f"model.name='{model_folder('bert')}'",
        "model.task=classification",
        "model.labels=['0', '1']",
        "data.columns={text='note', label='patient'}",
        "lora.target_modules=['query']",
    )
    with pytest.raises(DataError, match=r"model\.labels.*row 5|row 5") as caught:
        run(file, tmp_path / "run", *overrides)
    assert "fever" not in str(caught.value)


def test_another_run_in_the_folder_is_refused(federation: Make, tmp_path: Path) -> None:
    file, out = federation(rounds=1), tmp_path / "run"
    run(file, out)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    with pytest.raises(RunError, match="already holds the run"):
        run(file, out)
    with pytest.raises(RunError, match="is finished"):
        run(file, out, resume=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match="not empty"):
        run(file, other)
    assert before == {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert (other / "thesis.tex").exists()


def test_a_run_that_never_began_makes_room(federation: Make, tmp_path: Path) -> None:
    file, out = federation(rounds=1), tmp_path / "run"
    out.mkdir()
    (out / "run.json").write_text(
        json.dumps(
            {
                "job_id": "x",
                "status": "preparing",
                "config": {},
                "config_digest": "",
                "private": True,
            }
        )
    )
    with pytest.raises(RunError, match="no run to resume"):
        run(file, out, resume=True)
    run(file, out)


@pytest.mark.slow
def test_resuming_with_other_settings_is_refused(federation: Make, tmp_path: Path) -> None:
    file, out = federation(rounds=3), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(file, out, progress=Progress(round_done=Stop(1)))
    with pytest.raises(RunError, match=r"privacy\.epsilon"):
        run(file, out, "privacy.epsilon=3", resume=True)
    with pytest.raises(RunError, match="without --insecure-seed; resume it the same way"):
        run(file, out, resume=True, insecure_seed=1)
    seeded = tmp_path / "seeded"
    with pytest.raises(KeyboardInterrupt):
        run(file, seeded, insecure_seed=3, progress=Progress(round_done=Stop(1)))
    with pytest.raises(RunError, match="started with --insecure-seed 3; resume"):
        run(file, seeded, resume=True, insecure_seed=5)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["evaluation.data", "evaluation.tuning"])
def test_resuming_with_other_records_of_the_coordinator_is_refused(
    federation: Make, tmp_path: Path, key: str
) -> None:
    """Else losses on an easier file look like a gain, and on a harder one the run may end."""
    file, out, other = federation(rounds=2), tmp_path / "run", tmp_path / "other.jsonl"
    other.write_text('{"note": "no fever"}\n')
    said = () if key == "evaluation.data" else (f"{key}={other}",)
    with pytest.raises(KeyboardInterrupt):
        run(file, out, *said, progress=Progress(round_done=Stop(1)))
    changed = other if said else file.with_name("held-out.jsonl")
    kept = changed.read_text()
    changed.write_text('{"note": "something else"}\n')
    with pytest.raises(
        RunError, match=f"other records in .*{re.escape(key)}.*Put the old records back"
    ):
        run(file, out, *said, resume=True)
    changed.write_text(kept)
    info = json.loads((out / "run.json").read_text())
    assert all(len(digest) == 8 for digest in info.pop("records").values())
    assert run(file, out, *said, resume=True).run.info["status"] == "finished"


def test_a_run_of_an_older_version_goes_on_with_whatever_records(
    federation: Make, tmp_path: Path
) -> None:
    file, out = federation(rounds=2), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(file, out, progress=Progress(round_done=Stop(1)))
    info = json.loads((out / "run.json").read_text())
    del info["records"]
    (out / "run.json").write_text(json.dumps(info))
    evaluation = file.with_name("held-out.jsonl")
    evaluation.write_text('{"note": "something else"}\n')
    assert run(file, out, resume=True).run.info["status"] == "finished"


def test_two_runs_in_one_folder_do_not_meet(federation: Make, tmp_path: Path) -> None:
    """Else the second would clear away what the first prepares, its ledgers too."""
    file, out = federation(rounds=1), tmp_path / "run"

    def again(step: str) -> None:
        if step.startswith("Preparing"):
            before = sorted(out.rglob("*"))
            for resume in (False, True):
                with pytest.raises(RunningError, match="another process works in it"):
                    run(file, out, resume=resume)
            assert sorted(out.rglob("*")) == before

    assert run(file, out, progress=Progress(preparing=again)).run.info["status"] == "finished"


def test_what_was_measured_is_rewritten_only_to_drop_something(
    federation: Make, tmp_path: Path
) -> None:
    file, out = federation(rounds=3), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(file, out, progress=Progress(round_done=Stop(2)))
    path = out / "metrics.jsonl"
    kept, number = path.read_text(), path.stat().st_ino
    opened = RunDirectory(out, json.loads((out / "run.json").read_text()))
    assert len(opened.rounds(2)) == 2
    assert (path.read_text(), path.stat().st_ino) == (kept, number)
    path.write_text(kept + '{"round": 3, ')
    assert len(opened.rounds(2)) == 2
    assert path.read_text() == kept


def lasting(path: Path, witness: Path | None = None, **changes: Any) -> str:
    """Make a ledger for site-0, and the override that names it."""
    terms = Terms(
        "0" * 32, 24, "record", 1, 1e-3, 40.0, simulated=True, rule=RdpRule.best(40.0, 1e-3)
    )
    Ledger.create(path, replace(terms, **changes), witness).close()
    return f"sites.site-0.ledger='{path}'"


def test_every_run_is_charged_to_a_ledger_that_outlives_it(
    federation: Make, tmp_path: Path
) -> None:
    file, ledger = federation(rounds=2), tmp_path / "kept.db"
    override, allocated = lasting(ledger), []
    for name in ("a", "b"):
        budget = run(file, tmp_path / name, override).budgets["site-0"]
        assert budget.rule == "rdp" and budget.epsilon_committed == budget.budget == 40.0
        assert not any("one run" in assumption for assumption in budget.assumptions)
        assert [event.count for event in budget.events] == [2]
        allocated.append(budget.epsilon_allocated)
    assert 0 < allocated[0] < allocated[1]
    with pytest.raises(BudgetError, match=r"sites\.site-0.*under the rule 'rdp'"):
        run(file, tmp_path / "c", override, "job.rounds=4000", "sites.site-0.epsilon=39.0",
            "privacy.epsilon=39.0")  # fmt: skip
    with Ledger.open(ledger) as opened:
        assert opened.epsilon_allocated == allocated[1]


def test_a_ledger_that_went_back_is_noticed_in_another_run_directory(
    federation: Make, tmp_path: Path
) -> None:
    """Without a witness: the newest report is kept beside a ledger that runs share."""
    file, ledger = federation(rounds=1), tmp_path / "ledgers" / "kept.db"
    override = lasting(ledger)
    run(file, tmp_path / "a", override)
    older = ledger.read_bytes()
    run(file, tmp_path / "b", override)
    ledger.write_bytes(older)
    with pytest.raises(LedgerCorruptError, match=r"sites\.site-0.*back in time"):
        run(file, tmp_path / "c", override)


def test_public_records_that_are_a_sites_are_refused_as_a_copy_too(
    federation: Make, tmp_path: Path
) -> None:
    """Under another name, in another format, with other white space."""
    file = federation(rounds=1, public=False)
    rows = [json.loads(line) for line in (file.parent / "site-1.jsonl").read_text().splitlines()]
    own = [json.loads(line) for line in (file.parent / "held-out.jsonl").read_text().splitlines()]
    copied = [{"note": f"  {row['note']}\n", "patient": 99} for row in [*own, *rows[:9]]]
    with (file.parent / "public.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ["note", "patient"])
        writer.writeheader()
        writer.writerows(copied)
    override = "evaluation.data='public.csv'"
    with pytest.raises(ConfigError, match=r"evaluation\.data: holds 9 of 33 .* site-1") as caught:
        run(file, tmp_path / "a", override)
    assert not any(row["note"] in str(caught.value) for row in rows)
    assert not (tmp_path / "a").exists()
    with pytest.raises(DataError, match="9 of 33 held-out records are copies") as public:
        run(file, tmp_path / "b", override, "job.data_is_public=true")
    assert public.value.key == "evaluation.data"
    assert not (tmp_path / "b").exists()
    few = (override, "evaluation.limit=26")  # short texts repeat
    run(file, tmp_path / "b", *few, "job.data_is_public=true")


def test_how_long_private_records_took_is_in_no_file(federation: Make, tmp_path: Path) -> None:
    """Law 19: it depends on who was sampled."""
    run(federation(rounds=2, public=False), tmp_path / "run")
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["seconds"] for line in lines] == [None] * 2
    info = json.loads((tmp_path / "run/run.json").read_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", info["finished"])
    page = (tmp_path / "run/report.html").read_text()
    assert "in all rounds" not in page
    assert f'<time datetime="{info["finished"]}">' in page
    assert "Sent by sites" in page
    assert read_run(tmp_path / "run").rounds[1].seconds is None


def test_the_rule_plan_takes_no_second_run(federation: Make, tmp_path: Path) -> None:
    file, ledger = federation(rounds=2), tmp_path / "kept.db"
    override = lasting(ledger, rule=PlanRule())
    run(file, tmp_path / "a", override)
    spent = ledger.read_bytes()
    with pytest.raises(BudgetError, match=r"sites\.site-0.*one plan for life"):
        run(file, tmp_path / "b", override)
    assert ledger.read_bytes() == spent
    assert not (tmp_path / "b").exists()


def test_under_a_sum_each_plan_is_calibrated_at_its_share_of_delta(
    federation: Make, tmp_path: Path
) -> None:
    override = lasting(tmp_path / "kept.db", rule=SumRule(1e-4))
    budgets = run(federation(rounds=2), tmp_path / "a", override).budgets
    noise = [budgets[name].events[0].noise_multiplier for name in ("site-0", "site-1")]
    assert noise[0] > noise[1]
    assert 5.8 < budgets["site-0"].epsilon_allocated <= 6.0


def test_a_named_ledger_is_made_on_purpose(federation: Make, tmp_path: Path) -> None:
    override = f"sites.site-0.ledger='{tmp_path / 'none.db'}'"
    with pytest.raises(LedgerError, match=r"no such ledger.*fedpriv ledger init with --simulated"):
        run(federation(rounds=1), tmp_path / "a", override)
    for change, words in (
        ({"simulated": False}, "simulated"),
        ({"declared_size": 25}, "declared_size"),
        ({"unit": "patient"}, "unit"),
    ):
        override = lasting(tmp_path / f"{words}.db", **change)
        with pytest.raises(ConfigError, match=words):
            run(federation(rounds=1), tmp_path / "a", override)


def test_a_new_ledger_beside_it_is_no_fresh_budget(federation: Make, tmp_path: Path) -> None:
    file = federation(rounds=1)
    run(file, tmp_path / "a", lasting(tmp_path / "first.db"))
    override = lasting(tmp_path / "second.db", dataset_id="1" * 32)
    with pytest.raises(OverlapError, match=r"sites\.site-0.*24 with the ledger of data set"):
        run(file, tmp_path / "b", override)
    assert not (tmp_path / "b").exists()


def test_a_witness_is_told_and_asked(federation: Make, tmp_path: Path) -> None:
    file, witness = federation(rounds=1), tmp_path / "usb" / "witness.json"
    witness.parent.mkdir()
    override = lasting(tmp_path / "kept.db", witness)
    with pytest.raises(LedgerError, match=r"sites\.site-0.*none is named"):
        run(file, tmp_path / "a", override)
    overrides = (override, f"sites.site-0.witness='{witness}'")
    before = (tmp_path / "kept.db").read_bytes()
    run(file, tmp_path / "a", *overrides)
    (tmp_path / "kept.db").write_bytes(before)
    with pytest.raises(LedgerCorruptError, match=r"sites\.site-0.*back in time"):
        run(file, tmp_path / "b", *overrides)


def test_a_budget_too_small_for_the_plan_spends_nothing_anywhere(
    federation: Make, tmp_path: Path
) -> None:
    file = federation(rounds=2)
    ledger = tmp_path / "kept.db"
    Ledger.create(ledger, Terms("0" * 32, 24, "record", 1, 1e-3, 0.5, simulated=True)).close()
    with pytest.raises(BudgetError, match=r"sites\.site-1.*more than the budget 0\.5"):
        run(file, tmp_path / "run", f"sites.site-1.ledger='{ledger}'")
    assert not (tmp_path / "run").exists()
    with Ledger.open(ledger) as opened:
        assert opened.epsilon_allocated == 0


def test_a_site_may_allow_less_than_is_proposed(federation: Make, tmp_path: Path) -> None:
    outcome = run(federation(), tmp_path / "run", "sites.site-1.epsilon=2.0")
    one, two = outcome.budgets["site-0"], outcome.budgets["site-1"]
    assert two.epsilon_committed <= 2.0 < one.epsilon_committed <= 6.0
    assert two.events[0].noise_multiplier > one.events[0].noise_multiplier
    for report in (one, two):
        events = [Event(e.sample_rate, e.noise_multiplier, e.count) for e in report.events]
        assert epsilon_upper(events, report.delta) == pytest.approx(report.epsilon_spent)


def test_a_record_without_tokens_contributes_nothing_and_is_named_locally(
    federation: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = federation(rounds=1)
    path = file.parent / "site-0.jsonl"
    lines = path.read_text().splitlines()
    lines[6] = json.dumps({"note": "", "patient": 3})
    path.write_text("\n".join(lines) + "\n")
    run(file, tmp_path / "run")
    assert "site-0: 1 of 24 records give no example" in caplog.text
    assert "the text is empty (rows 7)" in caplog.text


def test_units_by_column(federation: Make, tmp_path: Path) -> None:
    outcome = run(
        federation(rounds=1),
        tmp_path / "run",
        "privacy.unit='patient'",
        "privacy.max_records_per_unit=2",
        *(f"sites.site-{i}.size=12" for i in range(2)),
    )
    report = outcome.budgets["site-0"]
    assert (report.unit, report.max_records_per_unit, report.declared_size) == ("patient", 2, 12)


def test_classification_reports_accuracy_and_auc(
    federation: Make, tmp_path: Path, model_folder: Make
) -> None:
    file = federation(rounds=2)
    for path in file.parent.glob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text(
            "".join(
                json.dumps({**row, "pain": "yes" if "pain" in row["note"] else "no"}) + "\n"
                for row in rows
            )
        )
    outcome = run(
        file,
        tmp_path / "run",
        f"model.name='{model_folder('bert')}'",
        "model.task=classification",
        "model.labels=['no', 'yes']",
        "data.columns={text='note', label='pain'}",
        "lora.target_modules=['query', 'value']",
    )
    last = outcome.rounds[-1]
    assert 0 <= last["eval_auc"] <= 1
    assert 0 <= last["eval_accuracy"] <= 1
    assert outcome.baseline.eval_auc is not None


@pytest.mark.parametrize(
    "settings", [[], ["job.sync=2", "denoise.where=site"]], ids=["sync-1", "sync-2"]
)
def test_what_leaves_a_site_does_not_depend_on_its_records_but_for_the_vector(
    federation: Make, tmp_path: Path, settings: list[str]
) -> None:
    """Law 1: two populations, the same requests; every field of every answer is equal."""
    file = federation(rounds=2)
    config = load_job(file, settings)
    rows = (file.parent / "site-0.jsonl").read_text().splitlines()
    (file.parent / "site-1.jsonl").write_text("\n".join(rows[:-9]) + "\n")  # fewer records
    directory = RunDirectory.create(tmp_path / "run", config, insecure_seed=None)
    pool = WorkerPool()
    job = Job(config, directory, pool)
    seen = []
    for section in config.sites:
        sites = Sites(config, directory.path, None, job.proposal.base_digest, 10**6)
        site = sites.open(section, pool)
        with InlineGrid({2: client_app(site)}, 1) as grid:
            job.strategy.offers.clear()
            job.strategy.min_sites = 1
            job.strategy.propose(grid)
            [offer] = job.strategy.offers.values()
            answers = [offer.model_dump()]
            for number in (1, 2):
                messages = job.strategy.requests(number, grid)
                [reply] = grid.send_and_receive(messages, timeout=60)
                content = reply.content
                assert set(content) == {"fedpriv", "arrays"}
                assert set(content["fedpriv"]) == {"body"}
                assert set(content["arrays"]) == {"000000"}
                assert content["arrays"]["000000"].shape == (job.update.size,)
                answers.append(json.loads(content["fedpriv"]["body"]))
        site.close()
        theirs = {"site", "dataset_id", "ledger_head"}  # names and hashes of released values
        seen.append([{k: v for k, v in a.items() if k not in theirs} for a in answers])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_other_precisions_run(
    federation: Make,
    tmp_path: Path,
    model_folder: Make,
    caplog: pytest.LogCaptureFixture,
    dtype: str,
    kind: str,
) -> None:
    overrides = [f"compute.dtype={dtype}", f"model.name='{model_folder(kind)}'"]
    file = federation(rounds=1)
    if kind == "bert":
        for path in file.parent.glob("*.jsonl"):
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            lines = [json.dumps({**row, "odd": row["patient"] % 2}) + "\n" for row in rows]
            path.write_text("".join(lines))
        overrides += [
            "model.task=classification",
            "model.labels=['0', '1']",
            "data.columns={text='note', label='odd'}",
            "lora.target_modules=['query']",
        ]
    outcome = run(file, tmp_path / "run", *overrides)
    assert {site["status"] for site in outcome.rounds[0]["sites"].values()} == {"ok"}
    assert np.isfinite(outcome.rounds[0]["eval_loss"])
    assert "failed" not in caplog.text  # no unit, and no step that released noise only


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_local_steps_of_one_site_are_the_rounds_they_replace(
    federation: Make, tmp_path: Path, name: str
) -> None:
    """Same samples, same noise, same optimiser: where it stands makes no difference."""
    file = federation(rounds=4, sites=1)
    settings = [f"optimizer.name={name}", "optimizer.schedule=linear", "privacy.clip_norm=0.5"]
    settings.append("compute.dtype=float64")  # only what is sent and kept is rounded to float32
    straight = run(file, tmp_path / "straight", *settings, insecure_seed=3)
    rounds = {"sgd": 2, "adamw": 1}[name]  # AdamW's state starts anew in every round
    local = [f"job.sync={4 // rounds}", f"job.rounds={rounds}"]
    moved = run(file, tmp_path / "local", *settings, *local, insecure_seed=3)
    adapters = [load_adapter(outcome) for outcome in (straight, moved)]
    assert adapters[0].keys() == adapters[1].keys()
    for key, value in adapters[0].items():
        assert np.allclose(value, adapters[1][key], rtol=1e-4, atol=1e-6)
    for site, report in straight.budgets.items():
        other = moved.budgets[site]
        assert other.epsilon_spent == report.epsilon_spent
        assert other.events[0].count == report.events[0].count == 4
    assert [row["bytes_up"] for row in moved.rounds] == pytest.approx(
        [row["bytes_up"] for row in straight.rounds[:rounds]], rel=0.02
    )


def load_adapter(outcome: Outcome) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return dict(load_file(outcome.run.path / "adapter" / "adapter_model.safetensors"))


@pytest.mark.slow
def test_sites_move_by_themselves_denoised_and_resumable(federation: Make, tmp_path: Path) -> None:
    file = federation(rounds=4)
    settings = [
        "job.sync=2",
        "lora.frozen_a=true",
        "denoise.where=site",
        "server_optimizer.momentum=0.5",
    ]
    whole = run(file, tmp_path / "whole", *settings, insecure_seed=3)
    stopped = Progress(round_done=Stop(2))
    with pytest.raises(KeyboardInterrupt):
        run(file, tmp_path / "parts", *settings, insecure_seed=3, progress=stopped)
    parts = run(file, tmp_path / "parts", *settings, insecure_seed=3, resume=True)
    assert adapter_bytes(parts) == adapter_bytes(whole)
    for report in whole.budgets.values():
        assert report.events[0].count == 8
        assert report.epsilon_spent == parts.budgets[report.site].epsilon_spent
    other = run(file, tmp_path / "raw", *settings, "denoise.where=off", insecure_seed=3)
    assert adapter_bytes(other) != adapter_bytes(whole)


@pytest.mark.slow
def test_with_a_frozen_a_nothing_else_is_trained(federation: Make, tmp_path: Path) -> None:
    outcome = run(federation(rounds=2), tmp_path / "run", "lora.frozen_a=true", insecure_seed=3)
    plain = run(federation(rounds=2), tmp_path / "plain", insecure_seed=3)
    again = run(federation(rounds=1), tmp_path / "again", "lora.frozen_a=true", insecure_seed=4)
    frozen, trained, other = (load_adapter(one) for one in (outcome, plain, again))
    for key in trained:
        if ".lora_A." in key:
            assert np.array_equal(frozen[key], other[key])
            assert not np.array_equal(frozen[key], trained[key])
        else:
            assert frozen[key].any()
    assert outcome.rounds[0]["bytes_up"] < 0.6 * plain.rounds[0]["bytes_up"]


def test_the_first_line_says_what_the_sites_allow(federation: Make, tmp_path: Path) -> None:
    from fedpriv_simulation.command import _opening

    plain = load_job(federation())
    assert "at most ε = 6 per site" in _opening(plain, tmp_path, None)
    assert "no site" not in _opening(plain, tmp_path, None)
    caps = [f"sites.site-{number}.epsilon={cap}" for number, cap in enumerate((2, 3.5))]
    shown = _opening(load_job(federation(), caps), tmp_path, None)
    assert "at most ε = 3.5 per site" in shown
    assert "privacy.epsilon is 6, and no site takes part for more than 3.5" in shown


def test_a_budget_is_not_spent_on_records_that_give_nothing(
    federation: Make, tmp_path: Path
) -> None:
    file = federation(rounds=1)
    path = file.parent / "site-1.jsonl"
    path.write_text("".join(json.dumps({"note": "" if i < 13 else "a"}) + "\n" for i in range(24)))
    with pytest.raises(DataError, match=r"sites\.site-1\.data: 13 of 24 records") as found:
        run(file, tmp_path / "run")
    assert found.value.file == file and not (tmp_path / "run").exists()
    answer = CliRunner().invoke(app, ["doctor", str(file), "--json"])
    findings = {row["what"]: row for row in json.loads(answer.stdout)}
    assert answer.exit_code == 2 and findings["records"]["ok"] is False
    assert "sites.site-1.data: 13 of 24 records" in findings["records"]["found"]
    file.write_text(file.read_text().replace("[data]", "[data]\nmax_empty = 0.6"))
    assert len(run(file, tmp_path / "run").rounds) == 1


@pytest.mark.parametrize("worse", [True, False])
def test_a_run_that_ends_worse_than_it_began_says_so(
    federation: Make, tmp_path: Path, worse: bool
) -> None:
    outcome, metrics = run(federation(rounds=1), tmp_path / "run"), tmp_path / "run/metrics.jsonl"
    last = {"eval_loss": outcome.baseline.eval_loss + (0.5 if worse else -0.5)}
    outcome = replace(outcome, rounds=[{**outcome.rounds[0], **last}])
    metrics.write_text(json.dumps({**json.loads(metrics.read_text()), **last}) + "\n")
    screen = Console(file=io.StringIO(), width=200)
    show(outcome, screen)
    page = write_report(outcome.run.path).read_text()
    said = "The model is worse than before: its loss on held-out records was"
    assert (said in screen.file.getvalue()) is (said in page) is worse  # type: ignore[attr-defined]
    assert summary(outcome)["worse"] is worse


@pytest.mark.parametrize("stop", [True, False])
def test_a_model_that_gets_worse_is_said_once_and_ends_the_run_where_that_is_wished(
    federation: Make,
    tmp_path: Path,
    stop: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured, calls = server_job.scores, count()

    def rising(*given: Any) -> dict[str, Any]:
        found = measured(*given)
        return {**found, "eval_loss": found["eval_loss"] + next(calls)}

    monkeypatch.setattr(server_job, "scores", rising)
    file, out = federation(rounds=6, extra="every = 2"), tmp_path / "run"
    wished = [f"evaluation.stop_when_worse={str(stop).lower()}"]
    outcome = run(file, out, *wished)
    said = [r.getMessage() for r in caplog.records if "worse than before training" in r.message]
    assert len(said) == 1 and said[0].endswith("begin anew with a lower learning rate.")
    before, now = outcome.baseline.eval_loss, outcome.rounds[1]["eval_loss"]
    assert f"its loss is {now:.3f}, and was {before:.3f}. What is spent stays spent." in said[0]
    assert len(outcome.rounds) == (2 if stop else 6)
    info = json.loads((out / "run.json").read_text())
    assert info["status"] == "finished"
    page = outcome.report.read_text()
    ended = "Ended after round 2 (evaluation.stop_when_worse). The model is worse"
    assert info.get("ended_early", "").startswith(ended if stop else "")
    assert ("Ended after round 2" in page) is stop
    for report in outcome.budgets.values():  # all slots of the plan stay charged
        assert report.epsilon_committed == pytest.approx(6, rel=0.02)
    with pytest.raises(RunError, match="is finished"):
        run(file, out, *wished, resume=True)


def test_the_closing_tables_tell_no_duration_where_records_are_private(
    federation: Make, tmp_path: Path
) -> None:
    outcome = run(federation(rounds=1, public=False), tmp_path / "run")
    screen = Console(file=io.StringIO(), width=200)
    show(outcome, screen)
    assert " down in 1 rounds\n" in screen.file.getvalue()  # type: ignore[attr-defined]
