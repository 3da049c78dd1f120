"""What a site model answers to texts: their continuation, or their labels.

Privacy
    As confidential as the site's records, because some of the adapters were trained on them without
    noise. It is for the site alone (law 16).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from fedpriv.adapter_facts import read_facts
from fedpriv.data.encode import conversation
from fedpriv.data.transform import as_seen, find_transform
from fedpriv.errors import ConfigError
from fedpriv.serving import load_site_model
from fedpriv.synthetic.continuation import continue_prompts, prompt_of

# (texts, number of the first text) → an answer to each.
Answer = Callable[[Sequence[str], int], list[dict[str, Any]]]


class Answering:
    """A site model with its tokenizer.

    Args:
        folder: the site model's folder.
        transform: the site's `data.transform`, which was applied to the texts of training.
        writes: whether the model must write texts, or label them.

    Attributes:
        field: the field of a record that holds the text.

    Raises:
        ConfigError: the folder holds no such site model, or a file in it was changed.
    """

    def __init__(self, folder: Path, transform: str | None = None, *, writes: bool) -> None:
        self._transform = transform and find_transform(transform, "data.transform")
        self._model: Any = load_site_model(folder)
        if self._model.can_generate() != writes:
            does, other = ("labels", "classify") if writes else ("writes", "generate")
            fix = f"Type: fedpriv-client {other}"
            raise ConfigError(f"holds a model that {does} texts", file=folder, fix=fix)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        proposal = read_facts(folder / self._model.names[0]).proposal
        self._longest = proposal.model.max_length
        (self.field,) = set(proposal.fields) - {"completion", "label"}

    def text_of(self, value: object) -> str:
        """Return the text of a record's field, transformed as in `as_trained`.

        Raises:
            ValueError: there is no text.
        """
        text = prompt_of(value, self.field) if self._model.can_generate() else value
        if not isinstance(text, str) or not text.strip():
            raise ValueError("no text there")
        return self.as_trained(text)

    def as_trained(self, text: str) -> str:
        """Return a text, or a conversation as JSON, as the site's `data.transform` makes it.

        Raises:
            ValueError: the function fails on it.
        """
        if not self._transform:
            return text
        talk = self.field == "messages" and conversation(text)
        try:
            made = as_seen("messages" if talk else "text", text, self._transform)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a library in another language may panic
            kind = type(error).__name__
            raise ValueError(f"a text that data.transform fails on ({kind})") from None
        return json.dumps(made, ensure_ascii=False) if talk else str(made)

    def write(self, new: int | None = None, temperature: float = 0.0, seed: int = 0) -> Answer:
        """Answer with what the model writes: {"completion": ...}.

        Args:
            new: the most tokens. Without it, as many as a record of the job has room for.
            temperature: temperature at which tokens are drawn. 0 takes the likeliest each time.
            seed: seed of the drawing.
        """

        def answer(texts: Sequence[str], first: int) -> list[dict[str, Any]]:
            made = continue_prompts(
                self._model,
                self._tokenizer,
                texts,
                longest=self._longest,
                new=new,
                chat=self.field == "messages",
                temperature=temperature,
                seed=f"{seed} {first}",
            )
            return [{"completion": text} for text in made]

        return answer

    @torch.inference_mode()
    def label(self, texts: Sequence[str], first: int = 0) -> list[dict[str, Any]]:
        """Answer with {"label": ..., "probabilities": {label: ...}}.

        A text is cut to a record's length.
        """
        cut: dict[str, Any] = {"padding": True, "truncation": True, "max_length": self._longest}
        cut |= {"padding_side": "right", "return_token_type_ids": False}  # as training does
        batch = self._tokenizer(list(texts), return_tensors="pt", **cut)
        names: Mapping[int, str] = self._model.config.id2label
        rows = self._model(**batch).logits.exp().tolist()
        shares = [{names[index]: share for index, share in enumerate(row)} for row in rows]
        return [{"label": max(one, key=one.__getitem__), "probabilities": one} for one in shares]
