"""A frozen base in 8 or 4 bits: what is kept, what is computed with, and who is told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from fedpriv.environment import without_hub_code
from fedpriv.errors import ConfigError, NotPrivateError
from fedpriv.models.base import load_base
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.models.digest import quantised_digest
from fedpriv.models.quantised import BLOCK, PackedWeight, unpack
from fedpriv.models.stored import digest_of
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.pool import load_model
from fedpriv.private_training.record_loss import record_losses
from fedpriv.private_training.worker import ModelRecipe
from tests.arithmetic import Rounded
from tests.gradients.gradients_checks import disturb, loop, per_record, random_batch
from tests.small_models import ENCODERS, TARGETS
from tests.waiting import CEILING, wait_until

Make = Callable[..., Any]
BITS = ["8bit", "4bit"]
# Of a weight from N(0, 1) in blocks of 64: NF4 leaves a tenth, 8 bits a hundredth
# (docs/reference/models.md).
ERROR = {"8bit": (0.008, 0.012), "4bit": (0.08, 0.11)}
BYTES = {"8bit": 1 + 4 / BLOCK, "4bit": 0.5 + 4 / BLOCK}


def packed(model: nn.Module) -> dict[str, PackedWeight]:
    found = model.named_modules()
    return {name: module for name, module in found if isinstance(module, PackedWeight)}


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", [(64, 64), (96, 32), (24, 80), (1, 128), (3, 192)])
def test_a_weight_is_near_what_it_was_in_fewer_bytes(bits: Any, shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    kept = PackedWeight(weight, bits)
    made = kept.unpacked()
    assert made.shape == kept.shape == shape
    assert made.dtype == torch.float32
    low, high = ERROR[bits]
    assert low / 2 < (made - weight).norm() / weight.norm() < high
    size = sum(b.numel() * b.element_size() for b in (kept.codes, kept.scales))
    assert size == weight.numel() * BYTES[bits]
    assert torch.equal(made, kept.unpacked())


@pytest.mark.parametrize("bits", BITS)
def test_a_weight_is_a_code_times_the_scale_of_its_block(bits: Any) -> None:
    """In rows that are no multiple of a block, too: blocks go on in the next one."""
    weight = torch.randn(24, 80, generator=torch.Generator().manual_seed(1))
    kept = PackedWeight(weight, bits)
    codes = kept.codes.reshape(-1).long()
    if bits == "4bit":
        codes = torch.stack([codes >> 4, codes & 15], 1).reshape(-1)
    by_hand = kept.table[codes].reshape(-1, BLOCK) * kept.scales[:, None]
    assert torch.equal(by_hand.reshape(24, 80), kept.unpacked())
    assert torch.equal(kept.scales, weight.reshape(-1, BLOCK).abs().amax(1))


def test_the_codes_are_those_that_the_digest_names() -> None:
    """Another release of the library with other codes would be another base of the same name."""
    weight = torch.linspace(-1, 1, BLOCK)[None]
    four = PackedWeight(weight, "4bit")
    assert four.codes.reshape(-1)[::4].tolist() == [0, 17, 34, 69, 120, 171, 221, 238]
    eight = PackedWeight(weight, "8bit")
    assert eight.codes.reshape(-1)[::8].tolist() == [0, 18, 36, 54, 161, 203, 221, 239]


@pytest.mark.slow
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", sorted(set(TARGETS)))
def test_it_computes_what_its_rounded_weights_compute(
    make_worker: Make, kind: str, bits: str
) -> None:
    """Rows by the engine, bit for bit; and one record at a time by plain autograd."""
    task = "classification" if kind in ENCODERS else "causal-lm"
    worker = make_worker(kind, task=task, dtype="float32", quantize=bits, targets="all-linear")
    assert packed(worker.model)
    disturb(worker)
    batch = random_batch(worker, [20, 7, 13, 2])
    rows = per_record(worker, batch)
    worker.gradients.detach()
    unpack(worker.model)
    assert not packed(worker.model)
    assert Rounded(lambda: loop(worker, batch)).off_by(rows) <= 1
    assert torch.equal(rows, per_record(worker, batch))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_only_frozen_linear_weights_are_in_fewer_bits(
    make_worker: Make, kind: str, bits: str
) -> None:
    task = "classification" if kind == "bert" else "causal-lm"
    worker = make_worker(kind, task=task, dtype="float32", quantize=bits)
    output = worker.model.get_base_model().get_output_embeddings()
    for name, module in worker.model.named_modules():
        if type(module) not in (nn.Linear, Conv1D):
            continue
        trained = ".lora_" in name or "classifier" in name
        kept = trained or module is output
        assert isinstance(module.weight, PackedWeight) != kept, name
    floats = [p for p in worker.model.parameters() if p.is_floating_point()]
    assert {p.dtype for p in floats} == {torch.float32}
    assert all(not b.requires_grad for b in worker.model.buffers())


@pytest.mark.slow
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", sorted(set(TARGETS)))
def test_what_is_stored_in_16_bits_is_read_so_and_comes_to_the_same(
    make_worker: Make, tmp_path: Path, kind: str, bits: Any
) -> None:
    """Less memory while it is read, and the same model as of the same values in 32 bits."""
    task = "classification" if kind in ENCODERS else "causal-lm"
    worker = make_worker(kind, task=task, dtype="float32")
    base, tokenizer = worker.model.unload(), worker.base.tokenizer
    worker.gradients.detach()
    found = []
    for name, dtype in (("half", torch.bfloat16), ("full", torch.float32)):
        base.to(torch.bfloat16).to(dtype).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        section = worker.recipe.model.model_copy(
            update={"name": str(tmp_path / name), "quantize": bits}
        )
        found.append(load_base(section, whole=("classifier",)))
    half, full = (made.model.state_dict() for made in found)
    assert half.keys() == full.keys()
    assert all(torch.equal(half[name], full[name]) for name in half)
    buffers = [dict(made.model.named_buffers()) for made in found]
    assert all(torch.equal(value, buffers[1][name]) for name, value in buffers[0].items())


@pytest.mark.parametrize("bits", BITS)
def test_what_is_trained_whole_is_not_quantised(make_worker: Make, bits: str) -> None:
    worker = make_worker(
        "llama", dtype="float32", quantize=bits, targets=("q_proj",), modules_to_save=("o_proj",)
    )
    names = set(packed(worker.model))
    assert names
    assert not any("o_proj" in name for name in names)
    disturb(worker)
    batch = random_batch(worker, [20, 7, 13])
    rows = per_record(worker, batch)
    worker.gradients.detach()
    unpack(worker.model)
    assert Rounded(lambda: loop(worker, batch)).off_by(rows) <= 1


def test_products_of_packed_weights_in_bfloat16_are_near(make_worker: Make) -> None:
    plain, mixed = (make_worker("llama", dtype=d, quantize="8bit") for d in ("float32", "mixed"))
    for worker in (plain, mixed):
        disturb(worker)
    batch = random_batch(plain, [20, 7, 13, 2])
    found = per_record(mixed, batch)
    assert found.dtype == torch.float32
    assert not torch.equal(found, per_record(plain, batch))
    assert Rounded(lambda: per_record(plain, batch), stored=torch.bfloat16).off_by(found) <= 1
    assert {p.unpacked().dtype for p in packed(mixed.model).values()} == {torch.bfloat16}


def test_layers_may_be_computed_twice(make_worker: Make) -> None:
    plain, twice = (
        make_worker("llama", dtype="float32", quantize="4bit", gradient_checkpointing=again)
        for again in (False, True)
    )
    for worker in (plain, twice):
        disturb(worker)
    batch = random_batch(plain, [20, 7, 13, 2])
    assert torch.equal(per_record(plain, batch), per_record(twice, batch))


def test_the_float_weight_lives_no_longer_than_a_product(
    make_worker: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the model would be in memory in full after all."""
    import weakref

    worker = make_worker("llama", dtype="float32", quantize="4bit")
    alive: list[weakref.ref[Any]] = []
    most = [0]
    plain = PackedWeight.unpacked

    def counted(weight: PackedWeight) -> torch.Tensor:
        made = plain(weight)
        alive.append(weakref.ref(made))
        most[0] = max(most[0], sum(one() is not None for one in alive))
        return made

    monkeypatch.setattr(PackedWeight, "unpacked", counted)
    per_record(worker, random_batch(worker, [20, 7]))
    layers = len(packed(worker.model))
    assert len(alive) > layers  # forward, and backward as far as there are adapters
    assert most[0] == 1


def test_the_digest_says_in_how_many_bits_a_base_is() -> None:
    files = digest_of("embedded")
    digests = {
        bits: load_base(ModelSection(name="embedded", quantize=bits)).digest for bits in BITS
    }
    assert digests == {bits: quantised_digest(files, bits) for bits in BITS}
    assert len({files, *digests.values()}) == 3
    assert quantised_digest(files, None) == files


def test_a_base_that_is_stored_quantised_is_refused(model_folder: Make, tmp_path: Path) -> None:
    import json
    import shutil

    folder = shutil.copytree(model_folder("llama"), tmp_path / "base")
    settings = json.loads((folder / "config.json").read_text())
    for stored in ({"quant_method": "bitsandbytes", "load_in_8bit": True},
                   {"quant_method": "torchao", "quant_type": "int8_dynamic"}):  # fmt: skip
        text = json.dumps({**settings, "quantization_config": stored})
        (folder / "config.json").write_text(text)
        for quantize in (None, "4bit"):
            with pytest.raises(NotPrivateError, match=r"stored quantised.*model\.quantize"):
                load_base(ModelSection(name=str(folder), quantize=quantize))


@pytest.mark.parametrize(
    ("compute", "key"),
    [
        ({"dtype": "bfloat16"}, "dtype"),
        ({"dtype": "float64"}, "dtype"),
        ({"engine": "opacus"}, "engine"),
    ],
)
def test_a_site_that_computes_otherwise_is_told(compute: dict[str, Any], key: str) -> None:
    """The job says how the base is kept, and the site's own file what it computes in."""
    recipe = ModelRecipe(
        ModelSection(quantize="4bit"), LoraSection(), seed=0, compute=ComputeSection(**compute)
    )
    with pytest.raises(ConfigError, match=rf"compute\.{key}.*model\.quantize") as caught:
        load_model(recipe)
    assert caught.value.key == f"compute.{key}"


def test_without_the_library_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "bitsandbytes"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigError, match=r"model\.quantize.*pip install 'fedpriv\[quantized\]'"):
        load_base(ModelSection(quantize="4bit"))


def test_two_threads_leave_the_compiler_as_it_was() -> None:
    compiler, left = torch.compile, Event()

    def second() -> None:
        with without_hub_code():
            left.wait(CEILING)

    with ThreadPoolExecutor(1) as pool:
        with without_hub_code():
            done = pool.submit(second)
            wait_until(done.running)
        left.set()
        done.result()
    assert torch.compile is compiler


def test_losses_of_the_packed_model_are_near(make_worker: Make) -> None:
    workers = {bits: make_worker("llama", dtype="float32", quantize=bits) for bits in (None, *BITS)}
    batch = random_batch(workers[None], [20, 7, 13, 2])
    losses = {bits: record_losses(worker.model, batch) for bits, worker in workers.items()}
    off = {bits: float((losses[bits] - losses[None]).abs().max()) for bits in BITS}
    assert 0 < off["8bit"] < off["4bit"] < 0.5
