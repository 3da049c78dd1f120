"""What a trial of random tokens tells of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from fedpriv.errors import NotPrivateError
from fedpriv.private_training.probe import probe_gradients


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
