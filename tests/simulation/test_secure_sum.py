"""A job whose sites are added up: what it comes to, what it costs, how it goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError, RoundError
from fedpriv.models.vector import Vector
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.mechanism import execution
from fedpriv.privacy.mechanism.noise_share import SharedGrid
from fedpriv.privacy.mechanism.privatised import Privatised
from fedpriv.report.budget import read
from fedpriv.report.figures import upper
from fedpriv.report.received import verify
from fedpriv_client.shared_slots import SharedSlots
from fedpriv_simulation.command import show
from fedpriv_simulation.simulate import Outcome, simulate
from fedpriv_strategies.sum_of_set import SumOfSet, total_deviation

Make = Callable[..., Any]
SHARED = ("privacy.trust=secure-sum", "privacy.max_colluding=1")


def run(file: Path, out: Path, *overrides: str, **options: Any) -> Outcome:
    return simulate(load_job(file, [*SHARED, *overrides]), out, source=file, **options)


def adapter_bytes(outcome: Outcome) -> bytes:
    return (outcome.run.path / "adapter" / "adapter_model.safetensors").read_bytes()


def slots_of(out: Path, site: str) -> list[tuple[int, bool]]:
    """Those that a site reserved, and whether they were released."""
    job = json.loads((out / "run.json").read_text())["job_id"]
    with Ledger.open(out / "sites" / site / "ledger.db", reading=True) as ledger:
        return list(ledger.slots(job))


def test_the_screen_says_what_the_figures_alone_are(
    federation: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second claim is shown beside the first; many sites with the same figures have one row."""
    outcome = run(federation(rounds=1), tmp_path / "run")
    report = outcome.budgets["site-0"]
    show(outcome, Console(width=120))
    shown = capsys.readouterr().out
    assert "ε alone" in shown and upper(report.epsilon_alone_committed) in shown
    assert "site-1" in shown
    many = {f"s{i}": report for i in range(9)}
    show(replace(outcome, budgets=many), Console(width=120))
    shown = capsys.readouterr().out
    assert "each of 9" in shown and "s3" not in shown


def check_budgets(found: Outcome, slots: int) -> None:
    """Both figures stand in every report, and the one that trusts nobody is larger."""
    out = found.run.path
    for name in found.budgets:
        report = read(out / "sites" / name / "budget.json")
        verify(report)
        assert [event.count for event in report.events] == [slots]
        assert report.max_colluding == 1
        assert report.epsilon_alone_spent is not None
        assert report.epsilon_alone_committed is not None
        assert report.budget_alone is not None
        assert 0 < report.epsilon_spent <= report.epsilon_committed <= report.budget
        assert report.epsilon_spent < report.epsilon_alone_spent
        assert report.epsilon_alone_spent <= report.epsilon_alone_committed <= report.budget_alone


@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_a_run_adds_up_and_reports_both_figures(
    federation: Make, tmp_path: Path, numerics: str
) -> None:
    settings = f"privacy.numerics={numerics}"
    found = run(federation(rounds=2, sites=3), tmp_path / "run", settings)
    assert found.run.info["status"] == "finished"
    for row in found.rounds:
        assert {site["status"] for site in row["sites"].values()} == {"ok"}
    assert found.rounds[-1]["sites"]["site-0"]["epsilon_spent"] > 0
    check_budgets(found, 2)
    for name in found.budgets:
        assert slots_of(found.run.path, name) == [(0, True), (1, True)]
    assert "With trust, and alone" in found.report.read_text()


@pytest.mark.slow
def test_a_seeded_run_repeats(federation: Make, tmp_path: Path) -> None:
    file = federation(rounds=2, sites=3)
    first = run(file, tmp_path / "a", insecure_seed=5)
    again = run(file, tmp_path / "b", insecure_seed=5)
    other = run(file, tmp_path / "c", insecure_seed=6)
    assert adapter_bytes(first) == adapter_bytes(again) != adapter_bytes(other)


@pytest.fixture
def public_records(tmp_path: Path) -> str:
    """The override that names public records to begin with."""
    path = tmp_path / "public.jsonl"
    rows = [{"note": f"public words number {i} of many, {i * i}"} for i in range(210)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"synthetic.data={path}"


def pe_sgd(size: int) -> tuple[str, ...]:
    return "job.method=pe-sgd", f"synthetic.size={size}"


@pytest.mark.slow
@pytest.mark.parametrize(("numerics", "values"), [("default", 200), ("strict", 10)])
def test_pe_sgd_adds_up_in_less_than_a_kilobyte(
    federation: Make, tmp_path: Path, public_records: str, numerics: str, values: int
) -> None:
    file, settings = federation(rounds=2, sites=3), f"privacy.numerics={numerics}"
    found = run(file, tmp_path / "run", *pe_sgd(values), public_records, settings)
    assert found.run.info["status"] == "finished"
    check_budgets(found, 2)
    for row in found.rounds:
        assert {site["status"] for site in row["sites"].values()} == {"ok"}
        assert row["bytes_up"] < 3 * 1000  # that it is ready, and its share, of three sites


class Sums:
    """What sites summed up before the noise, and what the server made of their shares.

    Attributes:
        exact: of each share, in fine steps.
        means: as the model moved along them.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.exact: list[Any] = []
        self.means: list[Vector] = []
        self.grid: SharedGrid | None = None
        add, take = execution.add_share, SumOfSet.take

        def noted(total: Any, grid: SharedGrid, shares: int, csprng: Any) -> Any:
            self.exact.append(total.copy())
            self.grid = grid
            return add(total, grid, shares, csprng)

        def taken(sums: SumOfSet) -> Privatised[Vector]:
            found = take(sums)
            self.means.append(found.value.copy())
            return found

        monkeypatch.setattr(execution, "add_share", noted)
        monkeypatch.setattr(SumOfSet, "take", taken)


@pytest.mark.parametrize(
    "colluding",
    [1, pytest.param(0, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)],
)
def test_what_is_released_is_the_exact_sum_with_the_noise_of_one_site(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, colluding: int
) -> None:
    """With t = 0 of σC; with t of n colluding, n/(n − t) times its variance."""
    sums, sites = Sums(monkeypatch), 3
    settings = (f"privacy.max_colluding={colluding}", "lora.r=8")
    run(federation(rounds=2, sites=sites), tmp_path / "run", *settings, insecure_seed=1)
    assert (len(sums.exact), len(sums.means)) == (2 * sites, 2)
    grid = sums.grid
    assert grid is not None
    units = 0.3 * 24 * sites
    for number, mean in enumerate(sums.means):
        exact = sum(sums.exact[sites * number : sites * (number + 1)]) * grid.fine
        noise = mean.astype(float) * units - exact
        expected = grid.noise_multiplier * grid.clip_norm * (sites / (sites - colluding)) ** 0.5
        deviation = total_deviation(grid, sites, colluding)
        assert deviation == pytest.approx(expected, rel=0.02)
        assert noise.std() == pytest.approx(deviation, rel=5 / (2 * noise.size) ** 0.5)
        assert abs(noise.mean()) < 5 * deviation / noise.size**0.5
        assert np.abs(exact).max() > 0


def interrupted(file: Path, out: Path, *overrides: str, **options: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(file, out, *overrides, **options)
    assert json.loads((out / "run.json").read_text())["status"] == "interrupted"


def stop(calls: int, work: Callable[..., Any]) -> Callable[..., Any]:
    """Ctrl-C before that call of `work`, counted from 1."""
    made = [0]

    def stopped(*arguments: Any) -> Any:
        made[0] += 1
        if made[0] == calls:
            raise KeyboardInterrupt
        return work(*arguments)

    return stopped


@pytest.mark.slow
def test_an_interrupted_sum_is_asked_for_again_and_comes_to_the_same(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = federation(rounds=3, sites=3), tmp_path / "run"
    straight = run(file, tmp_path / "straight", insecure_seed=3)
    with monkeypatch.context() as patch:  # all shares are there, and nothing is done with them
        patch.setattr(SumOfSet, "take", stop(2, SumOfSet.take))
        interrupted(file, out, insecure_seed=3)
    kept = json.loads((out / "checkpoint" / "sum.json").read_text())
    assert (kept["round"], kept["slot"], len(kept["request"]["members"])) == (2, 1, 3)
    resumed = run(file, out, resume=True, insecure_seed=3)
    assert adapter_bytes(resumed) == adapter_bytes(straight)
    for name, report in straight.budgets.items():
        assert resumed.budgets[name].epsilon_spent == report.epsilon_spent
        assert resumed.budgets[name].epsilon_alone_spent == report.epsilon_alone_spent
        assert resumed.budgets[name].ledger_rows == report.ledger_rows


@pytest.mark.slow
def test_keys_that_an_interruption_lost_cost_a_spare_slot(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The set was told, and no site had paid yet."""
    file, out, spare = federation(rounds=2, sites=2), tmp_path / "run", "privacy.spare_slots=1"
    with monkeypatch.context() as patch:
        patch.setattr(SumOfSet, "share_bytes", property(stop(2, lambda _: 0)))
        interrupted(file, out, spare)
    resumed = run(file, out, spare, resume=True)
    assert [row["round"] for row in resumed.rounds] == [1, 2]
    for name in resumed.budgets:
        assert slots_of(out, name) == [(0, True), (2, True)]


@pytest.mark.slow
@pytest.mark.parametrize("spare", [0, 1])
def test_a_site_that_fails_amid_its_share_voids_the_slot_for_all(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: int
) -> None:
    file, out = federation(rounds=2, sites=3), tmp_path / "run"
    compute, settings = SharedSlots._computed, f"privacy.spare_slots={spare}"

    def failing(slots: SharedSlots, job: Any, ready: Any, members: Any) -> Any:
        if (slots._name, ready.slot_id.slot) == ("site-1", 0):
            slots.forget()  # as a process that was killed
        return compute(slots, job, ready, members)

    monkeypatch.setattr(SharedSlots, "_computed", failing)
    if not spare:
        with pytest.raises(RoundError, match=r"slot 0 is void.*site-1.*privacy\.spare_slots") as e:
            run(file, out, settings)
        assert not e.value.may_heal
        assert slots_of(out, "site-0") == [(0, True)]
        assert slots_of(out, "site-1") == [(0, False)]
        return
    found = run(file, out, settings)
    assert [row["round"] for row in found.rounds] == [1, 2]
    assert slots_of(out, "site-0") == [(0, True), (1, True), (2, True)]
    assert slots_of(out, "site-1") == [(0, False), (1, True), (2, True)]
    for name in found.budgets:
        assert found.budgets[name].epsilon_spent == found.budgets["site-0"].epsilon_spent


def test_a_runtime_that_closes_sites_between_messages_is_refused(
    federation: Make, tmp_path: Path
) -> None:
    grid: Any = object()
    with pytest.raises(ConfigError, match=r"privacy\.trust.*fedpriv simulate"):
        run(federation(), tmp_path / "run", grid=grid)
    assert not (tmp_path / "run").exists()


@pytest.mark.nightly
@pytest.mark.parametrize(("method", "workers"), [("dp-lora", 2), ("pe-sgd", 1)])
def test_processes_make_what_threads_make(
    federation: Make, tmp_path: Path, public_records: str, method: str, workers: int
) -> None:
    file = federation(rounds=2, sites=6)
    settings = (*pe_sgd(6), public_records) if method == "pe-sgd" else ()
    threads = run(file, tmp_path / "threads", *settings, insecure_seed=7)
    settings = (*settings, "job.engine=ray", f"compute.workers={workers}")
    processes = run(file, tmp_path / "processes", *settings, insecure_seed=7)
    assert adapter_bytes(processes) == adapter_bytes(threads)
    check_budgets(processes, 2)


KILLING = """
import os, signal, subprocess, sys
from pathlib import Path
from fedpriv.config.load import load_job
from fedpriv_simulation import simulate as module
from fedpriv_strategies.sum_of_set import total_deviation
from fedpriv_strategies.secure_rounds import SecureRounds

form = SecureRounds._form_set

def killing(self, number, grid):
    request = form(self, number, grid)
    if request.slot == 1:
        found = subprocess.check_output(["pgrep", "-s", "0", "ray::Host"], text=True)
        os.kill(int(found.split()[0]), signal.SIGKILL)
    return request

SecureRounds._form_set = killing
file, out = map(Path, sys.argv[1:3])
config = load_job(file, [*sys.argv[3:], "job.engine=ray", "compute.workers=2", "job.min_sites=1",
                         "privacy.spare_slots=2"])
found = module.simulate(config, out, source=file)
print([{n: s["status"] for n, s in row["sites"].items()} for row in found.rounds])
"""


@pytest.mark.nightly
def test_a_process_that_dies_between_set_and_share_costs_a_spare_slot(
    federation: Make, tmp_path: Path
) -> None:
    file, out = federation(rounds=3, sites=3), tmp_path / "run"
    command = [sys.executable, "-c", KILLING, str(file), str(out), *SHARED]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    assert done.returncode == 0, done.stderr
    (rounds,) = map(eval, done.stdout.splitlines()[-1:])
    assert set(rounds[-1].values()) == {"ok"}
    slots = {name: slots_of(out, name) for name in rounds[-1]}
    assert all((1, True) not in found or (2, True) in found for found in slots.values())
    assert any((1, True) not in found for found in slots.values())
