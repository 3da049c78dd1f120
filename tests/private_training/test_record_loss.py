"""The loss of a token and its gradient against torch's own, which holds more memory."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from fedpriv.data.batch import Batch
from fedpriv.private_training import record_loss as module
from fedpriv.private_training.record_loss import IGNORED, next_tokens, record_scores, token_losses


@settings(deadline=None, max_examples=80)
@given(
    records=st.integers(1, 4),
    length=st.integers(1, 9),
    vocabulary=st.integers(2, 40),
    cells=st.integers(1, 200),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    scale=st.sampled_from([0.0, 1.0, 300.0]),
    seed=st.integers(0, 2**31),
)
def test_losses_and_gradients_are_those_of_cross_entropy(
    records: int,
    length: int,
    vocabulary: int,
    cells: int,
    dtype: torch.dtype,
    scale: float,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = (records, length, vocabulary)
    start = (torch.randn(shape, generator=generator) * scale).to(dtype)
    labels = torch.randint(-1, vocabulary, shape[:2], generator=generator)
    labels[labels < 0] = IGNORED
    weights = torch.randn(shape[:2], generator=generator, dtype=torch.float64)

    def gradient(losses: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        (losses * weights).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    leaf = start.clone().requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CELLS", {"cpu": cells, "other": cells})
        losses, counted = token_losses(leaf * 1, labels)
        found = gradient(losses, leaf)
    exact = start.clone().double().requires_grad_()
    targets = next_tokens(labels)
    wanted = functional.cross_entropy(exact.flatten(0, 1), targets.flatten(), reduction="none")
    wanted = wanted.view(targets.shape)
    assert torch.equal(counted, targets != IGNORED)
    assert torch.allclose(losses.double(), wanted, rtol=1e-5, atol=1e-5)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    assert torch.allclose(found.double(), gradient(wanted, exact), rtol=tolerance, atol=tolerance)


def test_a_confident_model_keeps_its_gradient_in_bfloat16() -> None:
    """p - 1 of a p near 1 is 0 once p was rounded to 8 bits."""
    start = torch.zeros(1, 2, 6, dtype=torch.bfloat16)
    start[0, 0, 3] = 9.0
    leaf = start.clone().requires_grad_()
    token_losses(leaf * 1, torch.tensor([[0, 3]]))[0].sum().backward()
    exact = torch.softmax(start[0, 0].double(), 0)[3] - 1
    assert leaf.grad is not None
    assert leaf.grad[0, 0, 3].item() == pytest.approx(exact.item(), rel=0.01)


def test_logits_that_are_needed_again_are_noticed() -> None:
    """Their gradient is written over them, so a model whose last step needs them is refused."""
    start = torch.randn(1, 4, 6, requires_grad=True)
    losses, _ = token_losses(torch.tanh(start), torch.tensor([[1, 2, 3, 4]]))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        losses.sum().backward()


def test_looking_at_a_loss_leaves_the_logits_alone() -> None:
    logits = torch.randn(2, 3, 5)
    before = logits.clone()
    with torch.no_grad():
        token_losses(logits, torch.tensor([[1, 2, 3], [0, 0, 4]]))
    assert torch.equal(logits, before)


def test_scores_of_records_are_their_loss_and_their_share_of_right_tokens() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn((4, 6, 11), generator=generator)
    labels = torch.randint(0, 11, (4, 6), generator=generator)
    labels[1, :3] = IGNORED
    labels[3] = IGNORED
    labels[0, 1:] = logits[0, :-1].argmax(-1)  # all right
    batch = Batch(labels.clamp_min(0), torch.ones_like(labels), labels)

    def model(**_: object) -> SimpleNamespace:
        return SimpleNamespace(logits=logits.clone())

    losses, accuracies, counted = record_scores(model, batch)
    assert counted.tolist() == [True, True, True, False]
    assert torch.equal(losses, module.record_losses(model, batch).double())
    assert (accuracies[0], accuracies[3]) == (1.0, 0.0)
    for row in (1, 2):
        places = [place for place in range(5) if labels[row, place + 1] != IGNORED]
        right = [int(logits[row, place].argmax() == labels[row, place + 1]) for place in places]
        assert accuracies[row] == pytest.approx(sum(right) / len(right))


def test_a_class_is_right_or_wrong() -> None:
    logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
    batch = Batch(torch.zeros(2, 3).long(), torch.ones(2, 3).long(), torch.tensor([0, 1]))
    losses, accuracies, counted = record_scores(lambda **_: SimpleNamespace(logits=logits), batch)
    assert accuracies.tolist() == [1, 0] and bool(counted.all())
    assert losses.tolist() == pytest.approx([math.log1p(math.exp(-2)), math.log1p(math.exp(2))])
