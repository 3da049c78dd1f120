"""What a record becomes, by its shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.config.task import Task
from fedpriv.data import DataSpec, Example, encode_record
from fedpriv.data.encode import (
    NO_LOSS,
    check_chat_template,
    encode_completion,
    encode_labelled,
    encode_messages,
    encode_text,
)
from fedpriv.errors import DataError

Make = Callable[..., Any]
EOS, BOS = 2, 1
TEXTS = st.text(max_size=40)
BLANK = [None, "", " \n\t ", "\u200b"]  # the tokenizer's normaliser drops the last
PLAIN = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MARKED = (
    "{% for m in messages %}<{{ m['role'] }}>{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] }}<eos>{% endgeneration %}"
    "{% else %}{{ m['content'] }}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def spec(*fields: str, task: Task = "causal-lm") -> DataSpec:
    labels = ("no", "yes") if task == "classification" else ()
    return DataSpec({f: f for f in fields}, task, labels, 16, "record", 4)


def trained(example: Example, tokenizer: Any) -> str:
    """The text that the loss is on."""
    assert isinstance(example.labels, list)
    return str(tokenizer.decode([label for label in example.labels if label != NO_LOSS]))


@settings(deadline=None)
@given(TEXTS, st.integers(2, 12), st.integers(1, 5), st.booleans(), st.booleans())
def test_windows_reassemble_the_token_stream(
    make_tokenizer: Make, text: str, max_length: int, cap: int, eos: bool, bos: bool
) -> None:
    tokenizer = make_tokenizer(eos=eos, adds=("<bos>" if bos else "", ""))
    examples = encode_text(text, tokenizer, max_length, cap)
    stream = tokenizer(text)["input_ids"] + [EOS] * eos
    if not text.strip():
        stream = []
    assert len(examples) <= cap
    assert all(2 <= len(example.input_ids) <= max_length for example in examples)
    assert all(example.labels == [NO_LOSS, *example.input_ids[1:]] for example in examples)
    joined = list(chain.from_iterable(example.input_ids for example in examples))
    assert joined == stream[: len(joined)]
    lost = len(stream[: cap * max_length]) - len(joined)
    assert lost == 0 or (lost == 1 and len(stream) % max_length == 1)


@pytest.mark.parametrize("text", BLANK)
@pytest.mark.parametrize("adds", [("", ""), ("<bos>", ""), ("<bos>", "<eos>")])
def test_a_text_without_tokens_of_its_own_gives_nothing(
    text: str | None, adds: tuple[str, str], make_tokenizer: Make
) -> None:
    tokenizer = make_tokenizer(adds=adds)
    assert encode_text(text, tokenizer, 8, 4) == []
    assert encode_completion("prompt", text, tokenizer, 16) == []
    assert encode_labelled(text, 0, tokenizer, 8) == []


def test_eos_is_appended_once_or_not_at_all(make_tokenizer: Make) -> None:
    assert (
        encode_text("a", make_tokenizer(adds=("", "<eos>")), 8, 1)[0].input_ids[-2:].count(2) == 1
    )
    assert encode_text("ab", make_tokenizer(), 8, 1)[0].input_ids[-1] == EOS
    assert EOS not in encode_text("ab", make_tokenizer(eos=False), 8, 1)[0].input_ids
    assert encode_text("a", make_tokenizer(eos=False), 8, 1) == []  # nothing to predict


def test_settings_that_the_tokenizer_carries_are_overruled(
    make_tokenizer: Make, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = make_tokenizer(adds=("<bos>", ""))
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=64)
    assert len(encode_text("abcdefghij", tokenizer, 64, 1)[0].input_ids) == 12
    assert not caplog.records  # nor a warning that tells how long a record is


@settings(deadline=None)
@given(TEXTS, TEXTS.filter(str.strip), st.integers(2, 16))
def test_only_the_completion_has_loss(
    make_tokenizer: Make, prompt: str, completion: str, max_length: int
) -> None:
    tokenizer = make_tokenizer(adds=("<bos>", ""))
    before = tokenizer(prompt)["input_ids"]
    after = [*tokenizer(completion, add_special_tokens=False)["input_ids"], EOS]
    if len(after) == 1:
        return
    [example] = encode_completion(prompt, completion, tokenizer, max_length)
    ids, labels = example.input_ids, example.labels
    assert isinstance(labels, list)
    assert len(ids) == len(labels) == min(max_length, len(before) + len(after))
    start = sum(label == NO_LOSS for label in labels)
    assert labels == [NO_LOSS] * start + ids[start:]
    assert ids[start:] == after[: len(ids) - start]
    assert ids[:start] == before[len(before) - start :]
    if len(before) >= max_length:
        assert len(ids) - start >= min(len(after), max_length / 2)
    else:
        assert start == len(before)


def test_a_prompt_is_not_ended_by_the_tokenizers_own_eos(make_tokenizer: Make) -> None:
    tokenizer = make_tokenizer(adds=("<bos>", "<eos>"))
    [example] = encode_completion("a", "b", tokenizer, 16)
    assert tokenizer.decode(example.input_ids) == "<bos>ab<eos>"


@pytest.mark.parametrize("prompt", [None, ""])
def test_a_completion_without_a_prompt(prompt: str | None, make_tokenizer: Make) -> None:
    [example] = encode_completion(prompt, "b", make_tokenizer(adds=("<bos>", "")), 16)
    assert example.labels == [NO_LOSS, *example.input_ids[1:]]
    assert encode_completion(prompt, "b", make_tokenizer(eos=False), 16) == []


def talk(*turns: str) -> list[dict[str, str]]:
    """Turns by user and assistant in turn."""
    return [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]


@pytest.mark.parametrize("template", [PLAIN, MARKED])
@pytest.mark.parametrize("packed", [False, True])
def test_only_the_assistant_has_loss(template: str, packed: bool, make_tokenizer: Make) -> None:
    tokenizer = make_tokenizer(chat_template=template)
    conversation = talk("hé", "yo", "bye", "ciao ü", "more")
    messages = json.dumps(conversation) if packed else conversation
    [example] = encode_messages(messages, tokenizer, 99)
    assert tokenizer.decode(example.input_ids) == (
        "<user>hé<eos><assistant>yo<eos><user>bye<eos><assistant>ciao ü<eos><user>more<eos>"
    )
    assert trained(example, tokenizer) == "yo<eos>ciao ü<eos>"


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.text("ab é", min_size=1, max_size=5), min_size=1, max_size=5), st.integers(2, 40)
)
def test_marks_and_growing_prefixes_agree(
    make_tokenizer: Make, turns: list[str], max_length: int
) -> None:
    both = [
        encode_messages(talk(*turns), make_tokenizer(chat_template=template), max_length)
        for template in (PLAIN, MARKED)
    ]
    assert both[0] == both[1]
    assert all(len(example.input_ids) <= max_length for example in both[0])


def test_a_header_that_later_turns_drop_has_no_loss(make_tokenizer: Make) -> None:
    """Templates of reasoning models open a thought that the record does not have."""
    thinking = PLAIN.replace("<assistant>{% endif %}", "<assistant>think:{% endif %}")
    tokenizer = make_tokenizer(chat_template=thinking)
    [example] = encode_messages(talk("hi", "yo"), tokenizer, 99)
    assert trained(example, tokenizer) == "yo<eos>"


def test_a_turn_that_later_turns_rewrite_has_no_loss(make_tokenizer: Make) -> None:
    rewriting = PLAIN.replace(
        "{{ m['content'] }}",
        "{{ m['content'] if loop.last or m['role'] == 'user' else m['content'] | upper }}",
    )
    tokenizer = make_tokenizer(chat_template=rewriting)
    [example] = encode_messages(talk("hi", "yo", "so", "ok"), tokenizer, 99)
    assert "YO" in tokenizer.decode(example.input_ids)
    assert trained(example, tokenizer) == "ok<eos>"


@pytest.mark.parametrize("template", [PLAIN, MARKED])
@pytest.mark.parametrize(
    "messages",
    [
        *(None, [], {}, "", "not JSON", "3", ["hi"], [{"role": "user"}], [{"content": "x"}]),
        [{"role": "user", "content": None}],
        [{"role": 1, "content": "x"}],
        talk("only the user"),
    ],
)
def test_malformed_messages_give_nothing(
    template: str, messages: object, make_tokenizer: Make
) -> None:
    assert encode_messages(messages, make_tokenizer(chat_template=template), 32) == []


def test_what_the_template_refuses_gives_nothing(make_tokenizer: Make) -> None:
    picky = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('no') }}{% endif %}" + PLAIN
    tokenizer = make_tokenizer(chat_template=picky)
    assert encode_messages(talk("a", "b")[1:], tokenizer, 32) == []
    assert len(encode_messages(talk("a", "b"), tokenizer, 32)) == 1


@pytest.mark.parametrize("template", [None, "{{ messages[-1]['content'] }}", "{{ broken("])
def test_a_tokenizer_that_cannot_tell_the_assistant_is_refused(
    template: str | None, make_tokenizer: Make
) -> None:
    with pytest.raises(DataError) as caught:
        check_chat_template(make_tokenizer(chat_template=template))
    assert caught.value.key == "data.columns.messages"
    assert caught.value.fix


def test_messages_need_a_chat_template(make_tokenizer: Make) -> None:
    with pytest.raises(DataError, match="no chat template"):
        encode_messages(talk("a", "b"), make_tokenizer(), 32)


def test_a_text_and_its_label(make_tokenizer: Make) -> None:
    settings_ = spec("text", "label", task="classification")
    tokenizer = make_tokenizer(adds=("<bos>", "<eos>"))
    record = {"text": "abc" * 99, "label": "yes"}
    [example] = encode_record(record, settings_, tokenizer, row=1, source="x")
    assert example.labels == 1
    assert len(example.input_ids) == 16
    assert (example.input_ids[0], example.input_ids[-1]) == (BOS, EOS)


@pytest.mark.parametrize("label", ["maybe", None, "Yes", ""])
def test_an_undeclared_label_names_its_row_only(label: object, make_tokenizer: Make) -> None:
    settings_ = spec("text", "label", task="classification")
    record = {"text": "Mrs Jones has gout", "label": label}
    with pytest.raises(DataError) as caught:
        encode_record(record, settings_, make_tokenizer(), row=7, source="notes.csv")
    error = caught.value
    assert (error.key, error.file) == ("model.labels", "notes.csv")
    assert "row 7" in error.problem
    assert "Jones" not in str(error)
    assert "maybe" not in str(error)


def test_labels_are_compared_as_text(make_tokenizer: Make) -> None:
    settings_ = DataSpec({"text": "t", "label": "l"}, "classification", ("0", "1"), 8, "record", 1)
    record = {"text": "a", "label": 1}
    assert encode_record(record, settings_, make_tokenizer(), row=1, source="x")[0].labels == 1


def test_what_the_tokenizer_does_not_cut_is_cut(
    make_tokenizer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = make_tokenizer()
    plain = type(tokenizer).__call__

    def without_truncation(self: Any, *args: Any, **settings_: Any) -> Any:
        return plain(self, *args, **{**settings_, "truncation": False, "max_length": None})

    monkeypatch.setattr(type(tokenizer), "__call__", without_truncation)
    [example] = encode_labelled("abcdefghij", 1, tokenizer, 4)
    assert len(example.input_ids) == 4


def test_the_shape_decides(make_tokenizer: Make) -> None:
    tokenizer = make_tokenizer(chat_template=PLAIN)
    for record in (
        {"text": "abc"},
        {"prompt": "a", "completion": "bc"},
        {"messages": talk("a", "b")},
    ):
        examples = encode_record(record, spec(*record), tokenizer, row=1, source="x")
        assert len(examples) == 1
    with pytest.raises(ValueError, match="prompt"):
        encode_record({"prompt": "a"}, spec("prompt"), tokenizer, row=1, source="x")
