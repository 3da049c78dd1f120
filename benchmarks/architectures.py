"""Try every architecture at a tiny size, and write the table of docs/reference/models.md.

    python benchmarks/architectures.py [--task causal-lm] [--only bloom …] [--write]

Each is built from its own configuration, saved, and loaded as a run loads it. Then a worker is made
of it, which tries the gradients. A row says what would have happened in a run.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
import transformers
from tokenizers.processors import TemplateProcessing
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from fedpriv.base_model import EMBEDDED
from fedpriv.config.task import Task
from fedpriv.errors import FedprivError
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.pool import make_worker
from fedpriv.private_training.worker import ModelRecipe

PAGE = Path(__file__).parents[1] / "docs/reference/models.md"
MARK = "<!-- architectures -->"  # before and after the table
NOT_TRIED = "not tried"
MOST = 6_000_000  # most parameters of a model that counts as tiny
LABELS = ("no", "yes")
_TASKS: dict[str, Any] = {
    "causal-lm": (
        transformers.AutoModelForCausalLM,
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    ),
    "classification": (
        transformers.AutoModelForSequenceClassification,
        modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    ),
}
_SIZES = {
    32: "hidden_size d_model n_embd emb_dim dim embedding_size word_embed_proj_dim embed_dim",
    2: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers"
    " num_decoder_layers num_local_experts num_experts n_routed_experts moe_num_experts"
    " num_key_value_heads n_group topk_group",
    4: "num_attention_heads n_head n_heads num_heads attention_heads encoder_attention_heads"
    " decoder_attention_heads qk_rope_head_dim rotary_dim",
    64: "intermediate_size n_inner ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff ffn_hidden_size"
    " d_inner inner_dim moe_intermediate_size shared_intermediate_size",
    8: "head_dim d_kv d_head sliding_window window_size q_lora_rank kv_lora_rank qk_nope_head_dim"
    " v_head_dim hidden_size_per_layer_input",
    128: "max_position_embeddings n_positions n_ctx",
    1: "num_experts_per_tok moe_topk",
}
_TINY = {name: size for size, names in _SIZES.items() for name in names.split()}
_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "head_dim": 8}
# What some architectures need besides.
_OWN: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "convbert": {"embedding_size": 32},
    "mamba2": {"num_heads": 8},
    "nemotron": {"num_key_value_heads": 2},
    "ministral": _ROPE,
    "hunyuan_v1_dense": _ROPE,
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "lsh"]},
    "xmod": {"default_language": "en_XX"},
}


@dataclass(frozen=True)
class Row:
    """What became of one architecture.

    Attributes:
        said: "exact" with the kind of attention, or why the architecture is refused or was not
            built.
    """

    kind: str
    said: str


def kinds(task: Task) -> list[str]:
    """Return the names of all architectures that transformers has for a task."""
    return sorted(_TASKS[task][1])


def tiny_config(kind: str, vocabulary: int, **more: Any) -> Any:
    """Make the configuration of a small model of that kind.

    Raises:
        ValueError: the sizes of other small models make no configuration of this kind.
    """
    made: Any = CONFIG_MAPPING[kind]
    known = {**_small(made()), **_OWN.get(kind, {}), **more, "vocab_size": vocabulary}
    if "kv_lora_rank" in known:  # there, all heads have keys of their own
        known["num_key_value_heads"] = known["num_attention_heads"]
        known["head_dim"] = known["qk_rope_head_dim"]
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    for left_out in (None, *known):  # a size that does not fit the others stays as it is
        with suppress(Exception):
            return made(**{k: v for k, v in (known | tokens).items() if k != left_out})
    raise ValueError("no small configuration")


def _small(config: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        own = vars(config).get(name, value)
        if isinstance(own, transformers.PretrainedConfig):
            found[name] = {**_small(own), "model_type": own.model_type, "vocab_size": 4200}
        elif name in _TINY and isinstance(value, int) and not isinstance(value, bool):
            found[name] = _TINY[name]
        elif name == "per_layer_config":
            found[name] = {}
        elif name == "vocab_size_per_layer_input":
            found[name] = 4200
        elif name.endswith(("layer_types", "block_types", "block_type")) and value:
            found[name] = (sorted(set(value)) * 2)[:2]  # one of each kind
    return found


def save_tiny(kind: str, task: Task, folder: Path, **more: Any) -> None:
    """Write a small random model of that kind with the embedded model's tokenizer.

    Raises:
        ValueError: the kind has no model of a few million parameters.
    """
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(EMBEDDED)
    around = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<bos>", "<eos>")]
    ends = TemplateProcessing(single="<bos> $A <eos>", special_tokens=around)
    tokenizer.backend_tokenizer.post_processor = ends  # some models read a text's class there
    config = tiny_config(kind, 4200, **more)
    if task == "causal-lm" and hasattr(config, "is_decoder"):
        config.is_decoder = True
    config.num_labels = len(LABELS)
    factory, _ = _TASKS[task]
    with torch.device("meta"):
        size = sum(p.numel() for p in factory.from_config(config).parameters())
    if size > MOST:
        raise ValueError(f"has {size / 1e6:.0f} million parameters at the least size that is known")
    torch.manual_seed(0)
    model = factory.from_config(config).eval()
    with torch.no_grad():  # sizes may not fit together
        model(input_ids=torch.tensor([[*range(3, 12), tokenizer.eos_token_id]]), use_cache=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tried(kind: str, task: Task) -> Row:
    """Build a model of that kind, load it and make a worker of it."""
    with tempfile.TemporaryDirectory() as name:
        try:
            save_tiny(kind, task, Path(name))
        except Exception as error:  # each kind fails in its own way
            return Row(kind, f"{NOT_TRIED}: {_short(error)}")
        labels = LABELS if task == "classification" else ()
        model = ModelSection(name=name, task=task, labels=labels, max_length=40)
        lora = LoraSection(r=2, target_modules="all-linear")
        recipe = ModelRecipe(model, lora, 0, ComputeSection(device="cpu"))
        try:
            worker = make_worker(recipe)
        except FedprivError as error:
            said = _short(error).replace(f"model.name: {name!r} ", "")
            return Row(kind, f"refused: {re.sub(rf'[(]?{kind}(_text)?[)]?:? ', '', said)}")
        except Exception as error:
            return Row(kind, f"FAULT: {type(error).__name__}: {_short(error)}")
        return Row(kind, f"exact: {worker.base.model.config._attn_implementation}")


def _short(error: Exception) -> str:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    said = re.split(r"(?<=[a-z)]{3})\. |: its logits", first)[0]
    return said.rstrip(".")[:160]


def table(verdicts: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Return lines of Markdown, with one row for each verdict and none for what was not tried.

    Args:
        verdicts: for each task, what was said about each architecture.
    """
    tasks = get_args(Task)
    named: dict[str, list[list[str]]] = {}
    for kind in sorted({kind for found in verdicts.values() for kind in found}):
        said = [verdicts.get(task, {}).get(kind, NOT_TRIED) for task in tasks]
        for text in {*said} - {NOT_TRIED}:
            which = 0 if said == len(tasks) * [text] else 1 + said.index(text)
            named.setdefault(text, [[] for _ in range(1 + len(tasks))])[which].append(kind)
    yield "| verdict | both | language model | classifier |"
    yield "|---|---|---|---|"
    for text in sorted(named):
        yield f"| {' | '.join([text, *map(', '.join, named[text])])} |"


def listed(page: str) -> dict[str, dict[str, str]]:
    """Read from the page what it says about each architecture, by task."""
    tasks = get_args(Task)
    found: dict[str, dict[str, str]] = {task: {} for task in tasks}
    for line in page.split(MARK)[1].splitlines():
        if line.startswith("| ") and not line.startswith("| verdict | "):
            said, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            for of, cell in zip((tasks, *((task,) for task in tasks)), cells, strict=True):
                for task in of:
                    found[task] |= {kind: said for kind in cell.split(", ") if kind}
    return found


def verdict(row: Row) -> str:
    """Return what the page says about a row. No reader needs to know why a model can't be built."""
    return NOT_TRIED if row.said.startswith(NOT_TRIED) else row.said.replace("|", "/")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--task", choices=get_args(Task), action="append")
    options.add_argument("--only", nargs="*", default=[])
    options.add_argument("--write", action="store_true")
    wanted = options.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    text = PAGE.read_text(encoding="utf-8")
    verdicts = listed(text)
    for task in wanted.task or get_args(Task):
        if not wanted.only:
            verdicts[task] = {}
        for kind in wanted.only or kinds(task):
            row = tried(kind, task)
            verdicts[task][kind] = verdict(row)
            print(f"{task}: {row.kind}: {row.said}", file=sys.stderr, flush=True)
    if wanted.write:
        before, _, after = text.split(MARK)
        written = "\n".join([MARK, "", *table(verdicts), "", MARK])
        PAGE.write_text(f"{before}{written}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
