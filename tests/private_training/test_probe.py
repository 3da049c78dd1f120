"""What a trial of random tokens tells of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from fedpriv.errors import NotPrivateError
from fedpriv.private_training import probe
from fedpriv.private_training.probe import TOLERANCE, probe_gradients


def test_a_model_that_changes_what_is_trained_when_it_computes_is_refused(
    make_worker: Callable[..., Any],
) -> None:
    """An embedding with a longest row shortens those of the tokens that it looks up."""
    worker = make_worker("gpt2", modules_to_save=("wte",), engine="opacus")
    probe_gradients(worker)
    for module in worker.model.modules():
        if isinstance(module, nn.Embedding) and module.weight.requires_grad:
            module.max_norm = 0.01
    before = worker.vector.read()
    with pytest.raises(NotPrivateError, match="max_norm"):
        probe_gradients(worker)
    assert (worker.vector.read() == before).all()


@pytest.mark.parametrize("dtype", ["mixed", "bfloat16"])
def test_what_rounding_may_change_is_measured(
    make_worker: Callable[..., Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No fixed tolerance fits every depth: noise of one rounding says what a model amplifies."""
    worker = make_worker("llama", dtype=dtype)
    monkeypatch.setitem(TOLERANCE, dtype, 0.0)
    probe_gradients(worker)
    monkeypatch.setattr(probe, "FACTOR", 0.0)
    with pytest.raises(NotPrivateError, match=r'then compute\.dtype = "float32" helps'):
        probe_gradients(worker)


@pytest.mark.parametrize("dtype", ["mixed", "bfloat16"])
def test_a_mixed_record_is_no_rounding(make_worker: Callable[..., Any], dtype: str) -> None:
    worker = make_worker("llama", dtype=dtype)
    norm = worker.model.get_base_model().model.norm
    plain = norm.forward
    norm.forward = lambda x: plain(x + x.flip(0))  # of one record alone twice its own
    with pytest.raises(NotPrivateError, match="gradient of a record in a batch is off by"):
        probe_gradients(worker)
