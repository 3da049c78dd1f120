"""PE-SGD on a tiny model: what travels, what is spent, how it goes on, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.methods.pe_sgd.span import Span
from fedpriv.report.budget import read
from fedpriv.report.received import verify
from fedpriv.synthetic.records import SyntheticSet
from fedpriv_simulation.simulate import Outcome, Progress, simulate

Make = Callable[..., Any]


def run(file: Path, out: Path, *overrides: str, **options: Any) -> Outcome:
    settings = ["job.method=pe-sgd", "synthetic.size=6", *overrides]
    return simulate(load_job(file, settings), out, source=file, **options)


def adapter_bytes(outcome: Outcome) -> bytes:
    return (outcome.run.path / "adapter" / "adapter_model.safetensors").read_bytes()


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def given(tmp_path: Path) -> str:
    """The override that names public records to begin with."""
    path = tmp_path / "public.jsonl"
    rows = [{"note": f"public words number {i} of many"} for i in range(9)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"synthetic.data={path}"


def test_a_span_is_computed_once_a_round_and_not_once_a_site(
    federation: Make, tmp_path: Path, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, original = [], Span.__init__

    def counted(span: Span, *arguments: Any) -> None:
        made.append(span)
        original(span, *arguments)

    monkeypatch.setattr(Span, "__init__", counted)
    file = federation(rounds=3)
    assert len(load_job(file).sites) == 2
    run(file, tmp_path / "run", given, "compute.workers=1", insecure_seed=1)
    assert len(made) == 3


def test_a_set_of_public_records_stays_as_it_is(
    federation: Make, tmp_path: Path, given: str
) -> None:
    out = tmp_path / "run"
    found = run(federation(rounds=3), out, given, insecure_seed=1)
    assert found.run.info["status"] == "finished"
    lines = metrics(out)
    assert [line["synthetic"] for line in lines] == [None] * 3
    assert {site["status"] for line in lines for site in line["sites"].values()} == {"ok"}
    assert lines[-1]["eval_loss"] != found.run.info["baseline"]["eval_loss"]
    # Six floats a site, and the body of a reply.
    assert lines[-1]["bytes_up"] < 2 * (6 * 4 + 400)
    assert lines[1]["bytes_down"] < lines[0]["bytes_down"]  # the set was sent once
    kept = (out / "synthetic.jsonl").read_text().splitlines()
    public = Path(given.partition("=")[2]).read_text().replace('"note"', '"text"').splitlines()
    assert len(kept) == 6
    assert set(kept) < set(public)
    for name in ("site-0", "site-1"):
        report = read(out / "sites" / name / "budget.json")
        verify(report)
        assert [event.count for event in report.events] == [3]


@pytest.mark.nightly
def test_sites_that_are_closed_between_rounds_have_the_set(
    federation: Make, tmp_path: Path, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process with more sites than it keeps open is sent the set once, as any other."""
    monkeypatch.setattr("fedpriv_simulation.hosts.OPEN", 4)
    file = federation(rounds=2, sites=5)
    threads = run(file, tmp_path / "threads", given, insecure_seed=1)
    settings = (given, "job.engine=ray", "compute.workers=1")
    processes = run(file, tmp_path / "processes", *settings, insecure_seed=1)
    assert adapter_bytes(processes) == adapter_bytes(threads)
    down = [[line["bytes_down"] for line in found.rounds] for found in (threads, processes)]
    assert down[0] == down[1]


@pytest.mark.slow
def test_local_steps_of_one_site_are_those_of_a_frozen_basis(
    federation: Make, tmp_path: Path, given: str
) -> None:
    """And in a round of three steps, as many bytes leave as in a round of one."""
    file = federation(rounds=2, sites=1)
    extra = (given, "optimizer.name=sgd", "optimizer.lr=1.0")
    found = run(file, tmp_path / "three", *extra, "job.sync=3", insecure_seed=1)
    assert found.run.info["status"] == "finished"
    report = read(tmp_path / "three" / "sites" / "site-0" / "budget.json")
    assert [event.count for event in report.events] == [6]
    assert metrics(tmp_path / "three")[0]["bytes_up"] < 6 * 4 + 400
    same = run(file, tmp_path / "again", *extra, "job.sync=3", insecure_seed=1)
    assert adapter_bytes(found) == adapter_bytes(same)


@pytest.mark.slow
def test_a_warm_start_is_the_same_for_every_method(
    federation: Make, tmp_path: Path, given: str
) -> None:
    """And what private steps at a rate of nothing leave of it: AdamW's passes over the set."""
    found = {}
    for name, method, steps in (("a", "dp-lora", 5), ("b", "pe-sgd", 5), ("c", "pe-sgd", 0)):
        settings = (given, f"job.method={method}", f"synthetic.warm_start={steps}")
        out = run(
            federation(rounds=1), tmp_path / name, *settings, "optimizer.lr=1e-12", insecure_seed=1
        )
        checkpoint = out.run.checkpoint()
        assert checkpoint is not None
        found[name] = checkpoint.tensors.value["vector"]
    assert (found["a"] - found["b"]).abs().max() < 1e-8
    assert (found["a"] - found["c"]).abs().max() > 0.005


@pytest.mark.slow
def test_a_job_that_stops_before_its_first_round_goes_on_with_the_same_beginning(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another beginning would be another request for a slot that is paid."""
    from fedpriv.synthetic.language_model import LanguageModelGenerator
    from fedpriv_strategies.rounds import Rounds

    def stop(self: Any, server_round: int, replies: Any) -> None:
        list(replies)
        raise KeyboardInterrupt

    file, out = federation(rounds=1), tmp_path / "run"
    evolving = ("synthetic.generator.kind=model", "synthetic.warm_start=2")
    with monkeypatch.context() as patch:
        patch.setattr(Rounds, "_take", stop)
        with pytest.raises(KeyboardInterrupt):
            run(file, out, *evolving, insecure_seed=1)
    monkeypatch.setattr(LanguageModelGenerator, "random", lambda *_: pytest.fail("made again"))
    found = run(file, out, *evolving, insecure_seed=1, resume=True)
    assert {site["status"] for site in found.rounds[0]["sites"].values()} == {"ok"}
    assert [event.count for event in found.budgets["site-0"].events] == [1]


@pytest.mark.slow
def test_it_evolves_and_a_killed_run_goes_on_where_it_was(federation: Make, tmp_path: Path) -> None:
    file, evolving = federation(rounds=4), ("synthetic.generator.kind=model",)
    whole = run(file, tmp_path / "whole", *evolving, insecure_seed=3)
    digests = [line["synthetic"]["digest"] for line in metrics(tmp_path / "whole")]
    assert len(set(digests)) == 4
    assert [line["synthetic"]["made"] for line in metrics(tmp_path / "whole")] == [3] * 4

    def interrupt(metrics: Any) -> None:
        if metrics["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(
            file,
            tmp_path / "halves",
            *evolving,
            insecure_seed=3,
            progress=Progress(round_done=interrupt),
        )
    resumed = run(file, tmp_path / "halves", *evolving, insecure_seed=3, resume=True)
    assert [line["synthetic"]["digest"] for line in metrics(tmp_path / "halves")] == digests
    made = (tmp_path / "halves" / "synthetic.jsonl").read_text().splitlines()
    assert SyntheticSet(map(json.loads, made)).digest == digests[-1]
    assert adapter_bytes(resumed) == adapter_bytes(whole)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("job.method=dp-lora",), "has nothing to do"),
        (("synthetic.size=6",), "is missing"),
        (("synthetic.generator.kind=model", "denoise.where=server"), "noise of one known size"),
        (
            ("synthetic.generator.kind=model", "job.sync=2", "optimizer.weight_decay=0.1"),
            "coefficients, which are no weights",
        ),
    ],
)
def test_settings_that_can_not_work_are_named(
    federation: Make, tmp_path: Path, overrides: tuple[str, ...], words: str, given: str
) -> None:
    extra = () if overrides == ("synthetic.size=6",) else (given,)
    with pytest.raises(ConfigError, match=words):
        run(federation(), tmp_path / "run", *extra, *overrides)
    assert not (tmp_path / "run").exists()


def test_too_few_public_records_are_counted(federation: Make, tmp_path: Path, given: str) -> None:
    with pytest.raises(ConfigError, match="has 9 records, and the set needs 20"):
        run(federation(), tmp_path / "run", given, "synthetic.size=20")


def test_the_set_is_neither_reported_nor_private(federation: Make, tmp_path: Path) -> None:
    file = federation()
    config = load_job(file)
    with pytest.raises(ConfigError, match="would train on the records that are reported"):
        run(file, tmp_path / "run", f"synthetic.data={config.evaluation.data}")
    private = f"synthetic.data={config.sites[0].data}"
    with pytest.raises(ConfigError, match="nobody paid for"):
        run(file, tmp_path / "run", private, "job.data_is_public=false")


def test_a_generator_that_makes_nothing_stops_the_job_before_it_begins(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedpriv.synthetic.language_model import LanguageModelGenerator

    monkeypatch.setattr(LanguageModelGenerator, "random", lambda self, count, seed: [])
    with pytest.raises(FedprivError, match="0 usable new records of 6"):
        run(federation(), tmp_path / "run", "synthetic.generator.kind=model")
    assert not list((tmp_path / "run").rglob("ledger.db"))
