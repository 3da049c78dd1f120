"""Configurations of real architectures, small enough for a unit test."""

from __future__ import annotations

from typing import Any

VOCAB = 300
_SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TARGETS = {
    "bert": ("query", "key", "value", "dense"),
    "roberta": ("query", "value"),
    "gpt2": ("c_attn", "c_proj", "c_fc"),
    "llama": ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"),
    "qwen3": ("q_proj", "v_proj"),
    "distilbert": ("q_lin", "v_lin"),
    "modernbert": ("Wqkv", "Wo"),
    "gpt_neox": ("query_key_value", "dense"),
    "phi": ("q_proj", "v_proj", "dense"),
}
for _kind in ("mistral", "qwen2", "gemma"):
    TARGETS[_kind] = ("q_proj", "k_proj", "v_proj", "o_proj")
ENCODERS = ("bert", "roberta", "distilbert", "modernbert", "deberta")


def small_config(kind: str, **changes: Any) -> Any:
    """A configuration of a real architecture, small enough for a unit test."""
    import transformers

    options: dict[str, Any] = {**_SMALL, **changes}
    match kind:
        case "bert":
            return transformers.BertConfig(**options)
        case "roberta":
            return transformers.RobertaConfig(**{**options, "max_position_embeddings": 140})
        case "gpt2":
            return transformers.GPT2Config(
                vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128,
                pad_token_id=0, bos_token_id=1, eos_token_id=2, **changes,
            )  # fmt: skip
        case "llama":
            return transformers.LlamaConfig(**options, num_key_value_heads=2)
        case "qwen3":
            return transformers.Qwen3Config(**options, num_key_value_heads=2, head_dim=8)
        case "distilbert":
            return transformers.DistilBertConfig(
                vocab_size=VOCAB, dim=32, hidden_dim=48, n_layers=2, n_heads=4,
                max_position_embeddings=128, pad_token_id=0, **changes,
            )  # fmt: skip
        case "modernbert":  # one layer attends to all, one to its neighbours
            return transformers.ModernBertConfig(
                **options, global_attn_every_n_layers=2, local_attention=8
            )
        case "gpt_neox":
            return transformers.GPTNeoXConfig(**options)
        case "mistral":
            return transformers.MistralConfig(**options, num_key_value_heads=2, sliding_window=8)
        case "qwen2":
            return transformers.Qwen2Config(**options, num_key_value_heads=2)
        case "gemma":
            return transformers.GemmaConfig(**options, num_key_value_heads=1, head_dim=8)
        case "phi":
            return transformers.PhiConfig(**options)
        case "mamba":
            return transformers.MambaConfig(
                vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, state_size=4,
                pad_token_id=0, bos_token_id=1, eos_token_id=2, **changes,
            )  # fmt: skip
        case "deberta":
            return transformers.DebertaV2Config(
                **options, relative_attention=True, pos_att_type=["p2c", "c2p"]
            )
    raise ValueError(kind)
