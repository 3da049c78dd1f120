"""A language model that goes on from nothing, or from the beginning of a record."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from fedpriv.data.batch import collate
from fedpriv.data.encode import Example
from fedpriv.synthetic.config import GeneratorSection
from fedpriv.synthetic.generator import with_prompt
from fedpriv.synthetic.records import Record

BATCH, GREEDY_BATCH = 64, 16  # texts at once
Model = tuple[Any, Any]  # a causal LM, and its tokenizer
Lender = Callable[[], AbstractContextManager[Model]]
Starts = Sequence[Sequence[int]]  # tokens, of at least one


class LanguageModelGenerator:
    """RANDOM samples after the bos token; VARIATION keeps a beginning and samples the rest.

    For models that follow no instructions. With prompts and completions the prompt is kept, and
    what varies is the completion.

    Args:
        model: lends the model, with the values that it is to have.
        fields: of a record: text, or prompt and completion.
        max_length: tokens of a record.

    Privacy:
        The model's values were released or are public, and so is what it makes.
    """

    def __init__(
        self, model: Lender, settings: GeneratorSection, fields: Sequence[str], max_length: int
    ) -> None:
        self._model, self._settings = model, settings
        self._fields, self._text = fields, "text" if "text" in fields else "completion"
        self._max_length = max_length

    def random(self, count: int, seed: str) -> list[Record]:
        """Sample from the beginning of a text, or after the prompt that is set.

        Raises:
            RoundError: records have prompts, and none is set.
        """
        given = with_prompt(self._fields, self._settings.prompt)
        with self._model() as (model, tokenizer):
            start = self._prompt(tokenizer, given)
            made = self._continue(model, tokenizer, [start] * count, seed, [len(start)] * count)
        return [{**given, self._text: text} for text in made]

    def variations(self, records: Sequence[Record], seed: str) -> list[Record]:
        """Keep the same prompt and the beginning of the same text, and write another end."""
        draw = random.Random(seed)
        with self._model() as (model, tokenizer):
            starts, prompts = [], []
            for record in records:
                prompt = self._prompt(tokenizer, record)
                body = tokens_of(tokenizer, record[self._text], special=False)
                share = draw.uniform(*self._settings.keep)
                room = max(0, self._max_length - len(prompt) - 1)
                kept = body[: min(int(share * len(body)), room)]
                prompts.append(len(prompt))
                starts.append([*prompt, *kept])
            made = self._continue(model, tokenizer, starts, seed, prompts)
        return [{**record, self._text: text} for record, text in zip(records, made, strict=True)]

    def _prompt(self, tokenizer: Any, record: Record) -> list[int]:
        """Return what a text is written after; of a long prompt its end alone, as it is read."""
        if not record.get("prompt"):
            return beginning(tokenizer)
        prompt = tokens_of(tokenizer, record["prompt"], special=True)
        return prompt if len(prompt) + 2 <= self._max_length else prompt[-(self._max_length // 2) :]

    def _continue(
        self, model: Any, tokenizer: Any, starts: Starts, seed: str, prompts: Sequence[int]
    ) -> list[str]:
        """Return the text of each start and what comes after it, without so much of a prompt."""
        settings, longest = self._settings, self._max_length
        sampled = sample(
            model, tokenizer, starts, longest=longest, temperature=settings.temperature, seed=seed
        )
        texts = (
            tokenizer.decode([*start[skip:], *row], skip_special_tokens=True)
            for start, skip, row in zip(starts, prompts, sampled, strict=True)
        )
        return [str(text).strip() for text in texts]


def sample(
    model: Any, tokenizer: Any, starts: Starts, *, longest: int, temperature: float, seed: str
) -> list[list[int]]:
    """Draw new tokens after each start (of at least one token), one by one.

    Args:
        longest: tokens of a start and what comes after it; one is made at least.
        seed: public.
    """
    how = {"do_sample": True, "temperature": temperature, "top_k": 0}
    with _seeded(seed, model.device):
        return _go_on(model, tokenizer, starts, longest, BATCH, how)


def greedy(model: Any, tokenizer: Any, starts: Starts, longest: int) -> list[str]:
    """Write the likeliest token each time after each start, as text: it is always the same.

    Args:
        longest: see `sample`.
    """
    made = _go_on(model, tokenizer, starts, longest, GREEDY_BATCH, {"do_sample": False})
    return [str(tokenizer.decode(row, skip_special_tokens=True)) for row in made]


@torch.inference_mode()
def _go_on(
    model: Any, tokenizer: Any, starts: Starts, longest: int, at_once: int, how: Mapping[str, Any]
) -> list[list[int]]:
    """Continue a batch of starts of alike lengths at a time; keys and values are kept."""
    made: list[list[int]] = [[] for _ in starts]
    order = sorted(range(len(starts)), key=lambda i: len(starts[i]))
    for first in range(0, len(order), at_once):
        members = order[first : first + at_once]
        width = max(len(starts[i]) for i in members)
        examples = [Example(list(starts[i]), list(starts[i])) for i in members]
        batch = collate(examples, tokenizer.pad_token_id, width, "left").to(model.device)
        found = model.generate(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            max_new_tokens=max(1, longest - width),
            use_cache=True,
            pad_token_id=tokenizer.pad_token_id,
            **how,
        )
        for i, row in zip(members, found, strict=True):
            made[i] = row[width:].tolist()
    return made


def beginning(tokenizer: Any) -> list[int]:
    """Return what a text begins with: a model needs one token to continue."""
    bos = tokenizer.bos_token_id
    return [tokenizer.eos_token_id if bos is None else bos]


def tokens_of(tokenizer: Any, text: str, *, special: bool) -> list[int]:
    """Return the tokens of a text, without an end where more may follow."""
    ids = list(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])
    if special and ids and ids[-1] == tokenizer.eos_token_id:
        ids = ids[:-1]
    return ids


@contextmanager
def _seeded(seed: str, device: torch.device) -> Iterator[None]:
    """Use public randomness for a while, and restore torch's own afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(random.Random(seed).getrandbits(32))
        yield
