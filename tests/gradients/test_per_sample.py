"""What one record may do to another's row, and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig

from fedpriv.data.batch import Batch
from fedpriv.errors import NotPrivateError
from fedpriv.gradients.engine import gradients_of
from fedpriv.gradients.per_sample import PerSampleGradients
from fedpriv.loop.step import PrivateStep
from fedpriv.private_training.probe import probe_gradients
from fedpriv.private_training.record_loss import record_losses
from tests.arithmetic import Rounded
from tests.gradients.gradients_checks import disturb, per_record, random_batch

KINDS = [
    ("bert", "classification"),
    ("roberta", "classification"),
    ("gpt2", "causal-lm"),
    ("llama", "causal-lm"),
    ("qwen3", "causal-lm"),
    ("llama", "classification"),
    ("gpt2", "classification"),
    ("qwen3", "classification"),
]


IN_FULL = [pytest.param(kind, task, {}, id=f"{kind}-{task}") for kind, task in KINDS]
QUANTISED = [
    pytest.param(kind, task, {"dtype": dtype, "quantize": bits}, id=f"{kind}-{dtype}-{bits}")
    for kind, task in (("llama", "causal-lm"), ("gpt2", "causal-lm"), ("bert", "classification"))
    for dtype in ("float32", "mixed")
    for bits in ("8bit", "4bit")
]


@pytest.mark.parametrize(("kind", "task", "kept"), IN_FULL + QUANTISED)
def test_replacing_one_record_leaves_every_other_row_bit_equal(
    make_worker: Callable[..., Any], kind: str, task: str, kept: dict[str, str]
) -> None:
    worker = make_worker(kind, task=task, **kept)
    disturb(worker)
    batch = random_batch(worker, [20, 9, 14, 5, 11])
    other = random_batch(worker, [3, 3, 17, 3, 3], seed=9)
    changed = Batch(*(getattr(batch, f).clone() for f in ("input_ids", "attention_mask", "labels")))
    for f in ("input_ids", "attention_mask", "labels"):
        getattr(changed, f)[2] = getattr(other, f)[2]
    before, after = per_record(worker, batch).clone(), per_record(worker, changed)
    assert not torch.equal(before[2], after[2])
    keep = [0, 1, 3, 4]
    assert torch.equal(before[keep], after[keep])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "task", "kept"), IN_FULL + QUANTISED)
def test_dropping_one_record_moves_no_other_row(
    make_worker: Callable[..., Any], kind: str, task: str, kept: dict[str, str]
) -> None:
    """Up to rounding; a site computes batches of one size, in which there is none."""
    worker = make_worker(kind, task=task, **kept)
    disturb(worker)
    batch = random_batch(worker, [20, 9, 14, 5, 11])
    keep = [0, 1, 3, 4]
    fewer = Batch(batch.input_ids[keep], batch.attention_mask[keep], batch.labels[keep])
    found = per_record(worker, fewer).clone()
    assert Rounded(lambda: per_record(worker, batch)[keep]).off_by(found) <= 1


def test_a_batch_mean_loss_would_tie_records_together(make_worker: Callable[..., Any]) -> None:
    """The mutation of law 4: with the mean over the batch's tokens the rows do move."""
    worker = make_worker("llama")
    disturb(worker)
    batch = random_batch(worker, [20, 9, 14])
    shorter = random_batch(worker, [20, 9, 4])

    def mean_loss(b: Batch) -> Callable[[Any], torch.Tensor]:
        def losses(model: Any) -> torch.Tensor:
            tokens = (b.labels != -100).sum()
            return record_losses(model, b) * (b.labels != -100).sum(1) / tokens

        return losses

    before = gradients_of(worker.gradients, mean_loss(batch), 3)
    after = gradients_of(worker.gradients, mean_loss(shorter), 3)
    assert (before[0] - after[0]).norm() / before[0].norm() > 0.05


def test_padding_on_the_left_gives_the_same_rows(make_worker: Callable[..., Any]) -> None:
    worker = make_worker("llama", dtype="float32")  # masked softmax in float64 gives NaN
    disturb(worker)
    right = random_batch(worker, [20, 9, 14])
    order = torch.argsort(right.attention_mask, dim=1, stable=True)
    left = Batch(
        right.input_ids.gather(1, order),
        right.attention_mask.gather(1, order),
        right.labels.gather(1, order),
    )
    found = per_record(worker, left).clone()  # rotary positions are relative
    assert Rounded(lambda: per_record(worker, right)).off_by(found) <= 1


def test_detach_restores_the_model_bit_for_bit(make_worker: Callable[..., Any]) -> None:
    worker = make_worker("gpt2")
    batch = random_batch(worker, [10, 10])
    before = record_losses(worker.model, batch)
    state = {name: p.clone() for name, p in worker.model.state_dict().items()}
    per_record(worker, batch)
    worker.gradients.detach()
    assert torch.equal(before, record_losses(worker.model, batch))
    assert all(torch.equal(p, state[name]) for name, p in worker.model.state_dict().items())
    assert not any("forward" in vars(module) for module in worker.model.modules())
    assert all(p.grad is None for p in worker.model.parameters())


def test_no_summed_weight_gradient_is_computed(make_worker: Callable[..., Any]) -> None:
    worker = make_worker("llama")
    per_record(worker, random_batch(worker, [10, 10]))
    assert all(p.grad is None for p in worker.model.parameters())


def test_a_layer_used_twice_adds_both_uses() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.tanh(self.layer(x)))

    model, x = Twice(), torch.randn(3, 4, 6, dtype=torch.float64)
    gradients = PerSampleGradients(model)
    rows = gradients_of(gradients, lambda m: (m(x) ** 2).sum((1, 2)), 3).clone()
    gradients.detach()
    for i in range(3):
        (model(x[i : i + 1]) ** 2).sum().backward()
        expected = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        model.zero_grad()
        assert (rows[i] - expected).abs().max() < 1e-12


def test_another_thread_adds_nothing_to_the_rows_of_a_batch(
    make_worker: Callable[..., Any],
) -> None:
    """Else a unit's row would hold gradients of others, and of the whole of another batch."""
    worker = make_worker("llama")
    disturb(worker)
    batch, other = random_batch(worker, [20, 9]), random_batch(worker, [5, 11], seed=4)
    expected, refused = per_record(worker, batch), list[str]()

    def go_backwards() -> None:
        try:
            record_losses(worker.model, other).sum().backward()
        except NotPrivateError as error:
            refused.append(str(error))

    def losses(model: Any) -> torch.Tensor:
        thread = Thread(target=go_backwards)
        thread.start()
        thread.join()
        return record_losses(model, batch)

    assert torch.equal(gradients_of(worker.gradients, losses, 2), expected)
    assert "went backwards outside of a private step" in refused[0]


def test_an_unused_layer_has_a_zero_gradient() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 5), "b": nn.Linear(4, 3)}).double()
    x = torch.randn(2, 4, dtype=torch.float64)
    gradients = PerSampleGradients(model)
    for used in ("a", "b", "a"):  # the buffer's old content must not come through
        rows = gradients_of(gradients, lambda m, used=used: m[used](x).sum(1), 2)
        row = rows[0]
        assert (row[: 4 * 5 + 5] == 0).all() == (used == "b")
        assert (row[4 * 5 + 5 :] == 0).all() == (used == "a")


def test_what_is_not_a_batch_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    gradients = PerSampleGradients(model)
    with pytest.raises(NotPrivateError, match=r"shape \(3, 1\) in a batch of 2|shape"):
        gradients_of(gradients, lambda m: m(torch.randn(3, 4)).sum().repeat(2), 2)


def test_a_mean_loss_instead_of_one_per_record_is_refused() -> None:
    gradients = PerSampleGradients(nn.Linear(4, 1))
    with pytest.raises(NotPrivateError, match="one loss per record"):
        gradients_of(gradients, lambda m: m(torch.randn(3, 4)).mean(), 3)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 1)), "Embedding"),
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), "LayerNorm"),
        (nn.Sequential(nn.Conv1d(4, 4, 1)), "Conv1d"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)), "BatchNorm1d"),
        (nn.Linear(4, 4).requires_grad_(False), "trainable"),
    ],
)
def test_what_cannot_be_exact_is_refused_by_name(model: nn.Module, name: str) -> None:
    with pytest.raises(NotPrivateError, match=name):
        PerSampleGradients(model)


def test_deberta_is_refused_by_name(make_worker: Callable[..., Any]) -> None:
    with pytest.raises(NotPrivateError, match=r"deberta.*position"):
        make_worker("deberta", task="classification", targets=("query_proj", "key_proj"))


def test_dora_is_refused_by_name(make_worker: Callable[..., Any]) -> None:
    from peft import LoraConfig, get_peft_model

    worker = make_worker("llama")
    worker.gradients.detach()
    base = worker.model.unload()
    model = get_peft_model(base, LoraConfig(target_modules=["q_proj"], use_dora=True))
    with pytest.raises(NotPrivateError, match="magnitude"):
        PerSampleGradients(model)


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe", "deepseek_v3", "dbrx"])
def test_mixture_of_experts_is_refused_by_name(kind: str) -> None:
    model = nn.Linear(2, 2)
    model.config = AutoConfig.for_model(kind)
    with pytest.raises(NotPrivateError, match="mixture of experts"):
        PerSampleGradients(model)


def test_a_quantised_model_is_refused_by_name(make_worker: Callable[..., Any]) -> None:
    """LLM.int8 looks for outliers in a whole batch; random tokens may have none."""
    from transformers import BitsAndBytesConfig

    worker = make_worker("llama")
    worker.model.config.quantization_config = BitsAndBytesConfig(load_in_8bit=True)
    with pytest.raises(NotPrivateError, match="llama is quantised"):
        PerSampleGradients(worker.model)


def test_layers_that_round_by_what_a_batch_holds_are_refused() -> None:
    """One scale for the activations of a whole batch: a record's own depend on the largest."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch moves these to another package
        model[0] = torch.ao.quantization.quantize_dynamic(nn.Sequential(model[0]))[0]
    x = torch.randn(2, 8)
    louder = torch.stack([x[0], 50 * x[1]])
    assert not torch.equal(model[0](x)[0], model[0](louder)[0])
    with pytest.raises(
        NotPrivateError, match=r"0: Linear is quantised.*in full, or in dtype=\"bfloat16\""
    ):
        PerSampleGradients(model)


def test_weights_that_multiply_in_a_way_of_their_own_are_refused() -> None:
    from bitsandbytes.nn import Linear4bit, Linear8bitLt

    for kind in (Linear4bit, Linear8bitLt):
        model = nn.Sequential(kind(64, 64), nn.Linear(64, 2))
        with pytest.raises(NotPrivateError, match=rf"0: {kind.__name__} is quantised"):
            PerSampleGradients(model)

    class Packed(torch.Tensor):
        """As those of torchao, in a layer that is an ordinary one."""

    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 2))
    weight = torch.randn(64, 64).as_subclass(Packed)
    model[0].weight = nn.Parameter(weight, requires_grad=False)
    with pytest.raises(NotPrivateError, match="0: Packed is quantised"):
        PerSampleGradients(model)


def test_the_probe_catches_a_model_that_mixes_records(make_worker: Callable[..., Any]) -> None:
    """A model that subtracts the batch mean is unknown by name, and is refused all the same."""
    worker = make_worker("llama")
    norm = worker.model.get_base_model().model.norm
    plain = norm.forward
    norm.forward = lambda x: plain(x - x.mean(0, keepdim=True))
    with pytest.raises(NotPrivateError, match="gradient of a record in a batch is off by"):
        probe_gradients(worker)


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_positions_that_remember_longer_records_are_refused(
    make_worker: Callable[..., Any], rope: str
) -> None:
    worker = make_worker("llama")
    worker.model.config.rope_parameters = {"rope_type": rope, "rope_theta": 1e4, "factor": 2.0}
    with pytest.raises(NotPrivateError, match=rope):
        PerSampleGradients(worker.model)


def test_the_probe_catches_a_model_that_remembers(make_worker: Callable[..., Any]) -> None:
    worker = make_worker("llama")
    norm = worker.model.get_base_model().model.norm
    plain, longest = norm.forward, [0]

    def remembering(x: torch.Tensor) -> torch.Tensor:
        longest[0] = max(longest[0], x.shape[1])
        return plain(x) * longest[0]

    norm.forward = remembering
    with pytest.raises(NotPrivateError, match="changes with the records before it"):
        probe_gradients(worker)


@pytest.mark.parametrize("kind", ["llama", "bert", "gpt2", "qwen3"])
def test_a_padded_neighbour_changes_no_bit_of_a_full_record(
    make_worker: Callable[..., Any], kind: str
) -> None:
    """Kernels chosen by the padding of the whole batch would, and large weights blow it up."""
    task = "classification" if kind == "bert" else "causal-lm"
    worker = make_worker(kind, task=task, dtype="float32")
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(worker.vector.size, generator=generator) * 3
    worker.vector.write(worker.vector.read() + noise.numpy())
    for width in (32, 64):  # which of them differ depends on the processor
        full = random_batch(worker, [width] * 4, width=width)
        mixed = random_batch(worker, [*[width] * 3, 9], width=width)
        before, after = per_record(worker, full).clone(), per_record(worker, mixed)
        assert torch.isfinite(before).all()
        assert torch.equal(before[:3], after[:3])


def test_a_parameter_whose_gradient_is_lost_is_refused_by_name(model_folder: Any) -> None:
    """An adapter on a parameter: its gradient passes through a weight that is held constant."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = model_folder("llama")
    config = LoraConfig(r=2, target_modules=["q_proj"], target_parameters=["mlp.up_proj.weight"])
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [{"text": f"note {i}"} for i in range(20)]
    with pytest.raises(NotPrivateError, match=r"up_proj.*the gradient of a record .* is lost"):
        PrivateStep(model, tokenizer, rows, epsilon=8, delta=1e-3, size=20, batch=4, steps=2)
