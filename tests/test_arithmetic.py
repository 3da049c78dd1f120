"""What rounding explains and what not, and that sums in another order reach every product."""

from __future__ import annotations

import copy
import runpy
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

from fedpriv.gradients.product import linear
from tests.arithmetic import Rounded, permuted_products
from tests.small_models import small_config

ROOT = Path(__file__).parents[1]
G = torch.Generator().manual_seed(0)
A, B = (torch.randn(3, 20, 400, generator=G) for _ in range(2))
START = torch.randn(20, 20, generator=G)


def attended(a: Tensor) -> Tensor:
    q, k, v = (part.unsqueeze(1) for part in (a, B, B.flip(1)))
    mask = torch.ones(20, 20).tril().bool()
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def gradient(a: Tensor) -> Tensor:
    leaf = a.clone().requires_grad_()
    (functional.linear(leaf, B[0]).square().sum() + attended(leaf).square().sum()).backward()
    assert leaf.grad is not None
    return leaf.grad


PRODUCTS: dict[str, Callable[[Tensor], Tensor]] = {
    "mm": lambda a: a[0] @ B[0].T,
    "bmm": lambda a: a @ B.mT,
    "dot": lambda a: a[0, 0] @ B[0, 0],
    "mv": lambda a: a[0] @ B[0, 0],
    "addmv": lambda a: torch.addmv(START[0], a[0], B[0, 0]),
    "addmm": lambda a: torch.addmm(START, a[0], B[0].T),
    "addmm_": lambda a: START.clone().addmm_(a[0], B[0].T, alpha=0.5),
    "baddbmm": lambda a: torch.baddbmm(START.expand(3, 20, 20), a, B.mT),
    "einsum": lambda a: torch.einsum("bik,bjk->bij", a, B),
    "linear": lambda a: functional.linear(a, B[0], START[0]),
    "the project's own": lambda a: linear(a, B[0], START[0]),
    "vmap": lambda a: torch.vmap(lambda row: row @ B[0].T)(a),
    "attention": attended,
    "backward": gradient,
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_sums_in_another_order_differ_within_rounding(name: str) -> None:
    compute = PRODUCTS[name]
    rounded, plain = Rounded(lambda: compute(A)), compute(A)
    moved = False
    for seed in range(6):
        with permuted_products(seed):
            found = compute(A)
            assert torch.equal(found, compute(A))
        moved |= not torch.equal(found, plain)
        assert rounded.off_by(found) <= 1
    assert moved and torch.equal(compute(A), plain)
    assert rounded.off_by(compute(A.double().mul(1 + 1e-4).float())) > 1
    if name != "backward":  # which has another form in each type
        with pytest.MonkeyPatch.context() as patch:
            for value in ("B", "START"):
                patch.setitem(globals(), value, globals()[value].double())
            off = rounded.off_by(compute(A.double()))
        assert off <= 1
        assert name == "dot" or off > 1e-3  # a single number may be all but exact by chance


def test_it_reaches_every_thread() -> None:
    found: list[Tensor] = []
    thread = Thread(target=lambda: found.append(A @ B.mT))
    with permuted_products(1):
        thread.start()
        thread.join()
        assert torch.equal(found[0], A @ B.mT)
    assert not torch.equal(found[0], A @ B.mT)


def test_equal_rows_keep_equal_bits() -> None:
    with permuted_products(1):
        rows = torch.stack([A[0, 0]] * 20) @ B[0].T
    assert torch.equal(rows, rows[:1].expand(20, 20))


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen3"])
def test_a_model_in_float32_is_off_by_what_rounding_explains(kind: str) -> None:
    """From itself in float64: all of the error of one of the two, and not a hundredth of it."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(small_config(kind)).eval()
    exact = copy.deepcopy(model).double()
    ids = torch.randint(3, 100, (2, 9), generator=torch.Generator().manual_seed(0))

    def slopes(model: torch.nn.Module) -> Tensor:
        loss = model(input_ids=ids, labels=ids).loss
        return torch.cat(
            [part.reshape(-1) for part in torch.autograd.grad(loss, [*model.parameters()])]
        )

    rounded = Rounded(lambda: slopes(model))
    assert 0.01 < rounded.off_by(slopes(exact)) < 0.7
    weight = model.get_parameter(next(name for name, p in model.named_parameters() if p.ndim == 2))
    with torch.no_grad():
        weight *= 1.001
    assert rounded.off_by(slopes(model)) > 1


def test_other_faults_are_not_explained_by_rounding() -> None:
    rounded = Rounded(lambda: A @ B.mT)
    wrong = rounded.value.clone()
    wrong[1, 2, 3] -= (A[1, 2, 0] * B[1, 3, 0]).double()  # a term is missing
    assert rounded.off_by(wrong) > 1
    wrong[1, 2, 3] = torch.nan
    assert rounded.off_by(wrong) == torch.inf
    with pytest.raises(AssertionError):
        rounded.off_by(wrong[:1])
    with pytest.raises(AssertionError, match="no product to measure"):
        Rounded(lambda: A.sum())


@pytest.mark.slow
def test_what_is_judged_by_rounding_runs_as_on_other_processors() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "processors.py"))
    every, quick = made["chosen"](quick=False), made["chosen"](quick=True)
    named = {name for names in quick.values() for name in names}
    assert {*made["BITS"], "test_both_forms_load_to_the_model_of_the_run"} <= named
    assert all(set(names) <= set(every[path]) for path, names in quick.items())
