"""Turn one record into training examples, by itself and by public settings.

What a record becomes depends on that record, the `DataSpec` and the tokenizer: no packing
of several records into a window, no de-duplication. Every example of a language model has
at least one target: a token after the first whose label is not -100. A record that would
have none contributes no example.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.data.spec import DataSpec
from fedpriv.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_LOSS = -100
GENERATION_MARKER = re.compile(r"\{%-?\+?\s*generation\s*[-+]?%\}")
_CLOCK = re.compile(r"""strftime_now\s*\(\s*(["'])([^"']*)\1\s*\)""")
_TODAY = date(2024, 7, 26)  # in every conversation, as Llama's template has it
PROBE = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}]


@dataclass(frozen=True)
class Example:
    """One row of a batch, before padding.

    Args:
        input_ids: T token ids, 1 ≤ T ≤ max_length; at least 2 for causal-lm.
        labels: for causal-lm T token ids, -100 where there is no loss, not shifted; for
            classification the index of the class.
        cut: whether some of the record's tokens are in none of its examples, for want of room.
    """

    input_ids: list[int]
    labels: list[int] | int
    cut: bool = field(default=False, compare=False)


def encode_record(
    record: Mapping[str, Any],
    spec: DataSpec,
    tokenizer: PreTrainedTokenizerBase,
    *,
    row: int,
    source: Path | str,
) -> list[Example]:
    """Make the examples of one record, at most ``spec.max_records_per_unit``; maybe none.

    Args:
        record: the fields of ``spec.columns``.
        row: the record's number in its source, from 1; for error messages only.
        source: where it came from; for error messages only.

    Raises:
        DataError: the label is not in ``spec.labels``, or the tokenizer has no usable chat
            template for ``messages``.

    Privacy:
        Reads one private record and nothing of any other. Its error names the row, not
        what the row holds.
    """
    fields = set(spec.columns)
    if fields == {"text"}:
        return encode_text(record["text"], tokenizer, spec.max_length, spec.max_records_per_unit)
    if fields == {"prompt", "completion"}:
        return encode_completion(record["prompt"], record["completion"], tokenizer, spec.max_length)
    if fields == {"messages"}:
        return encode_messages(record["messages"], tokenizer, spec.max_length)
    if fields != {"text", "label"}:
        raise ValueError(f"Expected known columns, got {sorted(fields)}.")
    check_label(record, spec.labels, row=row, source=source)
    label = spec.labels.index(str(record["label"]))
    return encode_labelled(record["text"], label, tokenizer, spec.max_length)


def check_label(
    record: Mapping[str, Any], labels: Sequence[str], *, row: int, source: Path | str
) -> None:
    """Refuse a record whose label is missing or not declared.

    A missing label is none of the classes, also where one of them is called "None".

    Raises:
        DataError: it is such a record. The error names the row, not what it holds.
    """
    label = record["label"]
    if label is None or str(label) not in labels:
        problem = "no label" if label is None else "a label that is not declared"
        fix = f"Correct the row, or declare its label beside {', '.join(labels)}."
        raise DataError(f"row {row} has {problem}", file=source, key="model.labels", fix=fix)


def encode_text(
    text: str | None, tokenizer: PreTrainedTokenizerBase, max_length: int, max_windows: int
) -> list[Example]:
    """Encode plain text, ended by eos where the tokenizer has one, in consecutive windows.

    If the text is a list of messages as JSON, the chat template writes it. The first `max_windows`
    windows of `max_length` tokens are used. A last window of a single token has no target and is
    left out.
    """
    talk = conversation(text)
    text = template_text(talk, tokenizer) if talk else text
    if _is_blank(text):
        return []
    ids = _tokenize(tokenizer, text, special=not talk)
    if not talk and len(ids) <= tokenizer.num_special_tokens_to_add():
        return []
    ids = ids if talk else _with_eos(tokenizer, ids)
    windows = (ids[i : i + max_length] for i in range(0, len(ids), max_length)[:max_windows])
    cut = len(ids) > max_length * max_windows
    return [example for window in windows for example in _with_target(window, window, cut=cut)]


def encode_completion(
    prompt: str | None, completion: str | None, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> list[Example]:
    """Encode a prompt, without loss, and its completion, ended by eos, with loss.

    Both may be lists of messages as JSON text: then the chat template writes them. The result is
    cut at `max_length`; see `_window`.
    """
    if _is_blank(completion):
        return []
    asked, reply = conversation(prompt), conversation(completion)
    if asked or reply:
        header = asked and reply and template_text(asked, tokenizer, add_generation_prompt=True)
        whole = template_text([*(asked or ()), *(reply or ())], tokenizer)
        if not header or not whole:
            return []
        before, after = (_tokenize(tokenizer, text, special=False) for text in (header, whole))
        start = _common_prefix(before, after)
        return _window(after, [NO_LOSS] * start + after[start:], max_length)
    after = _tokenize(tokenizer, completion, special=False)
    if not after:
        return []
    after = _with_eos(tokenizer, after)
    before = _tokenize(tokenizer, prompt or "", special=True)
    if before and before[-1] == tokenizer.eos_token_id and len(before) > 1:
        before = before[:-1]  # an eos that the tokenizer adds belongs after the completion
    return _window(before + after, [NO_LOSS] * len(before) + after, max_length)


def encode_messages(
    messages: Any, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> list[Example]:
    """Encode a conversation by the tokenizer's chat template, with loss on the assistant's tokens.

    Where the template marks them (``{% generation %}``) its marks are used. Elsewhere the
    conversation is rendered up to a turn's header, and again up to the turn's end. What the second
    text adds are the turn's tokens. A turn has no loss if later turns rewrite it (templates that
    drop past reasoning), or if nothing is before it. The result is cut at `max_length`; see
    `_window`.

    Args:
        messages: a list of ``{"role": …, "content": …}``, or the same as JSON text.
            Anything else contributes no example, and neither does what the template refuses.

    Raises:
        DataError: the tokenizer has no chat template, or one whose assistant tokens can't be told.
            This is tried on a fixed conversation, never on this one.
    """
    talk = conversation(messages)
    if talk is None:
        return []
    rendered = _render(talk, tokenizer)
    if rendered is None or not rendered[0]:
        check_chat_template(tokenizer)
        return []
    ids, mask = rendered
    labels = [token if on else NO_LOSS for token, on in zip(ids, mask, strict=True)]
    return _window(ids, labels, max_length)


def encode_labelled(
    text: str | None, label: int, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> list[Example]:
    """Encode a text with its class, cut at `max_length`. Special tokens stay if the tokenizer cuts.

    If the tokenizer does not cut, or not enough, the tokens are cut all the same.
    """
    if _is_blank(text):
        return []
    ids = _tokenize(tokenizer, text, special=True, max_length=max_length)
    if len(ids) <= tokenizer.num_special_tokens_to_add():
        return []
    whole = ids if len(ids) < max_length else _tokenize(tokenizer, text, special=True)
    return [Example(ids[:max_length], label, cut=len(whole) > max_length)]


def check_chat_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer whose assistant tokens can't be told. It is tried on a fixed conversation.

    Raises:
        DataError: it has no chat template, or none that this can use.
    """
    key, name = "data.columns.messages", tokenizer.name_or_path
    if not tokenizer.chat_template:
        fix = "Use a chat model's tokenizer, set its chat_template, or use prompt/completion."
        raise DataError("the tokenizer has no chat template", key=key, value=name, fix=fix)
    rendered = _render(PROBE, tokenizer)
    if rendered is None or not any(rendered[1]):
        problem = "the tokenizer's chat template does not mark the assistant's tokens"
        fix = "Put {% generation %} … {% endgeneration %} around them in the template,"
        fix += " use a fast tokenizer, and put a date where the template asks strftime_now for one."
        raise DataError(problem, key=key, value=name, fix=fix)


def template_of(tokenizer: Any) -> str:
    """Return the chat template, with a fixed date for today: a record's tokens stay the same.

    A template that asks for the time in other ways than by a plain format fails.

    Raises:
        ValueError: there is no template.
    """
    dated = _CLOCK.sub(lambda asked: repr(_TODAY.strftime(asked[2])), tokenizer.get_chat_template())
    return re.sub(r"strftime_now(?!\s+is\b)", "no_clock", dated)  # no_clock is not defined


def conversation(messages: Any) -> list[dict[str, Any]] | None:
    """Return the messages if they are well formed, else None.

    Content in parts (``[{"type": "text", "text": …}, …]``) becomes the text of its parts, one after
    the other. Content with a part that is no text, such as an image, is not well formed.
    """
    talk = [{**one, "content": _content(one.get("content"))} for one in _turns(messages)]
    return None if not talk or any(one["content"] is None for one in talk) else talk


def _turns(messages: Any) -> list[dict[str, Any]]:
    """Return the messages if each has a role, else an empty list."""
    if isinstance(messages, str):
        with suppress(ValueError, RecursionError):
            messages = json.loads(messages)
    have_roles = isinstance(messages, list) and all(
        isinstance(one, dict) and isinstance(one.get("role"), str) for one in messages
    )
    return messages if have_roles else []


def _content(content: Any) -> str | None:
    """Return a message's text; None if it is no text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        return None
    texts = [
        part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else None
        for part in content
    ]
    return "".join(map(str, texts)) if all(isinstance(text, str) for text in texts) else None


class Cause(Enum):
    """Why a record gives no example.

    Attributes:
        said: the cause in a clause.
        fix: the remedy in a sentence.
    """

    EMPTY = "the text is empty", "Look whether data.columns names the right columns."
    SHORT = "the text has no token that could be predicted", "Take such records out."
    LABEL = "the label is missing or not declared", "Declare it in labels."
    TURNS = (
        "the messages are not a list in which each has a role and a content",
        "Call the keys role and content, and the speakers user and assistant.",
    )
    PARTS = "a message holds no text, such as a tool call or an image", "Leave such records out."
    SILENT = "the assistant says nothing", "Call its role assistant, after a message of the user."
    REFUSED = (
        "the tokenizer's chat template refuses the messages",
        "Use roles in the order that it knows (many know no system role) or another chat_template.",
    )
    HIDDEN = (
        "the tokenizer's chat template does not show what the assistant says",
        "Use another chat_template.",
    )
    FAILED = "the tokenizer fails on it", "Use another model, or take out what it fails on."
    DISK = "there was no room on the disk", "Free some of it."

    def __init__(self, said: str, fix: str) -> None:
        self.said, self.fix = said, fix


def cause_of(
    record: Mapping[str, Any], spec: DataSpec, tokenizer: PreTrainedTokenizerBase
) -> Cause:
    """Tell why `encode_record` made no example of a record.

    Privacy:
        Private as the record is: for the site's own screen and log.
    """
    if "messages" in spec.columns:
        return _cause_of_talk(record["messages"], tokenizer)
    texts = [record[field] for field in ("prompt", "completion", "text") if field in spec.columns]
    talks = list(map(conversation, texts))
    if any(talks):
        return Cause.TURNS if None in talks else Cause.REFUSED
    return Cause.EMPTY if _is_blank(texts[-1]) else Cause.SHORT


def _cause_of_talk(messages: Any, tokenizer: PreTrainedTokenizerBase) -> Cause:
    if messages is None or (isinstance(messages, str) and not messages.strip()):
        return Cause.EMPTY
    talk = conversation(messages)
    if talk is None:
        return Cause.PARTS if _turns(messages) else Cause.TURNS
    if template_text(talk, tokenizer) is None:
        return Cause.REFUSED
    said = [m["content"] for m in talk[1:] if m["role"] == "assistant"]
    return Cause.HIDDEN if any(not _is_blank(text) for text in said) else Cause.SILENT


def _render(
    conversation: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[bool]] | None:
    """Return token ids and which are the assistant's; None where the template refuses."""
    try:
        asked: Any = {"chat_template": template_of(tokenizer), "return_dict": True}
        if GENERATION_MARKER.search(asked["chat_template"]):
            asked["return_assistant_tokens_mask"] = True
            asked["tokenizer_kwargs"] = {"verbose": False}  # no warning that tells its length
            marked: Any = tokenizer.apply_chat_template(conversation, **asked)
            return list(marked["input_ids"]), [bool(on) for on in marked["assistant_masks"]]
        whole = template_text(conversation, tokenizer) or ""
        spans = _assistant_spans(conversation, whole, tokenizer)
        encoded: Any = tokenizer(
            whole, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        mask = [
            any(start <= first < last <= end for start, end in spans)
            for first, last in encoded["offset_mapping"]
        ]
        return list(encoded["input_ids"]), mask
    except Exception:  # templates raise what they like; this record is left out
        return None


def _assistant_spans(
    conversation: list[dict[str, Any]], whole: str, tokenizer: PreTrainedTokenizerBase
) -> list[tuple[int, int]]:
    """Find the characters of `whole` that the assistant wrote, by rendering growing prefixes."""
    spans = []
    for i in [i for i, message in enumerate(conversation) if message["role"] == "assistant" and i]:
        before = template_text(conversation[:i], tokenizer)
        header = template_text(conversation[:i], tokenizer, add_generation_prompt=True)
        after = template_text(conversation[: i + 1], tokenizer)
        if before is None or header is None or after is None:
            continue  # a template may refuse a prefix of what it accepts
        if whole.startswith(after) and after.startswith(before):
            spans.append((max(_common_prefix(header, after), len(before)), len(after)))
    return spans


def _common_prefix(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Count the characters, or tokens, with which both begin alike."""
    unequal = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(unequal, min(len(a), len(b)))


def template_text(
    conversation: Sequence[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, **asked: Any
) -> str | None:
    """Return the conversation as text; None where the template refuses it."""
    try:
        asked |= {"tokenize": False, "chat_template": template_of(tokenizer)}
        return str(tokenizer.apply_chat_template(list(conversation), **asked))
    except Exception:  # templates raise what they like
        return None


def _is_blank(text: str | None) -> bool:
    return text is None or not text.strip()


def _tokenize(
    tokenizer: PreTrainedTokenizerBase,
    text: str | None,
    *,
    special: bool,
    max_length: int | None = None,
) -> list[int]:
    """Return token ids; the tokenizer's own settings of padding and truncation are overruled."""
    encoded = tokenizer(
        text,
        add_special_tokens=special,
        padding=False,
        truncation=max_length is not None,
        max_length=max_length,
        verbose=False,  # no warning that tells a record's length
    )
    return list(encoded["input_ids"])


def _with_eos(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[int]:
    eos = tokenizer.eos_token_id
    return ids if eos is None or ids[-1] == eos else [*ids, eos]


def _window(ids: list[int], labels: list[int], max_length: int) -> list[Example]:
    """Make the example of one window of `max_length` tokens, if there is something to predict.

    It begins with the first token, unless too few targets would be left. Then context is cut off
    the front, so that at least half of the window, or all that follows the first target, is to be
    predicted.
    """
    first = next((n for n, label in enumerate(labels) if n and label != NO_LOSS), 0)
    room = max_length - min(len(ids) - first, (max_length + 1) // 2)
    start = max(0, first - room)
    kept = slice(start, start + max_length)
    return _with_target(ids[kept], labels[kept], cut=len(ids) > max_length)


def _with_target(ids: list[int], labels: list[int], *, cut: bool = False) -> list[Example]:
    """Make the example, unless its loss would be over no token.

    Nothing predicts the first token. With padding on the left, padding would predict it.
    """
    labels = [NO_LOSS, *labels[1:]]
    return [Example(ids, labels, cut)] if any(label != NO_LOSS for label in labels) else []
