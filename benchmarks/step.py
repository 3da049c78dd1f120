"""Measure what a private LoRA step costs, beside a plain one and beside other implementations.

    python benchmarks/step.py --json step.json --chart step.svg

A step is the forward and backward pass over one batch, and AdamW. The private ones clip every
record's gradient and add noise in between. All ways start from the same random model, adapter and
batch, and run in turn in one process. A ratio is the median over turns. Every private way has to
find the same clipped sum. Ours computes as many records at once as a site does, the others all of
them. Peak memory is what tensors take beyond the model, by torch's own allocator. The floor is the
multiplications of the plain step at the best rate seen here.

``plain`` is what transformers and peft do by themselves, and ``opacus hooks`` what opacus does by
default. fastDP is on no package index. It is measured where a checkout of
awslabs/fast-differential-privacy is on PYTHONPATH. ``--compiled`` adds our step with torch's
compiler, which takes a minute a shape and needs a compiler for C++. On a GPU, use larger shapes and
bfloat16: ``--device cuda --shapes gpu``.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from interleaved import interleaved, median, ratio
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from unit_noise import unit_noise

from fedpriv.data.batch import Batch
from fedpriv.gradients.engine import gradients_of
from fedpriv.gradients.per_sample import PerSampleGradients
from fedpriv.models.attention import RECORDWISE, register_attention
from fedpriv.models.mixed import halve_frozen_products
from fedpriv.privacy.mechanism.clip import clip_and_sum
from fedpriv.privacy.mechanism.csprng import SystemCsprng
from fedpriv.private_training.microbatch import TRIED
from fedpriv.private_training.record_loss import record_losses

CLIP, SIGMA, RATE = 1.0, 1.0, 1e-3
ENCODER = {"all": ["query", "key", "value", "dense"], "q,v": ["query", "value"]}
DECODER = {
    "all": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "q,v": ["q_proj", "v_proj"],
}


@dataclass(frozen=True)
class Shape:
    """Describe a model and a batch: B records of T tokens."""

    kind: str
    targets: str
    records: int
    tokens: int
    rank: int
    layers: int = 6
    width: int = 384
    vocabulary: int = 4096
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.layers}×{self.width}, {self.targets}, r={self.rank},"
            f" {self.records} × {self.tokens}"
        )


SHAPES = {
    "cpu": [
        Shape("encoder", "q,v", 16, 128, 8),
        Shape("encoder", "all", 16, 64, 16),
        Shape("decoder", "q,v", 16, 128, 8),
        Shape("decoder", "all", 8, 128, 8),
    ],
    "quick": [
        Shape("encoder", "q,v", 4, 16, 4, layers=2, width=64),
        Shape("decoder", "all", 4, 16, 4, layers=2, width=64),
    ],
    "gpu": [
        Shape("encoder", "q,v", 64, 128, 8, 12, 768, 30522),
        Shape("encoder", "all", 64, 128, 16, 12, 768, 30522),
        Shape("decoder", "q,v", 16, 512, 8, 24, 1024, 32000, torch.bfloat16),
        Shape("decoder", "all", 16, 512, 8, 24, 1024, 32000, torch.bfloat16),
    ],
}


def build(shape: Shape, attention: str) -> Any:
    """Build a random model with an adapter that has been moved away from its start."""
    import transformers
    from peft import LoraConfig, TaskType, get_peft_model

    register_attention()
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "intermediate_size": 4 * shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": max(4, shape.width // 64),
        "max_position_embeddings": max(512, shape.tokens),
        "pad_token_id": 0,
        "attn_implementation": attention,
        "dtype": shape.dtype,
    }
    if shape.kind == "encoder":
        sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 2}
        config: Any = transformers.BertConfig(**sizes)
        base: Any = transformers.BertForSequenceClassification(config)
        task, targets = TaskType.SEQ_CLS, ENCODER[shape.targets]
    else:
        config = transformers.LlamaConfig(**sizes)
        base = transformers.LlamaForCausalLM(config)
        task, targets = TaskType.CAUSAL_LM, DECODER[shape.targets]
    lora = LoraConfig(r=shape.rank, lora_alpha=16, target_modules=targets, task_type=task)
    model = get_peft_model(base.to(shape.dtype), lora)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "lora_B" in name:
            nn.init.normal_(parameter, std=0.02)
    return model.train()  # opacus asks for it; there is no dropout


def random_batch(shape: Shape) -> Batch:
    """Make random tokens. A quarter of the records are padded by a quarter."""
    generator = torch.Generator().manual_seed(1)
    size = (shape.records, shape.tokens)
    ids = torch.randint(3, shape.vocabulary, size, generator=generator)
    mask = torch.ones_like(ids)
    mask[::4, -(shape.tokens // 4) :] = 0
    ids = ids * mask
    if shape.kind == "encoder":
        return Batch(ids, mask, torch.randint(2, (shape.records,), generator=generator))
    return Batch(ids, mask, torch.where(mask == 1, ids, -100))


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def gradients(model: nn.Module) -> list[Tensor]:
    """Return the gradients of the trained parameters after a backward pass."""
    found = []
    for p in trained(model):
        assert p.grad is not None
        found.append(p.grad)
    return found


def usual_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return a loss for each record (B,), as most people would write it."""
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels, reduction="none")
    logits, labels = logits[:, :-1].float(), labels[:, 1:]
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return losses.view(labels.shape).sum(1) / (labels != -100).sum(1).clamp_min(1)


class Way:
    """Do a step in one way.

    Attributes:
        sum: the clipped sum of the last step, (P,), in the order of the parameters.
    """

    attention = "sdpa"

    def __init__(self, model: Any, batch: Batch) -> None:
        self.model, self.batch = model, batch
        self.optimizer: Any = torch.optim.AdamW(trained(model), lr=RATE, foreach=False)
        self.sum: Tensor | None = None
        self.keep_sum = False

    def logits(self) -> Tensor:
        batch = self.batch
        found: Tensor = self.model(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask
        ).logits
        return found

    def step(self) -> None:
        raise NotImplementedError

    def take(self, parts: list[Tensor]) -> None:
        if self.keep_sum:
            self.sum = torch.cat([part.detach().float().reshape(-1) for part in parts])


class Plain(Way):
    def step(self) -> None:
        batch = self.batch
        loss = self.model(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels
        ).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class PlainEager(Plain):
    attention = "eager"


class Fedpriv(Way):
    attention = RECORDWISE

    def __init__(self, model: Any, batch: Batch) -> None:
        super().__init__(model.eval(), batch)
        self.engine = PerSampleGradients(model)
        self.csprng = SystemCsprng()
        size = TRIED.get(batch.input_ids.device.type, TRIED["other"])
        fields = (batch.input_ids, batch.attention_mask, batch.labels)
        self.parts = [Batch(*part) for part in zip(*(f.split(size) for f in fields), strict=True)]

    def step(self) -> None:
        total = torch.zeros(self.engine.size, dtype=torch.float64, device=self.engine.device)
        for part in self.parts:
            rows = gradients_of(self.engine, partial(record_losses, batch=part), len(part))
            total += clip_and_sum(rows, CLIP)
        self.take([total])
        noise = torch.from_numpy(unit_noise(self.engine.size, self.csprng)) * (SIGMA * CLIP)
        slope = ((total.cpu() + noise) / len(self.batch)).float().to(total.device)
        start = 0
        for p in trained(self.model):
            p.grad = slope[start : start + p.numel()].view(p.shape).to(p.dtype)
            start += p.numel()
        self.optimizer.step()
        self.optimizer.zero_grad()


class FedprivMixed(Fedpriv):
    def __init__(self, model: Any, batch: Batch) -> None:
        halve_frozen_products(model)
        super().__init__(model, batch)


class FedprivCompiled(FedprivMixed):
    """Compile what lies between the linear layers. Torch's compiler needs one for C++."""

    def __init__(self, model: Any, batch: Batch) -> None:
        super().__init__(model, batch)
        for module in model.modules():
            if "forward" in vars(module):  # here rows of gradients are made
                module.forward = torch.compiler.disable(module.forward)
        model.compile(dynamic=False)


class OpacusHooks(Way):
    def __init__(self, model: Any, batch: Batch) -> None:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        super().__init__(model, batch)
        self.model = GradSampleModule(model)
        self.optimizer = DPOptimizer(
            self.optimizer,
            noise_multiplier=SIGMA,
            max_grad_norm=CLIP,
            expected_batch_size=len(batch),
        )

    def step(self) -> None:
        usual_losses(self.logits(), self.batch.labels).mean().backward()
        self.optimizer.noise_multiplier = 0.0 if self.keep_sum else SIGMA
        self.optimizer.step()
        self.take([slope * len(self.batch) for slope in gradients(self.model)])
        self.optimizer.zero_grad()


class OpacusGhost(Way):
    def __init__(self, model: Any, batch: Batch) -> None:
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

        super().__init__(model, batch)
        self.model = GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP)
        self.optimizer = DPOptimizerFastGradientClipping(
            self.optimizer,
            noise_multiplier=SIGMA,
            max_grad_norm=CLIP,
            expected_batch_size=len(batch),
        )
        self.wrap = DPTensorFastGradientClipping

    def step(self) -> None:
        losses = usual_losses(self.logits(), self.batch.labels)
        self.wrap(self.model, self.optimizer, losses, "mean").backward()
        self.take(gradients(self.model))
        self.optimizer.step()
        self.optimizer.zero_grad()


class TorchFunc(Way):
    """Run `vmap` over `grad`. Attention masks of transformers need the eager form for it."""

    attention = "eager"

    def step(self) -> None:
        from torch.func import functional_call, grad, vmap

        parameters = dict(self.model.named_parameters())
        own = {name: p for name, p in parameters.items() if p.requires_grad}
        fixed = {name: p.detach() for name, p in parameters.items() if not p.requires_grad}

        def loss(values: dict[str, Tensor], ids: Tensor, mask: Tensor, label: Tensor) -> Tensor:
            fed = {"input_ids": ids[None], "attention_mask": mask[None]}
            logits = functional_call(self.model, {**fixed, **values}, (), fed).logits
            return usual_losses(logits, label[None])[0]

        batch = self.batch
        found = vmap(grad(loss), in_dims=(None, 0, 0, 0), randomness="different")(
            {name: p.detach() for name, p in own.items()},
            batch.input_ids,
            batch.attention_mask,
            batch.labels,
        )
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in found.values()]).norm(dim=0)
        scale = (CLIP / norms).clamp_max(1.0)
        sums = [torch.einsum("b,b...->...", scale, found[name]) for name in own]
        self.take(sums)
        for p, total in zip(own.values(), sums, strict=True):
            p.grad = (total + torch.randn_like(total) * SIGMA * CLIP) / len(batch)
        self.optimizer.step()
        self.optimizer.zero_grad()


class FastDP(Way):
    def __init__(self, model: Any, batch: Batch) -> None:
        from fastDP import PrivacyEngine

        super().__init__(model, batch)
        for module in model.modules():
            if type(module).__name__ == "BertEmbeddings":  # transformers 5 no longer has it
                module.position_embedding_type = "absolute"
        self.engine = PrivacyEngine(
            model,
            batch_size=len(batch),
            sample_size=1000,
            noise_multiplier=SIGMA,
            epochs=1,
            max_grad_norm=CLIP,
            clipping_fn="Abadi",
            clipping_mode="MixOpt",
            loss_reduction="mean",
        )
        self.engine.attach(self.optimizer)

    def step(self) -> None:
        parameters: list[Any] = trained(self.model)
        if self.keep_sum:  # its sums include their noise from the start
            noise = [p.noise for p in parameters]
            for p in parameters:
                p.noise = 0.0
        usual_losses(self.logits(), self.batch.labels).mean().backward()
        if self.keep_sum:
            self.take([p.private_grad for p in parameters])
            for p, usual in zip(parameters, noise, strict=True):
                p.noise = usual
        self.optimizer.step()
        self.optimizer.zero_grad()


COMPILED = "fedpriv, mixed, compiled"
WAYS: dict[str, type[Way]] = {
    "plain": Plain,
    "plain, eager": PlainEager,
    "fedpriv": Fedpriv,
    "fedpriv, mixed": FedprivMixed,
    COMPILED: FedprivCompiled,
    "opacus hooks": OpacusHooks,
    "opacus ghost": OpacusGhost,
    "torch.func": TorchFunc,
    "fastDP": FastDP,
}


def peak_bytes(step: Callable[[], None], device: str) -> int:
    """Return the most bytes that tensors took during a step, beyond what they held before."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        step()
    events: Any = watched.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    held = peak = 0
    for _, change in sorted(changes):
        held += change
        peak = max(peak, held)
    return peak


def busiest(step: Callable[[], None], count: int = 6) -> str:
    """Say where the time of a step goes: torch's operators, by their own share of it."""
    from torch.profiler import ProfilerActivity, profile

    step()
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        step()
    found = {event.key: event.self_cpu_time_total for event in watched.key_averages()}
    total = sum(found.values())
    first = sorted(found, key=lambda name: -found[name])[:count]
    return ", ".join(f"{name.removeprefix('aten::')} {found[name] / total:.0%}" for name in first)


def best_rate(device: str, dtype: torch.dtype) -> float:
    """Return a large product's best rate by torch's ways: multiply-and-adds a second, times 2."""
    from fedpriv.gradients.product import linear

    x = torch.randn(2048, 1024, device=device, dtype=dtype)
    weight = torch.randn(1024, 1024, device=device, dtype=dtype)
    best = 0.0
    for way in (F.linear, linear):
        for _ in range(5):
            started = time.perf_counter()
            way(x, weight)
            if device != "cpu":
                torch.cuda.synchronize()
            best = max(best, 2.0 * 2048 * 1024 * 1024 / (time.perf_counter() - started))
    return best


def multiplications(shape: Shape, device: str) -> int:
    """Count the plain step's multiplications, by torch's counter, times 2 for the additions."""
    from torch.utils.flop_counter import FlopCounterMode

    way = Plain(build(shape, "eager").to(device), random_batch(shape).to(device))
    with FlopCounterMode(display=False) as counter:
        way.step()
    return counter.get_total_flops()


def measure(
    kinds: Mapping[str, type[Way]], shape: Shape, device: str, repeats: int
) -> list[dict[str, Any]]:
    models: dict[str, Any] = {}
    ways: dict[str, Way] = {}
    failed: dict[str, str] = {}
    batch = random_batch(shape).to(device)
    for name, kind in kinds.items():
        if kind.attention not in models:
            models[kind.attention] = build(shape, kind.attention)
        try:
            way = kind(copy.deepcopy(models[kind.attention]).to(device), batch)
            way.keep_sum = True
            way.step()
            way.keep_sum = False
            ways[name] = way
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0]:.60}"
    expected = ways["fedpriv"].sum
    assert expected is not None
    errors = {
        name: float((way.sum - expected).norm() / expected.norm())
        for name, way in ways.items()
        if way.sum is not None
    }

    def timed(way: Way) -> None:
        way.step()
        if device != "cpu":
            torch.cuda.synchronize()

    turns = interleaved({name: partial(timed, way) for name, way in ways.items()}, repeats)
    peaks = {name: peak_bytes(way.step, device) for name, way in ways.items()}
    floor = multiplications(shape, device) / best_rate(device, shape.dtype)
    rows: list[dict[str, Any]] = []
    for name in kinds:
        row: dict[str, Any] = {"shape": str(shape), "method": name}
        if name in failed:
            rows.append({**row, "failed": failed[name]})
            continue
        seconds = median(turns, name)
        rows.append(
            {
                **row,
                "seconds": seconds,
                "samples_per_second": shape.records / seconds,
                "time_ratio": ratio(turns, name, "plain"),
                "memory_ratio": peaks[name] / peaks["plain"],
                "speed_over_opacus": ratio(turns, "opacus hooks", name),
                "peak_mb": peaks[name] / 1e6,
                "floor_seconds": floor,
                "difference": errors.get(name),
            }
        )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("shape", "way", "ms", "time", "memory", "MB", "× opacus", "sum off by")
    last = None
    for row in rows:
        first = row["shape"] if row["shape"] != last else ""
        last = row["shape"]
        if "failed" in row:
            table.add_row(first, row["method"], f"[dim]{row['failed']}[/dim]")
            continue
        off = row["difference"]
        table.add_row(
            first,
            row["method"],
            f"{row['seconds'] * 1e3:.0f}",
            f"{row['time_ratio']:.2f}",
            f"{row['memory_ratio']:.2f}",
            f"{row['peak_mb']:.0f}",
            f"{row['speed_over_opacus']:.2f}",
            "" if off is None else f"{off:.0e}",
        )
        if row["method"] == "plain":
            table.add_row("", "[dim]floor[/dim]", f"{row['floor_seconds'] * 1e3:.0f}")
    Console().print(table)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the time relative to the plain step, with a group of bars for every shape."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    figure, axes = plt.subplots(len(shapes), 1, figsize=(7, 1.7 * len(shapes)), sharex=True)
    for axis, shape in zip(axes, shapes, strict=True):
        shown = [row for row in rows if row["shape"] == shape and "failed" not in row][::-1]
        names = [row["method"] for row in shown]
        colours = ["#17616e" if name.startswith("fedpriv") else "#b9b4a6" for name in names]
        bars = axis.barh(names, [row["time_ratio"] for row in shown], color=colours, height=0.7)
        axis.bar_label(bars, [f"{row['time_ratio']:.2f}" for row in shown], padding=3, fontsize=8)
        axis.axvline(1, color="#22262b", linewidth=0.8)
        axis.set_title(shape, loc="left", fontsize=9)
        axis.tick_params(labelsize=8, length=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
    axes[-1].set_xlabel("time of a step over the plain, non-private one", fontsize=9)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shapes", choices=sorted(SHAPES), default="cpu")
    parser.add_argument("--compiled", action="store_true", help="with torch's compiler, too")
    parser.add_argument("--profile", action="store_true", help="where the time goes, and no more")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    shapes = SHAPES["quick" if arguments.quick else arguments.shapes]
    if arguments.profile:
        for shape in shapes:
            for name in ("plain", "fedpriv", "fedpriv, mixed"):
                way = WAYS[name](build(shape, WAYS[name].attention), random_batch(shape))
                print(f"{shape}: {name}: {busiest(way.step)}")
        return
    repeats = 1 if arguments.quick else arguments.repeats
    kinds = {name: WAYS[name] for name in WAYS if arguments.compiled or name != COMPILED}
    rows: list[dict[str, Any]] = []
    for shape in shapes:
        found = measure(kinds, shape, arguments.device, repeats)
        show(found)
        rows += found
        if arguments.json:
            arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    if arguments.chart:
        draw(rows, arguments.chart)


if __name__ == "__main__":
    main()
