"""Whole runs with a controller: what they leave, and how they go on after they were killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError, RawValueError
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.mechanism.privatised import public
from fedpriv_server.checkpoint import Checkpoint
from fedpriv_simulation.simulate import Outcome, Progress, simulate

Make = Callable[..., Any]
QUANTILE = '[controller]\nname = "quantile"\ngroups = "layers"\n'


def run(file: Path, out: Path, *overrides: str, **options: Any) -> Outcome:
    return simulate(load_job(file, overrides), out, source=file, **options)


class Stop:
    """A listener that presses Ctrl-C after a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, metrics: dict[str, Any]) -> None:
        if metrics["round"] == self.after:
            raise KeyboardInterrupt


def decisions(out: Path) -> list[Any]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["controller"] for line in lines]


def paid(out: Path) -> list[int]:
    """The slots that a site's ledger has paid for."""
    with Ledger.open(out / "sites" / "site-0" / "ledger.db", reading=True) as ledger:
        return [row.body["slot"] for row in ledger.rows() if row.kind == "reserve"]


@pytest.mark.slow
def test_a_run_that_was_stopped_decides_and_spends_the_same(
    federation: Make, tmp_path: Path
) -> None:
    """Also one that forgot its last round, as when it was killed before its checkpoint."""
    file = federation(rounds=4, extra=QUANTILE)
    straight, out = run(file, tmp_path / "straight", insecure_seed=3), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(file, out, insecure_seed=3, progress=Progress(round_done=Stop(1)))
    checkpoint = out / "checkpoint" / "latest.safetensors"
    first = checkpoint.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        run(file, out, insecure_seed=3, resume=True, progress=Progress(round_done=Stop(2)))
    checkpoint.write_bytes(first)
    resumed = run(file, out, insecure_seed=3, resume=True)
    assert decisions(out) == decisions(tmp_path / "straight")
    assert paid(out) == paid(tmp_path / "straight") == [0, 1, 2, 3]
    for site, report in straight.budgets.items():
        assert resumed.budgets[site].epsilon_spent == report.epsilon_spent
        assert resumed.budgets[site].ledger_rows == report.ledger_rows
    vectors = [Checkpoint.read(path / "checkpoint" / "latest.safetensors")
               for path in (out, tmp_path / "straight")]  # fmt: skip
    mine, other = (one.control.value for one in vectors if one.control is not None)
    assert mine.keys() == other.keys()
    assert all(np.array_equal(mine[key], other[key], equal_nan=True) for key in mine)


def test_a_run_says_what_was_decided_and_a_site_what_it_paid(
    federation: Make, tmp_path: Path
) -> None:
    finished = run(federation(extra=QUANTILE), tmp_path / "run")
    found = decisions(tmp_path / "run")
    assert len(found) == 3 and paid(tmp_path / "run") == [0, 1, 2]
    assert all(sum(one["weights"]) == pytest.approx(1) for one in found)
    assert all(len(one["clip_norms"]) == 2 for one in found)
    assert len({json.dumps(one) for one in found}) > 1
    for report in finished.budgets.values():
        assert 0 < report.epsilon_spent <= report.epsilon_committed * 1.001 <= 6.0 * 1.001


def test_a_run_without_a_controller_says_so(federation: Make, tmp_path: Path) -> None:
    run(federation(rounds=1), tmp_path / "run")
    assert decisions(tmp_path / "run") == [None]
    kept = Checkpoint.read(tmp_path / "run" / "checkpoint" / "latest.safetensors")
    assert kept.control is None


def test_a_checkpoint_keeps_no_raw_state_of_a_controller() -> None:
    raw: Any = {"clip norms": np.ones(2)}
    with pytest.raises(RawValueError, match=r"Checkpoint\.control"):
        Checkpoint("job", 1, public({}), {}, control=raw)
    assert Checkpoint("job", 1, public({}), {}, control=public(raw)).control is not None


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("controller.groups='layers'", "job.sync=2"), "job.sync"),
        (("controller.groups='layers'", "denoise.where='server'"), "denoise.where"),
        (("controller.fixed.clip_norms={nowhere=1.0}",), "nowhere"),
        (("controller.groups='adapters'", "job.method='pe-sgd'", "synthetic.data='made-up.jsonl'",
          "synthetic.size=4"), "controller"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_named_before_anything_is_spent(
    federation: Make, tmp_path: Path, overrides: tuple[str, ...], words: str
) -> None:
    file, out = federation(public=False), tmp_path / "run"
    (file.parent / "made-up.jsonl").write_text('{"note": "public words"}\n' * 4)
    with pytest.raises(ConfigError, match=words) as caught:
        run(file, out, *overrides)
    assert "controller" in str(caught.value)
    assert not list(out.rglob("ledger.db"))


def test_denoising_with_one_group_knows_the_noise(federation: Make, tmp_path: Path) -> None:
    """Of one group the noise is of one size, whatever its clip norm."""
    extra = '[controller]\nname = "quantile"\ngroups = "model"\n'
    finished = run(federation(rounds=2, extra=extra), tmp_path / "run", "denoise.where='server'")
    assert len(finished.rounds) == 2
    assert all(line["denoised"] is not None for line in finished.rounds)
