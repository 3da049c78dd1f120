"""Who asks for a number format that a machine is slow at is told so."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.number_format import slow_format, warn_if_slow

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Let this be a processor with some instructions, or another machine."""

    def make(kind: str = "x86_64", *, bf16: bool = False, amx: bool = False) -> None:
        monkeypatch.setattr(platform, "machine", lambda: kind)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)

    return make


@pytest.mark.parametrize("dtype", ["mixed", "bfloat16"])
def test_a_processor_without_such_products_is_slow(machine: Machine, dtype: Any) -> None:
    machine()
    said = slow_format(ComputeSection(device="cpu", dtype=dtype))
    assert said is not None and repr(dtype) in said and '"float32"' in said


@pytest.mark.parametrize("has", [{"bf16": True}, {"amx": True}, {"kind": "aarch64"}])
def test_of_others_nothing_is_said(machine: Machine, has: dict[str, Any]) -> None:
    machine(**has)
    assert slow_format(ComputeSection(device="cpu", dtype="mixed")) is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_formats_without_bfloat16_are_slow_nowhere(machine: Machine, dtype: Any) -> None:
    machine()
    assert slow_format(ComputeSection(device="cpu", dtype=dtype)) is None


def test_a_gpu_is_not_asked_for_what_its_processor_has(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert slow_format(ComputeSection(dtype="mixed")) is None
    assert slow_format(ComputeSection(device="cpu", dtype="mixed")) is not None


def test_the_log_is_told_once(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine()
    warn_if_slow.cache_clear()
    for _ in range(2):
        warn_if_slow(ComputeSection(device="cpu", dtype="mixed"))
    assert caplog.text.count("many times as long") == 1
    warn_if_slow.cache_clear()
