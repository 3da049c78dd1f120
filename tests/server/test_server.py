"""Evaluation, checkpoints, the grid and the strategy under faults."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpriv.config.load import load_job
from fedpriv.errors import RoundError, RunError
from fedpriv.plain_training.scores import area_under_curve
from fedpriv.privacy.ledger.ledger import Head
from fedpriv.privacy.mechanism.privatised import TrustModel, public
from fedpriv.private_training.pool import WorkerPool
from fedpriv.protocol import FAILED
from fedpriv.public_update.config import OptimizerSection
from fedpriv.public_update.update import VectorOptimizer
from fedpriv_client.app import client_app
from fedpriv_server.checkpoint import Checkpoint
from fedpriv_server.evaluation import evaluate
from fedpriv_server.job import Job
from fedpriv_server.run_directory import RunDirectory
from fedpriv_simulation.inline import InlineGrid
from fedpriv_simulation.sites import Sites
from fedpriv_strategies.messages import TRAIN, as_arrays

Make = Callable[..., Any]


def test_the_loss_is_the_mean_over_all_target_tokens(make_worker: Make) -> None:
    from fedpriv.data.encode import Example

    worker = make_worker("llama")
    rng = np.random.default_rng(0)
    examples = []
    for n in (40, 5, 17):
        ids = rng.integers(3, 250, size=n).tolist()
        examples.append(Example(ids, [-100, *ids[1:]]))
    scores = evaluate(worker, examples, public(worker.vector.read()))
    total, right, count = 0.0, 0, 0
    for example in examples:
        ids = torch.tensor([example.input_ids])
        logits = worker.model(input_ids=ids).logits[0, :-1]
        total += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        right += int((logits.argmax(-1) == ids[0, 1:]).sum())
        count += len(example.input_ids) - 1
    assert scores.eval_loss == pytest.approx(total / count, rel=1e-6)
    assert scores.eval_accuracy == right / count
    assert scores.eval_auc is None


def test_the_area_under_the_curve() -> None:
    truth = torch.tensor([0, 0, 1, 1])
    assert area_under_curve(torch.tensor([0.1, 0.2, 0.3, 0.4]), truth) == 1.0
    assert area_under_curve(torch.tensor([0.4, 0.3, 0.2, 0.1]), truth) == 0.0
    assert area_under_curve(torch.tensor([0.5, 0.5, 0.5, 0.5]), truth) == 0.5
    assert area_under_curve(torch.tensor([0.1, 0.3, 0.2, 0.4]), truth) == 0.75
    assert area_under_curve(torch.tensor([0.1]), torch.tensor([1])) is None


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_an_optimiser_goes_on_from_its_state(name: Any, tmp_path: Path) -> None:
    settings = OptimizerSection(name=name, lr=0.1, momentum=0.9, weight_decay=0.01)
    drawn = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    gradients = [public(gradient) for gradient in drawn]
    straight = VectorOptimizer(settings, public(np.ones(5, dtype=np.float32)))
    for gradient in gradients:
        straight.step(gradient)
    first = VectorOptimizer(settings, public(np.ones(5, dtype=np.float32)))
    for gradient in gradients[:3]:
        first.step(gradient)
    path = tmp_path / "c" / "latest.safetensors"
    Checkpoint("job", 3, first.state(), {"a": Head(4, "f" * 64)}).write(path)
    found = Checkpoint.read(path)
    assert (found.job_id, found.round, found.heads) == ("job", 3, {"a": Head(4, "f" * 64)})
    second = VectorOptimizer(settings, public(np.zeros(5, dtype=np.float32)))
    second.restore(found.tensors)
    for gradient in gradients[3:]:
        second.step(gradient)
    assert np.array_equal(straight.vector.value, second.vector.value)
    assert second.vector.trust_model == TrustModel.RESTORED


MEMORY = """
import resource, sys
from pathlib import Path
import torch, safetensors.torch
from fedpriv.privacy.mechanism.privatised import public
from fedpriv_server.checkpoint import Checkpoint

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

tensors = public({"vector": torch.ones(16 << 20)})
before = peak()
Checkpoint("job", 1, tensors, {}).write(Path(sys.argv[1]))
print(peak() - before)
"""


@pytest.mark.slow
def test_writing_a_checkpoint_takes_no_second_copy(tmp_path: Path) -> None:
    path = tmp_path / "latest.safetensors"
    grown = subprocess.check_output([sys.executable, "-c", MEMORY, str(path)], text=True)
    assert path.stat().st_size > (16 << 20) * 4
    assert int(grown) < (16 << 20) * 4 / 2


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x08\x00\x00\x00\x00\x00\x00\x00{}"])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "latest.safetensors"
    path.write_bytes(content)
    with pytest.raises(RunError, match="is not a checkpoint"):
        Checkpoint.read(path)


class Setting:
    """A job of two sites with one private record set each, ready to run."""

    def __init__(self, file: Path, out: Path, *overrides: str) -> None:
        self.config = load_job(file, overrides)
        self.run = RunDirectory.create(out, self.config, insecure_seed=None)
        pool = WorkerPool()
        self.job = Job(self.config, self.run, pool)
        self.sites = [
            Sites(self.config, self.run.path, None, self.job.proposal.base_digest, 10**6).open(
                section, pool
            )
            for section in self.config.sites
        ]
        self.apps = {i: client_app(site) for i, site in enumerate(self.sites, start=2)}

    def close(self) -> None:
        for site in self.sites:
            site.close()


def broken_app(behaviour: Callable[[Message], Message], healthy: ClientApp) -> ClientApp:
    """Answers proposals like a healthy site and step requests as told."""
    app = ClientApp()
    app.query()(lambda message, context: healthy(message, context))
    app.train()(lambda message, context: behaviour(message))
    return app


def reply_with(content: RecordDict) -> Callable[[Message], Message]:
    return lambda message: Message(content, reply_to=message)


def crash(message: Message) -> Message:
    raise RuntimeError("site fell over")


FAILURE = RecordDict({"fedpriv": ConfigRecord({"body": FAILED.model_dump_json()})})
NO_REPLY = "no reply"  # the time of the round is over before there is one
FAULTS: dict[str, tuple[Callable[[Message], Message], str]] = {
    "no content": (reply_with(RecordDict()), "unusable"),
    "failed": (reply_with(FAILURE), "refused: failed (StepFailedError)"),
    "crash": (crash, "unusable"),
    NO_REPLY: (crash, NO_REPLY),
}


class ForgetfulGrid(InlineGrid):
    """Of what is asked of the second site in a round, nothing comes in time."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        in_time = [
            message
            for message in messages
            if (message.metadata.message_type, message.metadata.dst_node_id) != (TRAIN, 3)
        ]
        return super().send_and_receive(in_time, timeout=timeout)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_round_goes_on_without_a_broken_site(
    federation: Make, tmp_path: Path, fault: str
) -> None:
    setting = Setting(federation(rounds=2), tmp_path / "run", "job.min_sites=1")
    behaviour, status = FAULTS[fault]
    setting.apps[3] = broken_app(behaviour, setting.apps[3])
    rows: list[dict[str, Any]] = []
    with (ForgetfulGrid if fault == NO_REPLY else InlineGrid)(setting.apps, 2) as grid:
        setting.job.execute(grid, rows.append)
    setting.close()
    assert len(rows) == 2
    assert {row["sites"]["site-0"]["status"] for row in rows} == {"ok"}
    assert {row["sites"]["site-1"]["status"] for row in rows} == {status}


@pytest.mark.parametrize(
    "vector",
    [np.full(3, 1.0), np.array([math.nan]), np.zeros((2, 2)), np.array([1e300])],
)
def test_a_bad_update_is_not_used(federation: Make, tmp_path: Path, vector: np.ndarray) -> None:
    setting = Setting(federation(rounds=1), tmp_path / "run", "job.min_sites=1")
    healthy = setting.apps[3]

    def lie(message: Message) -> Message:
        answer = setting.sites[1].step  # the real answer, with another vector
        reply = client_app(setting.sites[1])(message, None)  # type: ignore[arg-type]
        assert answer is not None
        bad = np.resize(vector, setting.job.update.size) if vector.size == 1 else vector
        reply.content["arrays"] = ArrayRecord({"000000": Array(bad)})
        return reply

    setting.apps[3] = broken_app(lie, healthy)
    rows: list[dict[str, Any]] = []
    with InlineGrid(setting.apps, 1) as grid:
        setting.job.execute(grid, rows.append)
    setting.close()
    assert rows[0]["sites"]["site-1"]["status"] == "unusable"
    assert np.isfinite(setting.job.update.vector.value).all()


def test_too_few_replies_change_nothing_and_can_be_resumed(
    federation: Make, tmp_path: Path
) -> None:
    setting = Setting(federation(rounds=2), tmp_path / "run")
    before = setting.job.update.vector
    setting.apps[3] = broken_app(crash, setting.apps[3])
    with InlineGrid(setting.apps, 1) as grid, pytest.raises(RoundError, match="1 usable replies"):
        setting.job.execute(grid, lambda row: None)
    setting.close()
    assert np.array_equal(before.value, setting.job.update.vector.value)
    assert setting.run.info["status"] == "interrupted"


def test_a_job_that_ends_on_a_full_disk_does_not_go_on_for_its_readers(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting(federation(rounds=2), tmp_path / "run")

    def full(*arguments: Any) -> None:
        raise RunError("no space left")

    monkeypatch.setattr(setting.run, "save", full)
    with InlineGrid(setting.apps, 1) as grid, pytest.raises(RunError, match="no space left"):
        setting.job.execute(grid, lambda row: None)
    setting.close()
    assert setting.run.info["status"] == "interrupted"


@pytest.mark.parametrize("error", [RunError("no space left"), RuntimeError("out of memory")])
def test_a_job_that_can_not_keep_its_adapter_does_not_go_on_for_its_readers(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    setting = Setting(federation(rounds=2), tmp_path / "run")
    setting.apps[3] = broken_app(crash, setting.apps[3])

    def unable() -> None:
        raise error

    monkeypatch.setattr(setting.job, "save", unable)
    with InlineGrid(setting.apps, 1) as grid, pytest.raises(RoundError, match="1 usable replies"):
        setting.job.execute(grid, lambda row: None)
    setting.close()
    assert json.loads((setting.run.path / "run.json").read_text())["status"] == "interrupted"


def test_too_few_offers_stop_the_job_before_anything_is_spent(
    federation: Make, tmp_path: Path
) -> None:
    setting = Setting(federation(rounds=2), tmp_path / "run")
    object.__setattr__(setting.sites[1].settings.limits, "max_steps", 1)
    why = r"node 3: refused: max-steps \(LimitError\)"
    with InlineGrid(setting.apps, 1) as grid, pytest.raises(RoundError, match=why):
        setting.job.execute(grid, lambda row: None)
    assert all(site.ledger.epsilon_allocated == 0 for site in setting.sites)
    setting.close()


def test_rounds_need_nothing_of_flower_but_a_grid(federation: Make, tmp_path: Path) -> None:
    """Without the job around them: the same rounds, the same ledgers."""
    setting = Setting(federation(rounds=2), tmp_path / "run")
    with InlineGrid(setting.apps, 1) as grid:
        before = setting.job.update.vector.value
        for number in (1, 2):
            setting.job.strategy.run(number, grid)
    assert not np.array_equal(before, setting.job.update.vector.value)
    for site in setting.sites:
        assert site.ledger.slots(setting.job.proposal.job_id) == [(0, True), (1, True)]
    setting.close()


def test_the_grid_copies_contents(tmp_path: Path) -> None:
    seen = []
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        seen.append(message.content)
        return Message(message.content, reply_to=message)

    content = RecordDict({"arrays": as_arrays(public(np.ones(3, dtype=np.float32)))})
    with InlineGrid({2: app}, 1) as grid:
        [reply] = grid.send_and_receive([Message(content, 2, "train", group_id="1")])
    assert seen[0] is not content
    assert reply.content is not seen[0]
    assert list(grid.get_node_ids()) == [2]
