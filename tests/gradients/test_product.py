"""The faster product against the same one in float64, and its gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from fedpriv.gradients import product as module
from fedpriv.gradients.product import FrozenLinear, linear


@settings(deadline=None, max_examples=60)
@given(
    lead=st.lists(st.integers(0, 5), min_size=1, max_size=2),
    inputs=st.integers(1, 70),
    outputs=st.integers(1, 70),
    turned=st.booleans(),
    biased=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_it_is_the_product_to_float32(
    lead: list[int], inputs: int, outputs: int, turned: bool, biased: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*lead, inputs, generator=generator)
    weight = torch.randn(outputs, inputs, generator=generator)
    bias = torch.randn(outputs, generator=generator) if biased else None
    exact = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    terms = inputs + biased
    found = linear(x, weight.t().contiguous().t() if turned else weight, bias)
    assert found.shape == exact.shape and found.dtype == torch.float32
    # In any order, and far below what bfloat16 would make of it: 2⁻⁸ of each term.
    size = functional.linear(
        x.double().abs(), weight.double().abs(), None if bias is None else bias.double().abs()
    )
    assert bool(((found - exact).abs() <= terms * 2**-24 / (1 - terms * 2**-24) * size).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_left_to_torch(dtype: torch.dtype) -> None:
    x, weight = torch.randn(3, 4).to(dtype), torch.randn(5, 4).to(dtype)
    assert torch.equal(linear(x, weight), functional.linear(x, weight))


def test_without_the_library_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ONEDNN", None)
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    assert torch.equal(linear(x, weight), functional.linear(x, weight))


def test_the_library_is_what_runs_here() -> None:
    """Else a renamed function of torch would cost half of the speed and nobody would know.

    Without AVX-512 torch's own is faster.
    """
    assert hasattr(torch.ops.mkldnn, "_linear_pointwise")
    libraries = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    assert (module._ONEDNN is not None) == (libraries and wide)


@pytest.mark.parametrize("biased", [False, True])
def test_its_gradient_is_that_of_a_linear_layer(biased: bool) -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 4, dtype=torch.float64)
    bias = torch.randn(5, dtype=torch.float64) if biased else None
    assert torch.autograd.gradcheck(lambda x: FrozenLinear.apply(x, weight, bias), (x,))
