"""Byte-level tokenizers small enough to build in a test: a token is a byte or a special."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

Make = Callable[..., Any]


@pytest.fixture(scope="session")
def make_tokenizer() -> Make:
    """A factory: which special tokens the tokenizer has and adds, and its chat template."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    @cache
    def make(
        *, eos: bool = True, adds: tuple[str, str] = ("", ""), chat_template: str | None = None
    ) -> Any:
        """`adds`: the specials put before and after each text, such as ``("<bos>", "")``."""
        specials = ["<pad>", "<bos>", "<eos>", "<user>", "<assistant>"]
        tokens = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())]
        vocab = {token: index for index, token in enumerate(tokens)}
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
        tokenizer.normalizer = normalizers.Replace("\u200b", "")
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(specials)
        if any(adds):
            tokenizer.post_processor = processors.TemplateProcessing(
                single=" ".join(filter(None, [adds[0], "$A", adds[1]])),
                special_tokens=[(token, vocab[token]) for token in adds if token],
            )
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            pad_token="<pad>",
            eos_token="<eos>" if eos else None,
            chat_template=chat_template,
            model_max_length=8,
        )

    return make
