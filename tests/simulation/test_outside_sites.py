"""Sites that take no part: what they are told, and that nothing of them is inside."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError, DataError
from fedpriv.methods.proposal import job_recipe
from fedpriv.personal.records import to_test_on
from fedpriv.plain_training.scores import score
from fedpriv.private_training.pool import make_worker
from fedpriv.report.html import write_report
from fedpriv_server.own_records import read_site, spec_of
from fedpriv_simulation.command import show, summary
from fedpriv_simulation.simulate import Outcome, simulate

Make = Callable[..., Any]
OUTSIDE = '[[outside]]\nname = "new"\ndata = "new.jsonl"\n'


def with_outside(make: Make, first: int = 500, extra: str = "", **options: Any) -> Path:
    """A federation beside whose sites is one that takes no part, with notes from `first` on."""
    file: Path = make(rounds=1, extra=OUTSIDE + extra, **options)
    write_outside(file, first)
    return file


def write_outside(file: Path, first: int) -> None:
    rows = [{"note": f"patient {first + i} has a cough", "patient": first + i} for i in range(12)]
    (file.parent / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(file: Path, out: Path, *overrides: str, **options: Any) -> Outcome:
    return simulate(load_job(file, overrides), out, source=file, **options)


def on_its_page(out: Path) -> list[str]:
    """The figures of the outside site's page; it has one for itself alone."""
    page = out / "private" / "new" / "evaluation.html"
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    text = page.read_text()
    assert "Not to leave this house" in text and "took no part" in text
    return re.findall(r'<data value="([^"]+)"', text)


def elsewhere(out: Path) -> dict[Path, bytes]:
    files = [path for path in out.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in files if "private" not in path.parts}


@pytest.mark.slow
def test_the_coordinator_sees_scores_of_public_records_alone(
    federation: Make, tmp_path: Path
) -> None:
    for public in (True, False):
        out = tmp_path / f"run-{public}"
        outcome = run(with_outside(federation, public=public), out)
        before, _, after, _ = on_its_page(out)  # loss and accuracy, of base and adapter
        assert before != after
        losses = before.encode(), after.encode()
        found = {p for p, text in elsewhere(out).items() if any(loss in text for loss in losses)}
        told = json.loads((out / "run.json").read_text()).get("outside", {})
        console = Console(record=True)
        show(outcome, console)
        said = "Loss at outside sites" in console.export_text()
        page = (out / "report.html").read_text()
        report = "Outside sites" in page
        if public:
            assert {path.name for path in found} == {"run.json", "report.html"}
            assert summary(outcome)["outside"]["new"] == {
                "base": float(before),
                "federated": float(after),
            }
            assert told["new"]["records"] == 12 and report and said
            info = json.loads((out / "run.json").read_text())
            info["outside"]["new"]["models"]["federated"]["eval_loss"] = None  # it diverged
            (out / "run.json").write_text(json.dumps(info))
            dashes = write_report(out).read_text().count("<td>–</td>")
            assert dashes == page.count("<td>–</td>") + 1
        else:
            assert not found and not told and not report and not said
            assert not summary(outcome)["outside"]


@pytest.mark.slow
def test_the_scores_are_those_of_all_its_records_or_of_the_held_out_ones(
    federation: Make, tmp_path: Path
) -> None:
    file = with_outside(federation)
    for number, held_out in enumerate((None, 0.4)):
        overrides = [] if held_out is None else [f"outside.new.held_out={held_out}"]
        outcome = run(file, tmp_path / str(number), *overrides)
        config = load_job(file, overrides)
        worker, spec = make_worker(job_recipe(config)), spec_of(config)
        own = read_site(config.outside[0], spec, tmp_path / "cache")
        records = own.training if held_out is None else own.held_out
        examples, _ = to_test_on(records, spec, worker.base.tokenizer, key="")
        expected = score(worker, examples, worker.initial).eval_loss
        assert outcome.outside["new"].losses["base"] == pytest.approx(expected, rel=1e-6)
        assert outcome.outside["new"].records == len(records)


@pytest.mark.slow
def test_no_released_value_depends_on_an_outside_sites_records(
    federation: Make, tmp_path: Path
) -> None:
    file, found = with_outside(federation), []
    for number, first in enumerate((500, 900)):
        write_outside(file, first)
        outcome = run(file, tmp_path / str(number), insecure_seed=1)
        rows = [{**row, "seconds": 0} for row in outcome.rounds]
        adapter = outcome.run.path / "adapter" / "adapter_model.safetensors"
        found.append((rows, adapter.read_bytes(), outcome.outside["new"].losses["base"]))
    assert found[0][:2] == found[1][:2] and found[0][2] != found[1][2]


def test_a_patient_is_not_inside_and_outside(federation: Make, tmp_path: Path) -> None:
    """Known by its id, whatever the texts are; nobody is told which one it is."""
    file = with_outside(federation, first=11, public=False)  # 11 is the last patient of each site
    patients = ["privacy.unit=patient"]
    with pytest.raises(ConfigError, match="holds 1 of 12 units that are also at site-0") as caught:
        run(file, tmp_path / "run", *patients)
    assert caught.value.key == "outside.new.data" and "11" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    write_outside(file, 12)
    run(file, tmp_path / "run", *patients)


@pytest.mark.slow
def test_a_text_is_not_inside_and_outside(federation: Make, tmp_path: Path) -> None:
    """A single one of private records, and more than one in ten of public ones."""
    for public, copies in ((False, 1), (True, 2)):
        file = with_outside(federation, public=public)
        inside = (file.parent / "site-1.jsonl").read_text().splitlines(keepends=True)
        with (file.parent / "new.jsonl").open("a") as stream:
            stream.writelines(inside[:copies])
        with pytest.raises(ConfigError, match=f"{copies} of {12 + copies} units"):
            run(file, tmp_path / "run")
    write_outside(file, 500)
    with (file.parent / "new.jsonl").open("a") as stream:
        stream.write(inside[0])
    run(file, tmp_path / "run")


def test_public_records_are_none_of_an_outside_site(federation: Make, tmp_path: Path) -> None:
    file = with_outside(federation, public=False)
    with pytest.raises(ConfigError, match=r"also outside\.new\.data"):
        load_job(file, ["evaluation.data=new.jsonl"])
    copied = file.parent / "copied.jsonl"
    copied.write_text((file.parent / "new.jsonl").read_text() + '{"note": "of nobody"}\n')
    with pytest.raises(ConfigError, match="also those of new"):
        run(file, tmp_path / "run", "evaluation.data=copied.jsonl")


def test_nothing_to_test_on_is_said_before_anything_is_spent(
    federation: Make, tmp_path: Path
) -> None:
    file = with_outside(federation)
    (file.parent / "new.jsonl").write_text('{"note": ""}\n')
    with pytest.raises(DataError) as caught:
        run(file, tmp_path / "run")
    assert caught.value.key == "outside.new.data"
    assert not (tmp_path / "run").exists()
