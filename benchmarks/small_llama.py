"""A random Llama of any size with the embedded tokenizer, as a folder, for benchmarks to load."""

from __future__ import annotations

from pathlib import Path


def save_small_llama(folder: Path, *, width: int, layers: int, heads: int, tokens: int) -> None:
    """Write model and tokenizer.

    Args:
        width: width of the hidden states. The feed-forward layers are four times as wide.
        tokens: the longest text.
    """
    import torch
    import transformers

    from fedpriv.base_model import EMBEDDED

    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(EMBEDDED)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=tokens,
        pad_token_id=tokenizer.pad_token_id,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
