"""The command for whoever has a GPU runs on the CPU, and goes on where it was stopped."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks/gpu.sh"
ALWAYS = ("border", "correctness", "denoise", "growth", "machine", "pe-sgd", "step")
WORDS = "the patient had no pain and was seen for a cough with fever today".split()  # noqa: SIM905


def made_up(folder: Path) -> Path:
    """Notes and sentences in the shape of the real ones."""
    for name in ("mtsamples", "sst2"):
        (folder / name).mkdir(parents=True)
    with gzip.open(folder / "mtsamples/mtsamples.jsonl.gz", "wt") as stream:
        for number in range(160):
            text = " ".join(WORDS[(number * i + i) % len(WORDS)] for i in range(1, 40))
            row = {"medical_specialty": f" {number % 3}", "first_of_group": True}
            stream.write(json.dumps({**row, "transcription": f"{text} {number}"}) + "\n")
    for name, count in (("train", 800), ("dev", 20)):
        lines = ["sentence\tlabel", *(f"{name} film {i} was fine\t{i % 2}" for i in range(count))]
        (folder / f"sst2/{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.nightly
def test_a_quick_run_writes_every_figure_and_does_nothing_twice(tmp_path: Path) -> None:
    data, out = made_up(tmp_path / "data"), tmp_path / "out"
    out.mkdir()
    (out / "border.json").write_text('{"from": "an earlier run"}')  # test_border.py makes one
    done = run("--quick", data, out)
    assert done.returncode == 0, done.stdout + "".join(
        path.read_text()[-2000:] for path in out.glob("*.log")
    )
    for name in ALWAYS:
        assert json.loads((out / f"{name}.json").read_text())
    rows = json.loads((out / "correctness.json").read_text())["rows"]
    assert {row["dtype"] for row in rows} == {"float64", "float32", "mixed", "bfloat16"}
    assert all(row["company"] and row["again"] and row["strict"] for row in rows)
    assert "border: is there" in done.stdout and "step: is there" not in done.stdout
    (out / "denoise.json").unlink()
    again = run("--quick", data, out)
    assert again.returncode == 0
    assert "step: is there" in again.stdout and "denoise: is there" not in again.stdout
    assert "step: is there" not in run("--quick", data, out, "denoise").stdout


def test_what_is_missing_on_the_command_line_is_said() -> None:
    done = run("--quick", "data")
    assert done.returncode != 0 and "usage: benchmarks/gpu.sh" in done.stderr


@pytest.mark.nightly
def test_a_step_that_fails_is_told_and_the_others_are_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in ALWAYS:
        (out / f"{name}.json").write_text("{}")
    (out / "border.json").unlink()
    done = run("--quick", tmp_path / "none", out)
    assert done.returncode == 1
    assert "border: failed" in done.stdout and "not done:" in done.stdout
    assert "mtsamples.jsonl.gz" in (out / "border.log").read_text()
