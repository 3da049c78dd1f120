"""What a record becomes, by its shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils import chat_template_utils

from fedpriv.config.task import Task
from fedpriv.data.encode import (
    NO_LOSS,
    Cause,
    Example,
    cause_of,
    check_chat_template,
    encode_completion,
    encode_labelled,
    encode_messages,
    encode_record,
    encode_text,
)
from fedpriv.data.spec import DataSpec
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
    assert len(ids) - start >= min(len(after), max_length / 2)
    if len(before) + len(after) <= max_length:
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
def test_no_warning_tells_how_long_a_conversation_is(
    template: str, make_tokenizer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("transformers.tokenization_utils_base.logger.warning", said.append)
    tokenizer = make_tokenizer(chat_template=template)
    tokenizer.model_max_length = 4
    talk = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "defghijkl"}]
    assert encode_messages(talk, tokenizer, 64)
    assert not said


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


@pytest.mark.parametrize("template", [PLAIN, MARKED])
def test_a_conversation_as_a_text_has_loss_on_all_of_it(
    template: str, make_tokenizer: Make
) -> None:
    tokenizer = make_tokenizer(chat_template=template, adds=("<bos>", "<eos>"))
    turns = json.dumps(talk("hé", "yo"))
    [example] = encode_text(turns, tokenizer, 99, 4)
    written = "<user>hé<eos><assistant>yo<eos>"
    assert tokenizer.decode(example.input_ids) == written
    assert example.labels == [NO_LOSS, *example.input_ids[1:]]
    windows = list(chain(*(w.input_ids for w in encode_text(turns, tokenizer, 3, 2))))
    assert windows == example.input_ids[:6] != example.input_ids


@pytest.mark.parametrize("template", [PLAIN, MARKED])
def test_a_completion_of_messages_is_what_comes_after_the_prompt(
    template: str, make_tokenizer: Make
) -> None:
    tokenizer = make_tokenizer(chat_template=template)
    turns = talk("hé", "yo", "bye", "ciao ü")
    prompt, completion = json.dumps(turns[:3]), json.dumps(turns[3:])
    [example] = encode_completion(prompt, completion, tokenizer, 99)
    assert tokenizer.decode(example.input_ids) == (
        "<user>hé<eos><assistant>yo<eos><user>bye<eos><assistant>ciao ü<eos>"
    )
    assert trained(example, tokenizer) == "ciao ü<eos>"
    several = encode_completion(json.dumps(turns[:1]), json.dumps(turns[1:]), tokenizer, 99)
    assert trained(several[0], tokenizer) == "yo<eos><user>bye<eos><assistant>ciao ü<eos>"
    for pair in ((prompt, "ciao"), ("bye", completion), ("", completion)):
        assert encode_completion(*pair, tokenizer, 99) == []
        record = dict(zip(("prompt", "completion"), pair, strict=True))
        assert cause_of(record, spec(*record), tokenizer) is Cause.TURNS


@settings(deadline=None, max_examples=50)
@given(st.text("ab é", max_size=60), st.text("ab", min_size=1, max_size=20), st.integers(2, 40))
def test_a_long_question_leaves_room_for_the_answer(
    make_tokenizer: Make, question: str, answer: str, max_length: int
) -> None:
    for template in (PLAIN, MARKED):
        tokenizer = make_tokenizer(chat_template=template)
        [example] = encode_messages(talk(question, answer), tokenizer, max_length)
        assert isinstance(example.labels, list)
        room = min(len(answer) + 1, max_length / 2)  # the answer and its eos
        assert sum(label != NO_LOSS for label in example.labels) >= room
        assert f"{answer}<eos>".startswith(trained(example, tokenizer))
        whole = tokenizer(f"<user>{question}<eos><assistant>{answer}<eos>")["input_ids"]
        assert len(example.input_ids) == min(max_length, len(whole))


def test_of_several_answers_the_first_decides_where_a_window_begins(make_tokenizer: Make) -> None:
    tokenizer = make_tokenizer(chat_template=PLAIN)
    [example] = encode_messages(talk("a", "b", "c" * 99, "d"), tokenizer, 12)
    assert tokenizer.decode(example.input_ids).startswith("<user>a<eos><assistant>b<eos>")


@pytest.mark.parametrize("packed", [False, True])
def test_content_in_parts_is_the_text_of_its_parts(packed: bool, make_tokenizer: Make) -> None:
    tokenizer = make_tokenizer(chat_template=PLAIN)
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "é", "image": None}]
    messages: Any = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": [{"type": "text", "text": "yo"}]},
    ]
    found = encode_messages(json.dumps(messages) if packed else messages, tokenizer, 99)
    assert found == encode_messages(talk("hé", "yo"), tokenizer, 99) != []


@pytest.mark.parametrize("template", [PLAIN, MARKED])
def test_a_template_that_asks_for_the_date_gets_the_same_every_day(
    template: str, make_tokenizer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encoded(clock: str, year: int) -> list[list[Example]]:
        def now() -> Any:
            return SimpleNamespace(strftime=lambda _: str(year))

        monkeypatch.setattr(chat_template_utils, "datetime", SimpleNamespace(now=now))
        tokenizer = make_tokenizer(chat_template=clock + template)
        talks = talk("hi", "yo"), talk("hi")
        return [
            encode_messages(talks[0], tokenizer, 99),
            encode_completion(*map(json.dumps, (talks[1], talk("hi", "yo")[1:])), tokenizer, 99),
            encode_text(json.dumps(talks[0]), tokenizer, 99, 1),
        ]

    for clock in (
        "{{ strftime_now('%d %b %Y') }}",
        '{%- set day = strftime_now ( "%d %b %Y" ) if strftime_now is defined %}{{ day }}',
    ):
        found = encoded(clock, 2031)
        assert found == encoded(clock, 2032)
        texts = [make_tokenizer().decode(examples[0].input_ids) for examples in found]
        assert all(text.startswith("26 Jul 2024<user>hi") for text in texts)
    odd = "{% set f = strftime_now %}{{ f('%Y') }}"
    with pytest.raises(DataError, match="put a date where the template asks strftime_now"):
        encoded(odd, 2031)
    tokenizer = make_tokenizer(chat_template=odd + template)
    assert encode_text(json.dumps(talk("hi", "yo")), tokenizer, 99, 1) == []


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


PICKY = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}" + PLAIN
REWRITTEN = PLAIN.replace("{{ m['content'] }}", "{{ m['content'] }}{{ messages | length }}")
TURN, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("messages", "template", "cause"),
    [
        (None, PLAIN, Cause.EMPTY),
        (" ", PLAIN, Cause.EMPTY),
        ("no JSON", PLAIN, Cause.TURNS),
        ([], PLAIN, Cause.TURNS),
        ([{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], PLAIN, Cause.TURNS),
        ([TURN, {"role": "assistant", "tool_calls": [{"name": "f"}]}], PLAIN, Cause.PARTS),
        ([{**TURN, "content": [{"type": "image", "url": "x"}]}, ANSWER], PLAIN, Cause.PARTS),
        ([{**TURN, "content": []}, ANSWER], PLAIN, Cause.PARTS),
        ([TURN], PLAIN, Cause.SILENT),
        ([ANSWER], PLAIN, Cause.SILENT),
        ([TURN, {**ANSWER, "role": "model"}], PLAIN, Cause.SILENT),
        ([{"role": "system", "content": "s"}, TURN, ANSWER], PICKY, Cause.REFUSED),
        ([TURN, ANSWER, TURN, ANSWER], REWRITTEN, Cause.HIDDEN),
    ],
)
def test_a_conversation_that_gives_nothing_has_a_cause(
    messages: Any, template: str, cause: Cause, make_tokenizer: Make
) -> None:
    tokenizer, record = make_tokenizer(chat_template=template), {"messages": messages}
    for held in (messages, json.dumps(messages)) if isinstance(messages, list) else (messages,):
        assert encode_messages(held, tokenizer, 32) == []
        assert cause_of({**record, "messages": held}, spec("messages"), tokenizer) is cause


@pytest.mark.parametrize(
    ("record", "cause"),
    [
        ({"text": None}, Cause.EMPTY),
        ({"text": " "}, Cause.EMPTY),
        ({"text": "\u200b"}, Cause.SHORT),
        ({"prompt": "a", "completion": ""}, Cause.EMPTY),
        ({"text": "", "label": "no"}, Cause.EMPTY),
        ({"text": json.dumps([TURN])}, Cause.REFUSED),  # there is no template
        ({"prompt": json.dumps([TURN]), "completion": json.dumps([ANSWER])}, Cause.REFUSED),
    ],
)
def test_a_text_that_gives_nothing_has_a_cause(
    record: dict[str, Any], cause: Cause, make_tokenizer: Make
) -> None:
    task: Task = "classification" if "label" in record else "causal-lm"
    shape = spec(*record, task=task)
    assert encode_record(record, shape, make_tokenizer(), row=1, source="x") == []
    assert cause_of(record, shape, make_tokenizer()) is cause


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


def test_a_missing_label_is_none_of_the_classes(make_tokenizer: Make) -> None:
    labels = ("None", "nan", "null")
    shape = DataSpec({"text": "t", "label": "l"}, "classification", labels, 8, "record", 1)
    with pytest.raises(DataError, match="row 3 has no label"):
        encode_record({"text": "a", "label": None}, shape, make_tokenizer(), row=3, source="x")
    record = {"text": "a", "label": "None"}
    assert encode_record(record, shape, make_tokenizer(), row=1, source="x")[0].labels == 0


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
