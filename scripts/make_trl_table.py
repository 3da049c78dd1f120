#!/usr/bin/env python
"""Write docs/reference/trl.md: what happens to each argument of trl's SFTConfig and SFTTrainer.

    python scripts/make_trl_table.py             # writes it
    python scripts/make_trl_table.py --check     # 1 if the file is not what would be written

The refused arguments are those of `fedpriv.loop.arguments`. `tests/loop/test_trl.py` compares the
page with the installed trl: every argument is on it once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from written_page import write_or_check

from fedpriv.loop.arguments import (
    ALLOWED,
    ALONE,
    LOADED_WITH,
    OF_A_TRAINER,
    SAMPLE,
)
from fedpriv.privacy.usual import clip_norm_of

PAGE = Path(__file__).parents[1] / "docs/reference/trl.md"
HEAD = """\
# The arguments of trl

<!-- Written by scripts/make_trl_table.py, with the reasons of fedpriv/loop/arguments.py. -->

A `PrivateConfig` takes each argument of trl's `SFTConfig` (1.0 to 1.16) and of transformers'
`TrainingArguments`, or refuses it by name with the reason. It ignores none that would change the
result. [Python](../tutorials/python.md#a-script-for-trl) shows a script.
"""
REASONS = f"""\
Leave these out. A value in parentheses is taken, too. Two reasons recur:

- {ALONE.capitalize()}.
- {SAMPLE.capitalize().replace("poisson", "Poisson")}.
"""
LANGUAGE, CLASSIFIER = clip_norm_of(False), clip_norm_of(True)
# Where trl's own default is different: its value, ours, and why.
DEFAULTS = {
    "max_grad_norm": (
        "1.0",
        f"{LANGUAGE:g} for a language model, {CLASSIFIER:g} for a classifier",
        "It bounds the gradient of each unit, not of a batch.",
    ),
    "max_length": (
        "1024",
        "1024, or what the model reads",
        "A longer one is refused.",
    ),
    "bf16": ("True", "False", "The model keeps the format in which it was loaded."),
    "gradient_checkpointing": (
        "True",
        "False",
        "It takes a third more time and changes no result. Microbatches also bound memory.",
    ),
    "pad_to_multiple_of": ("auto", "None", "Padding changes nothing here."),
}
# What an argument means in a private run, where that differs from another run.
MEANINGS = {
    "per_device_train_batch_size": "the expected number of units in a step; the sample is secret",
    "num_train_epochs": "how often each unit is expected to be drawn",
    "max_steps": "the steps of the plan",
    "max_grad_norm": "the same as `clip_norm`: the largest norm of a unit's gradient. A step's"
    " gradient is not clipped again",
    "max_length": "tokens in a window. A longer text becomes several windows, of which"
    " `max_records_per_unit` are used. A completion, and a conversation with"
    " `assistant_only_loss`, are cut",
    "assistant_only_loss": "of `messages`: the loss is on the assistant's answers, else on all",
    "dataset_text_field": "the text's column, unless `columns` names it",
    "gradient_checkpointing": "compute layers twice",
    "activation_checkpointing": "the newer name of the same",
    "model_init_kwargs": "options for loading a named model: "
    + ", ".join(
        f"`{name}`" for name in sorted({"attn_implementation", "use_safetensors", *LOADED_WITH})
    )
    + "; others are refused",
    "optim": "of torch or bitsandbytes. Names with `layerwise` are refused: these step by hooks",
    "seed": "of the adapter's first values. Samples and noise have secret seeds",
    "full_determinism": "of torch; samples and noise stay secret",
    "eval_strategy": "evaluation needs `eval_data_is_public=True`",
    "resume_from_checkpoint": "for the script; `train(resume_from_checkpoint=…)` needs a `ledger`",
}
# Arguments that change nothing, by the reason.
WITHOUT_EFFECT = {
    "the Trainer loads no batch of records": "dataset_num_proc shuffle_dataset"
    " packing_strategy pad_to_multiple_of ignore_data_skip dataloader_drop_last length_column_name"
    " torch_empty_cache_steps average_tokens_across_devices",
    "for `predict` only, on public examples": "per_device_eval_batch_size eval_accumulation_steps"
    " prediction_loss_only label_names remove_unused_columns dataloader_num_workers"
    " dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor"
    " dataloader_multiprocessing_context dataloader_in_order",
    "checkpointing knows on and off only": "gradient_checkpointing_kwargs"
    " activation_checkpointing_kwargs",
    "no loss of a step is logged": "logging_nan_inf_filter",
    "there is one process": "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers"
    " ddp_static_graph ddp_timeout local_rank fsdp_config save_on_each_node"
    " log_on_each_node log_level_replica",
    "training generates no text": "use_cache",
    "options of refused arguments": "liger_kernel_config include_for_metrics eval_do_concat_batches"
    " eval_use_gather_object project run_name trackio_space_id trackio_bucket_id"
    " trackio_static_space_id",
}
AS_THEY_ARE = """\
    output_dir learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio
    optim_args optim_target_modules weight_decay adam_beta1 adam_beta2 adam_epsilon tf32
    logging_strategy logging_steps logging_first_step logging_dir log_level disable_tqdm eval_steps
    eval_delay eval_on_start save_only_model save_strategy save_steps save_total_limit
    enable_jit_checkpoint hub_token hub_private_repo hub_model_id hub_strategy hub_always_push
    hub_revision load_best_model_at_end metric_for_best_model greater_is_better
    restore_callback_states_from_checkpoint use_cpu do_train do_eval do_predict"""


def page() -> str:
    """Write the whole page."""
    return "\n".join([HEAD, *_sections()])


def without_effect() -> set[str]:
    """Return the names of arguments that change nothing."""
    return {name for names in WITHOUT_EFFECT.values() for name in names.split()}


def _sections() -> Iterator[str]:
    yield from _table(
        "Defaults that are not trl's",
        ("argument", "of trl", "here", "why"),
        ((f"`{name}`", *row) for name, row in DEFAULTS.items()),
    )
    yield "All others are trl's, such as a `learning_rate` of 2e-5.\n"
    yield from _table(
        "What they mean here",
        ("argument", "meaning"),
        ((f"`{name}`", meaning) for name, meaning in MEANINGS.items()),
    )
    yield from _table("Refused", ("argument", "a private run …"), _by_reason(_refused()), REASONS)
    yield from _table(
        "Taken, without an effect",
        ("why", "arguments"),
        ((why, _listed(names.split())) for why, names in WITHOUT_EFFECT.items()),
    )
    yield f"## Taken as they are\n\n{_listed(AS_THEY_ARE.split())}.\n"
    yield from _table(
        "Arguments of the trainer that are refused",
        ("argument of `SFTTrainer`", "why"),
        _by_reason((f"`{name}`", why) for name, why in OF_A_TRAINER.items()),
    )


def _refused() -> Iterator[tuple[str, str]]:
    """Yield the refused arguments, with values that turn something on and are still accepted."""
    for name, (values, why, _) in ALLOWED.items():
        taken = ", ".join(f"`{value!r}`" for value in values if value)
        yield f"`{name}` ({taken})" if taken else f"`{name}`", why


def _by_reason(refused: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    rows: dict[str, list[str]] = {}
    for name, why in refused:
        rows.setdefault(_short(why), []).append(name)
    for why, names in rows.items():
        yield ", ".join(names), why


def _short(why: str) -> str:
    """Return a reason without the part that is written above the table."""
    return why.removesuffix(f": {ALONE}").removesuffix(f": {SAMPLE}")


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(
    heading: str, columns: tuple[str, ...], rows: Iterator[tuple[str, ...]], before: str = ""
) -> Iterator[str]:
    yield f"## {heading}\n"
    if before:
        yield before
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), Path(__file__).name, __doc__))
