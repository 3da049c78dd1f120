"""Try on random tokens whether a record's gradient is its own, and covers all that is trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from fedpriv.data.batch import Batch
from fedpriv.errors import NotPrivateError
from fedpriv.gradients.remembered import Remembered
from fedpriv.private_training.record_loss import IGNORED
from fedpriv.private_training.worker import Worker

LONGEST = 1024
# Relative difference that rounding alone may make between a gradient alone and in a batch.
TOLERANCE = {"float64": 1e-8, "float32": 1e-4, "mixed": 5e-2, "bfloat16": 5e-2}
# A deep model amplifies the rounding of 16-bit products. So FACTOR times what noise of that size
# does to a gradient is allowed, too: 0.3 to 1.7 times were seen in SmolLM2. MOST is the limit.
ROUNDING = {"mixed": 2.0**-9, "bfloat16": 2.0**-9}
DRAWS, FACTOR, MOST = 2, 4.0, 0.5
# A parameter's gradient is compared with its own length plus this share of the whole length.
SHARE = 0.1


def probe_gradients(worker: Worker) -> None:
    """Compare a batch's gradients with torch's of each record alone, and with its own later on.

    Torch's are made of one record without padding, by the model's own layers. So this catches what
    `refuse_mixing` does not know by name: a layer that mixes records, one that remembers what it
    has seen or keeps anything of it, one that reads padding, and a trained parameter whose gradient
    is lost. The tokens are public randomness, never records.

    Raises:
        NotPrivateError: they differ. The error names the parameter.
    """
    gradients, before = worker.record_gradients, Remembered(worker.model, frozen=True)
    longest = worker.recipe.model.max_length
    mask = torch.ones(3, min(12, longest), dtype=torch.int64)
    mask[0, mask.shape[1] // 2 :] = 0  # the first record is half padding
    batch = worker.random_batch(mask, seed=0)
    long = worker.random_batch(torch.ones(1, min(longest, LONGEST), dtype=torch.int64), seed=1)
    original = worker.vector.read()
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(worker.vector.size, generator=generator) * 0.02
    worker.vector.write(original + noise.numpy())  # a fresh lora_B is 0 and hides errors
    written = worker.vector.read()
    try:
        together = gradients(batch)
        alone = _by_torch(worker, batch)
        seeds = range(DRAWS if worker.recipe.compute.dtype in ROUNDING else 0)
        moved = [_by_torch(worker, batch, seed) - alone for seed in seeds]
        gradients(long)
        again = gradients(batch)
        stays = np.array_equal(worker.vector.read(), written)
    finally:
        worker.vector.write(original)
    kind = worker.model.config.model_type
    for name in before.changed():
        raise NotPrivateError(
            f"{name}: keeps something of what this {kind} computes. With private records, that"
            " would be shown without noise, in a checkpoint or in the next evaluation. Switch off"
            " what counts or caches there, or use another architecture."
        )
    if not stays:
        raise NotPrivateError(
            f"This {kind} changes what is trained when it computes, as an embedding with max_norm"
            " does. That would show private records without noise. Switch it off."
        )
    lengths = alone.norm(dim=1)
    allowed = TOLERANCE[worker.recipe.compute.dtype]
    for name, columns in _columns(worker):
        own, expected = together[:, columns], alone[:, columns]
        scale = expected.norm(dim=1) + SHARE * lengths
        off = float(((own - expected).norm(dim=1) / scale).nan_to_num(torch.inf).max())
        rounding = [float((by[:, columns].norm(dim=1) / scale).max()) for by in moved]
        most = max(allowed, min(MOST, FACTOR * max(rounding, default=0.0)))
        lost = not own.any() and bool((expected.norm(dim=1) > 1e-6 * lengths).any())
        if lost or not off <= most:
            how = "is lost" if lost else f"is off by {off:.1e} of its length"
            raise NotPrivateError(
                f"{name}: the gradient of a record in a batch {how}, compared with what torch makes"
                f" of that record alone, so this {kind} can't be trained privately as it is. Leave"
                " out what is trained there, or use another architecture."
                + ' Or it is rounding: then compute.dtype = "float32" helps.'
                * bool(moved)
            )
    if not bool(lengths.any()):
        raise NotPrivateError(f"Nothing that is trained in this {kind} changes the loss.")
    changed = float((together - again).norm(dim=1).max() / lengths.max())
    if changed > (0 if worker.device == "cpu" else allowed):
        raise NotPrivateError(
            f"A record's gradient changes with the records before it (relative difference"
            f" {changed:.1e}), so this {kind} can't be trained privately."
        )


def _columns(worker: Worker) -> Iterator[tuple[str, slice]]:
    start = 0
    for name, shape in zip(worker.vector.names, worker.vector.shapes, strict=True):
        end = start + torch.Size(shape).numel()
        yield name, slice(start, end)
        start = end


def _by_torch(worker: Worker, batch: Batch, seed: int | None = None) -> Tensor:
    """Compute the gradient of each record alone, without padding, by torch itself: (B, P).

    Args:
        seed: for noise at each product's input and output, as large as rounding; None for no noise.
    """
    named = dict(worker.model.named_parameters())
    trained = [named[name] for name in worker.vector.names]
    found = []
    noisy = nullcontext() if seed is None else _rounded(worker, seed)
    with worker.gradients.set_aside(), noisy, torch.enable_grad():
        for ids, mask, label in zip(
            batch.input_ids, batch.attention_mask, batch.labels, strict=True
        ):
            length = int(mask.sum())
            logits = worker.model(input_ids=ids[None, :length]).logits[0].to(torch.float64)
            if logits.ndim == 1:
                loss = F.cross_entropy(logits, label)
            else:
                loss = F.cross_entropy(logits[:-1], label[1:length], ignore_index=IGNORED)
            parts = torch.autograd.grad(loss, trained, materialize_grads=True)  # or zeros
            found.append(torch.cat([part.reshape(-1) for part in parts]))
    return torch.stack(found).to(worker.gradients.dtype)


@contextmanager
def _rounded(worker: Worker, seed: int) -> Iterator[None]:
    generator, by = torch.Generator().manual_seed(seed), ROUNDING[worker.recipe.compute.dtype]

    def move(_: nn.Module, inputs: tuple[Any, ...], output: Any = None) -> Any:
        x = inputs[0] if output is None else output
        noise = torch.randn(x.shape, generator=generator).to(x)
        return x * (1 + by * noise)

    with ExitStack() as hooks:
        for module in (m for m in worker.model.modules() if type(m) in (nn.Linear, Conv1D)):
            hooks.enter_context(module.register_forward_pre_hook(move))
            hooks.enter_context(module.register_forward_hook(move))
        yield
