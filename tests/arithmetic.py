"""How far rounding alone may move a result, and a stand-in for processors that round otherwise.

Libraries for matrices add the terms of a product in an order of their own, which differs with the
processor, the number of threads and the layout in memory. None is wrong. Where a test compares two
computations of one value, the tolerance has to come from that arithmetic and not from one machine.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.library import _scoped_library
from torch.nn.attention import SDPBackend, sdpa_kernel

FACTOR = 8.0
DRAWS = 8

_KEY = torch._C.DispatchKey.BackendSelect  # what is below autograd and in use in every thread
Change = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
# Where the two operands are among the arguments. `dot` and `mv` have a vector for the second.
_PRODUCTS = {
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::mv": 0,
    "aten::dot": 0,
    "aten::addmm": 1,
    "aten::addmm_": 1,
    "aten::addmv": 1,
    "aten::baddbmm": 1,
    "mkldnn::_linear_pointwise": 0,
}
_changes: list[Change] = []


class Rounded:
    """A value, and how far from it the same computation may come out where rounding differs.

    Monte Carlo arithmetic (Parker, 1997) takes the place of a fixed tolerance: the computation is
    repeated, and each product's operand is moved at random by what rounding could do there. A sum
    of K terms, each rounded to u, is in whatever order the exact sum of terms that were moved by
    about √K u (Higham and Mary, 2019), and storing the operand moved it by u. How far the result
    moves is its error by rounding, condition included, for every processor alike.

    The largest of a million normal errors is 5 deviations, and each of two values has its own:
    5√2 deviations, for which `FACTOR` is enough. An element that moved less than the others on
    average is allowed what they are.

    Args:
        compute: computes the value in a way of its own, with whatever derivatives it takes. It runs
            nine times, so it must leave nothing behind.
        stored: what the weights of the other computation were rounded to, once, if to fewer bits.
    """

    def __init__(self, compute: Callable[[], Any], stored: torch.dtype = torch.float64) -> None:
        self.value = _double(compute())
        squares = torch.zeros_like(self.value)
        for seed in range(DRAWS):
            with changed_products(noise := _Noise(seed, stored)):
                squares += (_double(compute()) - self.value).square() / DRAWS
        assert noise.unit, "no product to measure"
        last = noise.unit * self.value.abs()  # what comes after the last product is rounded, too
        self.deviation = squares.clamp_min(squares.mean()).sqrt() + last

    def off_by(self, found: Any) -> float:
        """The largest error of an element, as a share of what rounding explains: at most 1."""
        found = _double(found)
        assert found.shape == self.value.shape
        error = (found - self.value).abs()
        share = torch.where(error == 0, 0, error / (FACTOR * self.deviation))
        return float(share.nan_to_num(torch.inf).max())


def _double(value: Any) -> Tensor:
    return torch.as_tensor(value).detach().double().clone()


@contextmanager
def permuted_products(seed: int) -> Iterator[None]:
    """Add the terms of every product in another order, which is the same for sums of one length.

    So equal rows keep equal bits, as laws ask for, and everything else rounds as elsewhere.
    """
    order = lru_cache(None)(
        lambda length: torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    )

    def change(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a[..., order(a.shape[-1])], b[..., order(b.shape[-1])]

    with changed_products(change):
        yield


class _Noise:
    """Moves the first operand of a product by the rounding of that product."""

    def __init__(self, seed: int, stored: torch.dtype) -> None:
        self._stored, self.unit = _unit(stored), 0.0
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        added = torch.promote_types(a.dtype, torch.float32)  # what shorter types are added up in
        self.unit = max(self.unit, _unit(added))
        deviation = max(_unit(a.dtype), self._stored) + math.sqrt(a.shape[-1]) * _unit(added)
        noise = torch.empty(a.shape, dtype=added).normal_(0, deviation, generator=self._generator)
        return (a * (1 + noise)).to(a.dtype), b


def _unit(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


@contextmanager
def changed_products(change: Change) -> Iterator[None]:
    """Apply `change` to the operands of torch's matrix products, in every thread of this process.

    It comes after autograd, autocast and vmap and before the library that multiplies, so that it
    also sees what a backward pass computes. Both operands have the summed dimension last.
    Attention is computed as two products, as where no fused one is.
    """
    with ExitStack() as stack:
        if not _changes:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            for name, place in _PRODUCTS.items():
                space, _, operator = name.partition("::")
                if not hasattr(getattr(torch.ops, space), operator):
                    continue  # oneDNN is not on every machine
                library = stack.enter_context(_scoped_library(space, "IMPL"))
                library.impl(operator, _hook(space, operator, place), _KEY.name, with_keyset=True)
        _changes.append(change)
        stack.callback(_changes.remove, change)
        yield


def _hook(space: str, operator: str, place: int) -> Callable[..., Tensor]:
    """The operator with changed operands; the first stands at `place` among its arguments."""
    plain = getattr(getattr(torch.ops, space), operator).default
    below = torch._C._dispatch_keyset_full_after(_KEY)

    def product(keys: Any, *arguments: Any, **options: Any) -> Tensor:
        a, b = arguments[place : place + 2]
        if a.is_floating_point() and a.numel():
            if b.is_mkldnn:
                b = b.to_dense()  # weights in oneDNN's own layout, which nothing can reorder
            turned = space == "aten" and b.ndim > 1  # the other one takes weights (out, in)
            b = b.mT if turned else b
            for change in _changes:
                a, b = change(a, b)
            arguments = (*arguments[:place], a, b.mT if turned else b, *arguments[place + 2 :])
        result: Tensor = plain.redispatch(keys & below, *arguments, **options)
        return result

    return product


if "FEDPRIV_TEST_PERMUTED" in os.environ:
    _always = permuted_products(int(os.environ["FEDPRIV_TEST_PERMUTED"]))
    _always.__enter__()
