"""A language model that continues nothing, or the beginning of a record."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import torch
from transformers import GenerationConfig

from fedpriv.data.batch import collate
from fedpriv.data.encode import Example
from fedpriv.errors import ModelError
from fedpriv.models.base import longest as reads
from fedpriv.models.trial import AS_IT_IS, Trial
from fedpriv.synthetic.config import GeneratorSection
from fedpriv.synthetic.generator import with_prompt
from fedpriv.synthetic.records import Record

BATCH, GREEDY_BATCH = 64, 16  # texts at once
TRIED = 16  # tokens of a text by which a model is tried
KEPT = 0.25, 0.75  # least and largest share of a text that a variation keeps
_LOGITS: Any = {"max_new_tokens": 2, "output_logits": True, "return_dict_in_generate": True}
_WRITE: WeakSet[Any] = WeakSet()  # models that were tried
Model = tuple[Any, Any]  # a causal LM, and its tokenizer
Lender = Callable[[], AbstractContextManager[Model]]
Starts = Sequence[Sequence[int]]  # tokens, at least one each
Rooms = Sequence[int]  # how many tokens may follow each start


class LanguageModelGenerator:
    """RANDOM samples after the bos token. VARIATION keeps a beginning and samples the rest.

    This is for models that follow no instructions. With prompts and completions, the prompt is kept
    and the completion varies.

    Args:
        model: lends the model, with the values that it is to have.
        fields: fields of a record: text, or prompt and completion.
        max_length: tokens of a record.

    Privacy:
        The model's values were released or are public, and so are the records that it makes.
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
            start = self._prompt(model, tokenizer, given)
            made = self._continue(model, tokenizer, [start] * count, seed, [len(start)] * count)
        return [{**given, self._text: text} for text in made]

    def variations(self, records: Sequence[Record], seed: str) -> list[Record]:
        """Keep each prompt and the beginning of its text, and write another end."""
        draw = random.Random(seed)
        with self._model() as (model, tokenizer):
            starts, prompts = [], []
            for record in records:
                prompt = self._prompt(model, tokenizer, record)
                body = tokens_of(tokenizer, record[self._text], special=False)
                share = draw.uniform(*KEPT)
                most = room(len(prompt), self._max_length) - 1
                kept = body[: min(int(share * len(body)), most)]
                prompts.append(len(prompt))
                starts.append([*prompt, *kept])
            made = self._continue(model, tokenizer, starts, seed, prompts)
        return [{**record, self._text: text} for record, text in zip(records, made, strict=True)]

    def _prompt(self, model: Any, tokenizer: Any, record: Record) -> list[int]:
        """Return the tokens before a text.

        Of a long prompt only the end is kept, as the model reads it.
        """
        if not record.get("prompt"):
            return beginning(tokenizer)
        return window(model, tokens_of(tokenizer, record["prompt"], special=True), self._max_length)

    def _continue(
        self, model: Any, tokenizer: Any, starts: Starts, seed: str, prompts: Sequence[int]
    ) -> list[str]:
        """Return the text of each start and what follows it.

        The first `prompts` tokens are left out.
        """
        longest = self._max_length
        rooms = [room(n, longest) + n - len(s) for n, s in zip(prompts, starts, strict=True)]
        sampled = sample(model, tokenizer, starts, rooms, self._settings.temperature, seed)
        texts = (
            tokenizer.decode([*start[skip:], *row], skip_special_tokens=True)
            for start, skip, row in zip(starts, prompts, sampled, strict=True)
        )
        return [str(text).strip() for text in texts]


def texts_after(model: Any, tokenizer: Any, starts: Starts, rooms: Rooms, **how: Any) -> list[str]:
    """Write a text after each start, see `sample`."""
    made = sample(model, tokenizer, starts, rooms, **how)
    return [str(tokenizer.decode(row, skip_special_tokens=True)) for row in made]


@torch.inference_mode()
def sample(
    model: Any, tokenizer: Any, starts: Starts, rooms: Rooms, temperature: float = 0, seed: str = ""
) -> list[list[int]]:
    """Write new tokens after each start (of at least one token), up to an end of text.

    The number of tokens for a start does not depend on the others. Starts of similar lengths
    continue together, and keys and values are kept.

    Args:
        rooms: the most tokens after each start. Writing also ends where the model reads no further.
            One token is written in any case.
        temperature: temperature at which tokens are drawn. 0 takes the likeliest each time.
        seed: the public seed.

    Raises:
        ModelError: the model writes differently from how it computes texts.
    """
    if model not in _WRITE:
        _check_writes(model, tokenizer)
    end, at_once = reads(model), BATCH if temperature else GREEDY_BATCH
    rooms = [max(1, min(n, end - len(s))) for n, s in zip(rooms, starts, strict=True)]
    made: list[list[int]] = [[] for _ in starts]
    order = sorted(range(len(starts)), key=lambda i: len(starts[i]))
    parts = [order[first : first + at_once] for first in range(0, len(order), at_once)]
    with _seeded(seed, model.device), _nothing_else(model, tokenizer, temperature) as ends:
        for members in parts:
            texts = [[*starts[i], *made[i]] for i in members]
            width = max(map(len, texts))
            most = min(end - width, max(rooms[i] - len(made[i]) for i in members))
            found = _after(model, tokenizer, texts, max_new_tokens=max(1, most))
            for i, row in zip(members, found[:, width:].tolist(), strict=True):
                until = next((n for n, token in enumerate(row, 1) if token in ends), len(row))
                made[i] = [*made[i], *row[:until]][: rooms[i]]
            going = [i for i in members if len(made[i]) < rooms[i] and made[i][-1] not in ends]
            parts += [going] if going else []  # texts that a longer one in the batch held up
    return made


def _after(model: Any, tokenizer: Any, texts: Sequence[list[int]], **how: Any) -> Any:
    width = max(map(len, texts))
    examples = [Example(text, text) for text in texts]
    batch = collate(examples, tokenizer.pad_token_id, width, "left").to(model.device)
    return model.generate(input_ids=batch.input_ids, attention_mask=batch.attention_mask, **how)


@torch.inference_mode(False)
def _check_writes(model: Any, tokenizer: Any) -> None:
    """Refuse a model that reads the padding before a text, or counts places differently there.

    In training the padding is behind. Here every beginning of a text is continued by the token that
    comes next in it, all in one batch. The logits have to be those of the whole text.
    """

    def write(input_ids: torch.Tensor) -> Any:
        [text] = input_ids.tolist()
        begun = [text[:place] for place in range(1, len(text))]
        given = {**_LOGITS, "prefix_allowed_tokens_fn": lambda row, _: [text[row + 1]]}
        first, others = _after(model, tokenizer, begun, **given).logits
        return SimpleNamespace(logits=torch.cat([first[:1], others])[None])

    writing: Any = write
    writing.modules = model.modules
    trial = Trial(model, tokenizer, min(TRIED, reads(model)), AS_IT_IS)
    with _nothing_else(model, tokenizer, 0):
        off = trial.other_off_by(writing, torch.float32)  # the type of `generate`'s logits
    if off > 1:
        said = f"{model.name_or_path!r} ({model.config.model_type}) can be trained and scored, but"
        said += f" not generate: its logits are then off by {off:.0f} times what rounding explains."
        raise ModelError(f"model.name: {said} Use another model.")
    _WRITE.add(model)


@contextmanager
def _nothing_else(model: Any, tokenizer: Any, temperature: float) -> Iterator[set[int]]:
    """Set the model's own `generation_config` aside for a while. Yield the tokens that end a text.

    That configuration may ask for beams, penalties or a share of the tokens, and fills in what is
    left out.
    """
    held = getattr(model, "get_base_model", lambda: model)()  # peft looks for it there, too
    own = held.generation_config
    ends = own.eos_token_id
    ends = {*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None}
    how: dict[str, Any] = {"eos_token_id": sorted(ends) or None, "use_cache": True}
    if temperature:
        how |= {"do_sample": True, "temperature": temperature, "top_k": 0}
    how["pad_token_id"] = tokenizer.pad_token_id
    held.generation_config = GenerationConfig.from_dict(how)
    try:
        yield ends
    finally:
        held.generation_config = own


def window(model: Any, prompt: list[int], longest: int) -> list[int]:
    """Return what a model reads of a prompt: its end, as long as a record of the job may be.

    A record keeps all of a prompt but what its answer needs, which is at least a token
    (`fedpriv.data.encode`). The prompt is shorter where the model can't read what `room` adds
    beyond a record.
    """
    return prompt[-max(1, min(longest - 1, reads(model) - longest // 2)) :]


def room(prompt: int, longest: int) -> int:
    """Count the tokens that may follow a prompt: the rest of a record, or half of one."""
    return max(longest - prompt, longest // 2)


def beginning(tokenizer: Any) -> list[int]:
    """Return what a text begins with. A model needs one token to continue."""
    bos = tokenizer.bos_token_id
    return [tokenizer.eos_token_id if bos is None else bos]


def tokens_of(tokenizer: Any, text: str, *, special: bool) -> list[int]:
    """Return the tokens of a text.

    With `special`, leave out an end of text, because more may follow.
    """
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
