"""What PE-SGD is compared with: what each control releases, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example as for_example
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.config.load import load_job
from fedpriv.data.encode import Example
from fedpriv.errors import ConfigError
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.methods.pe_sgd.server_half import PeSgdServer
from fedpriv.methods.pe_sgd.site_half import PeSgd
from fedpriv.methods.proposal import propose
from fedpriv.methods.registry import CONTROLS, find_method, find_server_half
from fedpriv.methods.server_half import ServerContext
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.plugins import METHODS, installed
from fedpriv.privacy.config import PrivacySection
from fedpriv.privacy.mechanism.clip import MARGIN
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.protocol import Proposal
from fedpriv.synthetic.config import SyntheticSection
from fedpriv.synthetic.evolution import Evolution
from fedpriv_comparison.controls import controls_known
from fedpriv_comparison.controls.gradient import Gradient, GradientServer
from fedpriv_comparison.controls.products import Products, ProductsServer
from fedpriv_comparison.controls.residual import Residual, ResidualServer, shortened
from fedpriv_comparison.from_python import compare
from fedpriv_simulation.simulate import simulate
from tests.methods.pe_sgd_checks import (
    CLIP,
    RECORDS,
    RIDGE,
    N,
    adds_up,
    example,
    gradients,
    moved,
    prepared,
    units,
)

Make = Callable[..., Any]
ZEROS = "sha256:" + "0" * 64
SET = '[synthetic]\nsize = 6\ngenerator = { kind = "model" }\n'


class Set(Evolution):
    """The records alone."""

    def __init__(self) -> None:
        self.settings = SyntheticSection(size=N, ridge=RIDGE, data="public.jsonl", fold=2)
        self.examples = RECORDS


def server(kind: Any, worker: Any) -> Any:
    proposal = Proposal(
        job_id="job", method="any", steps=4, seed=0, fields=("text",), model=ModelSection(),
        lora=LoraSection(), privacy=PrivacySection(), base_digest=ZEROS, vector_digest=ZEROS,
    )  # fmt: skip

    @contextmanager
    def lend() -> Iterator[Any]:
        yield worker

    start = public(worker.initial)
    return kind(ServerContext(proposal, worker.vector.size, lambda: start, lend, Set()))


@pytest.mark.parametrize("bound", ["normalised", "clipped"])
def test_products_equal_the_loop(make_worker: Make, bound: Any) -> None:
    worker = make_worker("qwen3", microbatch=2)
    members, parameters = units([1, 3, 1, 0, 2]), moved(worker)
    method = prepared(worker, parameters, kind=Products, bound=bound)
    found = method.clipped_sum(worker, members, parameters, CLIP).value.numpy()
    g, expected = gradients(worker, list(RECORDS), parameters), np.zeros(N)
    for unit in members:
        if unit:
            c = g @ gradients(worker, list(unit), parameters).mean(0)
            scale = CLIP * (1 - MARGIN) / np.linalg.norm(c)
            expected += c * (scale if bound == "normalised" else min(1.0, scale))
    assert np.abs(found - expected).max() < 1e-6 * CLIP


@pytest.mark.slow
def test_products_of_a_unit_are_the_same_whatever_else_is_sampled(make_worker: Make) -> None:
    worker = make_worker("llama", dtype="float32", microbatch=16)
    parameters = np.zeros_like(worker.initial)
    parameters[:32] = 0.3  # one row of one lora_A
    examples = tuple(example(20_000 + i, 30) for i in range(64))
    method = prepared(worker, parameters, examples, kind=Products, ridge=1e-8)
    adds_up(method, worker, units([1] * 8 + [3, 2, 1, 1]), parameters)


@pytest.mark.slow
def test_the_rest_of_a_gradient_is_the_same_whatever_else_is_sampled(make_worker: Make) -> None:
    """Rows of 355 values begin anywhere in memory."""
    worker = make_worker(
        "bert", dtype="float32", task="classification", r=2, targets=("query",),
        modules_to_save=("classifier",),
    )  # fmt: skip
    members = [tuple(Example(one.input_ids, 1) for one in unit) for unit in units([1] * 7 + [3])]
    examples = tuple(Example(example(20_000 + i, 30).input_ids, i % 3) for i in range(50))
    method = prepared(worker, worker.initial, examples, kind=Residual, ridge=1e-8)
    adds_up(method, worker, members, worker.initial)


def test_each_mean_is_made_a_vector_in_memory_of_its_own(make_worker: Make) -> None:
    """Some processors round by how memory is aligned, and so by what stands before it."""
    worker = make_worker("llama")
    method = prepared(worker, moved(worker), kind=Residual)
    seen, parts = [], method._parts

    def noted(clip_norm: float, means: torch.Tensor) -> torch.Tensor:
        seen.append(
            (means.storage_offset(), means.untyped_storage().nbytes() // means.element_size())
        )
        return parts(clip_norm, means)

    method._parts = noted
    method.clipped_sum(worker, units([1]) * 3, moved(worker), CLIP)  # of one length
    assert seen == [(0, worker.vector.size)] * 3


def test_noise_on_the_gradient_is_dp_lora(make_worker: Make) -> None:
    worker = make_worker("llama")
    members, parameters = units([1, 2, 1]), moved(worker)
    method = prepared(worker, parameters, kind=Gradient)
    assert method.prepare(worker, parameters) == worker.vector.size
    found = method.clipped_sum(worker, members, parameters, CLIP)
    expected = DpLora().clipped_sum(worker, members, parameters, CLIP)
    assert torch.equal(found.value, expected.value)
    assert server(GradientServer, worker).values == worker.vector.size


@pytest.mark.parametrize(
    ("at_site", "at_server"),
    [(PeSgd, PeSgdServer), (Products, ProductsServer), (Gradient, GradientServer)],
)
def test_what_a_release_stands_for_is_the_ridge_projection(
    make_worker: Make, at_site: Any, at_server: Any
) -> None:
    """Without noise and bound, all three are the same gradient."""
    worker = make_worker("llama")
    parameters, record = moved(worker), example(77, 30)
    method = prepared(worker, parameters, kind=at_site, bound="clipped")
    value = method.clipped_sum(worker, [(record,)], parameters, 1e6).value
    made = server(at_server, worker)
    assert made.values == value.numel()
    found, coefficients = made.lifted(worker, parameters, value.float().numpy())
    g = gradients(worker, list(RECORDS), parameters)
    h, gram = gradients(worker, [record], parameters)[0], g @ g.T
    z = np.linalg.solve(gram + RIDGE * np.trace(gram) / N * np.eye(N), g @ h)
    assert np.abs(found - z @ g).max() < 1e-5 * np.abs(z @ g).max()
    assert np.abs(coefficients - z).max() < 1e-5 * np.abs(z).max()


def test_the_span_and_the_residual_are_the_whole_gradient(make_worker: Make) -> None:
    """Where nothing is clipped; as long as both together, and N + P values."""
    worker = make_worker("llama", microbatch=2)
    parameters, members = moved(worker), units([1, 2, 1])
    method = prepared(worker, parameters, kind=Residual)
    assert method.prepare(worker, parameters) == N + worker.vector.size
    value = method.clipped_sum(worker, members, parameters, 1e6).value
    made = server(ResidualServer, worker)
    assert made.values == N + worker.vector.size
    found, _ = made.lifted(worker, parameters, value.float().numpy())
    expected = DpLora().clipped_sum(worker, members, parameters, 1e6).value.numpy()
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_each_part_of_a_gradient_has_its_share_of_the_bound(
    make_worker: Make, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr(Residual, "share", share)
    worker = make_worker("llama")
    parameters, members = moved(worker), units([1, 2, 1])
    method = prepared(worker, parameters, kind=Residual, ridge=1e-6)
    clip = 1e-4
    whole = method.clipped_sum(worker, members, parameters, clip).value
    for left_out in range(3):
        rest = members[:left_out] + members[left_out + 1 :]
        change = whole - method.clipped_sum(worker, rest, parameters, clip).value
        assert change.norm() <= clip
        assert float(change[:N].norm()) == pytest.approx(clip * (1 - share) ** 0.5, rel=1e-4)
        assert float(change[N:].norm()) == pytest.approx(clip * share**0.5, rel=1e-4)


def test_the_controls_are_known_for_the_time_of_a_comparison() -> None:
    assert not {*CONTROLS} & {*installed(METHODS)}
    with controls_known():
        assert {*CONTROLS} <= {*installed(METHODS)}
        assert all(find_method(name).needs_set and find_server_half(name) for name in CONTROLS)
    for name in CONTROLS:
        with pytest.raises(ConfigError, match=r"compare alone runs.*one of: dp-lora, pe-sgd"):
            find_method(name)
        with pytest.raises(ConfigError, match="no half"):
            find_server_half(name)


@pytest.mark.parametrize("name", CONTROLS)
def test_a_federation_that_names_a_control_is_refused(
    federation: Make, tmp_path: Path, name: str
) -> None:
    file = federation(extra=SET)
    config = load_job(file, [f"job.method={name}"])
    with pytest.raises(ConfigError, match=r"job\.method: is a control, which fedpriv compare"):
        simulate(config, tmp_path / "run", source=file)
    with pytest.raises(ConfigError, match=r"job\.method: is a control"):  # as by fedpriv-server
        propose(config, job_id="j", base=ZEROS, vector=ZEROS)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("engine", "parallel"),
    [
        ("inline", 1),
        pytest.param("inline", 2, marks=pytest.mark.slow),
        pytest.param("ray", 1, marks=pytest.mark.slow),
    ],
)
def test_a_comparison_runs_its_controls(
    federation: Make, tmp_path: Path, engine: str, parallel: int
) -> None:
    file = federation(rounds=1, extra=SET)
    names = CONTROLS if (engine, parallel) != ("inline", 1) else CONTROLS[2:]
    given = {"seeds": 1, "out": tmp_path / "out", "parallel": parallel, "quiet": True}
    found = compare(file, names, [f"job.engine={engine}"], **given)
    losses = {row["name"]: row["scores"]["eval_loss"]["mean"] for row in found.rows}
    assert len(set(losses.values())) == len(losses) == len(names)
    assert not {*CONTROLS} & {*installed(METHODS)}


@given(
    st.lists(st.lists(st.floats(width=64), min_size=3, max_size=3), min_size=1, max_size=5),
    st.floats(1e-6, 1e6),
)
@for_example([[0.0, 0.0, 479904.75]], 479904.75)
def test_no_row_is_longer_than_it_may_be(rows: list[list[float]], norm: float) -> None:
    before = torch.tensor(rows, dtype=torch.float64)
    for row, found in zip(before, shortened(before, norm), strict=True):
        length = float(row.norm())
        assert float(found.norm()) <= norm * (1 + 1e-12)
        if length <= norm * (1 - 1e-12):  # of that length it may be rounded
            assert torch.equal(found, row) or length == 0
