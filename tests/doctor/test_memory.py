"""Whether a model fits, before it is loaded and by a step."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fedpriv.memory
from fedpriv.doctor import memory
from fedpriv.errors import ConfigError
from fedpriv.private_training import microbatch
from fedpriv.private_training.config import ComputeSection

Make = Callable[..., Any]


def test_weights_are_counted_without_being_loaded(
    model_folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = ComputeSection(device="cpu")
    assert "4 M parameters, 0.02 GB" in memory.weights("embedded", compute)
    monkeypatch.setattr(memory, "available", lambda device="cpu": 10_000_000)
    with pytest.raises(ConfigError, match="does not fit: 4 M parameters"):
        memory.weights("embedded", compute)
    assert memory.weights("embedded", ComputeSection(device="cpu", dtype="bfloat16"))


@pytest.mark.parametrize(("bits", "left"), [("8bit", "0.00 GB"), ("4bit", "0.00 GB")])
def test_of_a_quantised_model_what_is_read_has_to_fit(
    monkeypatch: pytest.MonkeyPatch, bits: Any, left: str
) -> None:
    compute = ComputeSection(device="cpu")
    monkeypatch.setattr(memory, "available", lambda device="cpu": 10_000_000)
    found = memory.weights("embedded", compute, bits)
    assert "4 M parameters, 0.01 GB of 0.0 GB free" in found
    assert f"of which {bits} leaves {left} or more" in found
    monkeypatch.setattr(memory, "available", lambda device="cpu": 5_000_000)
    with pytest.raises(ConfigError, match="does not fit"):
        memory.weights("embedded", compute, bits)


def test_a_container_counts_for_less_than_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = memory.available()
    assert machine > 0
    monkeypatch.setattr(fedpriv.memory, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    (tmp_path / "memory.stat").write_text("anon 1500\ninactive_file 400\n")
    assert memory.available() == 3400  # a cache of files is given back when it is needed
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available() > 3000


def test_a_step_is_made_and_measured(make_worker: Make) -> None:
    found = memory.step(make_worker(microbatch=8))
    assert re.search(r"8 records of 64 tokens at once took \d+\.\d\d GB", found)


@pytest.mark.parametrize("raised", [torch.OutOfMemoryError("CUDA"), MemoryError()])
def test_a_step_that_does_not_fit_is_told(
    make_worker: Make, monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    def rehearse(worker: Any, count: int) -> int:
        raise raised

    monkeypatch.setattr(microbatch, "rehearse", rehearse)
    with pytest.raises(ConfigError, match=r"compute\.microbatch: 16 records .* do not fit"):
        memory.step(make_worker(microbatch=16))


def test_a_step_that_would_kill_the_process_is_not_tried(
    make_worker: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    monkeypatch.setattr(
        memory, "_taken", lambda worker, records, held: made.append(records) or records * 10**15
    )
    with pytest.raises(ConfigError, match=r"do not fit .*Lower model\.max_length below 64, or set"):
        memory.step(make_worker())
    assert made == [1, 2]


@pytest.mark.parametrize(
    ("each", "free", "said"),
    [
        (10, 35, r"do not fit.* Set it to 3, or lower model\.max_length"),
        (10, 95, "room for 9 at once"),
        (0, 95, None),  # more than anybody computes at once
    ],
)
def test_what_there_is_room_for_is_said(
    make_worker: Make, monkeypatch: pytest.MonkeyPatch, each: int, free: int, said: str | None
) -> None:
    """Of a step that takes 15 bytes, and so many for each further record."""
    monkeypatch.setattr(memory, "_taken", lambda worker, records, held: 15 + (records - 1) * each)
    monkeypatch.setattr(memory, "available", lambda device="cpu": free * (1 if each else 10**9))
    worker = make_worker(microbatch=4)
    if said is not None and said.startswith("do not"):
        with pytest.raises(ConfigError, match=said):
            memory.step(worker)
    else:
        found = memory.step(worker)
        assert said in found if said else "room" not in found
