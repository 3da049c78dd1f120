"""A set is its content; a change makes exactly what it announces, or nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.data.spec import DataSpec
from fedpriv.errors import ProtocolError, SyntheticSetError
from fedpriv.synthetic.records import SetChange, SyntheticSet

texts = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6)


def made(*texts: str) -> SyntheticSet:
    return SyntheticSet({"text": text} for text in texts)


def test_it_is_known_by_its_content() -> None:
    assert made("a", "b").digest == made("a", "b").digest
    others = [made("b", "a"), made("a"), made("a", "b", ""), made("ab", "")]
    assert len({one.digest for one in [made("a", "b"), *others]}) == 5
    labelled = SyntheticSet([{"text": "a", "label": "b"}])
    assert labelled.digest == SyntheticSet([{"label": "b", "text": "a"}]).digest


@given(texts, texts)
def test_a_change_leads_from_one_to_the_other(old: list[str], new: list[str]) -> None:
    before, after = made(*old), made(*new)
    change = SetChange.between(before, after)
    assert change.apply(before).records == after.records
    assert SetChange.between(None, after).apply(None).records == after.records
    assert change.apply(after) is after  # a request that is repeated
    assert SetChange.parse(change.model_dump_json()) == change


def test_only_what_is_new_is_sent() -> None:
    change = SetChange.between(made("a", "b", "c"), made("a", "x", "c"))
    assert change.records == {1: {"text": "x"}}
    assert SetChange.between(made("a"), made("a")).records == {}


def test_a_change_of_another_set_is_refused() -> None:
    change = SetChange.between(made("a", "b"), made("a", "c"))
    for held in (None, made("x", "b")):
        with pytest.raises(SyntheticSetError, match="not here"):
            change.apply(held)


@pytest.mark.parametrize(
    ("update", "problem"),
    [
        ({"records": {0: {"text": "a"}}}, "would not have records"),
        ({"records": {0: {"text": "a"}, 2: {"text": "b"}}}, "would not have records"),
        ({"records": {0: {"text": "a"}, 1: {"text": "no"}}}, "not the one"),
    ],
)
def test_what_was_announced_is_what_is_made(update: dict[str, Any], problem: str) -> None:
    change = SetChange.between(None, made("a", "b")).model_copy(update=update)
    with pytest.raises(SyntheticSetError, match=problem):
        change.apply(None)


@pytest.mark.parametrize(
    "records",
    [
        {"-1": {"text": "a"}},
        {"0": {"words": "a"}},
        {"0": {"text": 3}},
        {"0": {"text": "a" * 10**6}},
    ],
)
def test_what_is_no_record_is_refused_when_it_is_read(records: Any) -> None:
    body = SetChange.between(None, made("a")).model_dump(mode="json") | {"records": records}
    with pytest.raises(ProtocolError, match=r"SetChange\.records"):
        SetChange.parse(json.dumps(body))


def test_a_set_too_large_to_keep_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.synthetic.records.MAX_SET", 5)
    assert SetChange.between(None, made("abc", "de")).size == 2
    with pytest.raises(ValueError, match="6 characters are more than 5"):
        SetChange.between(None, made("abc", "def"))


def test_a_tokenizer_that_panics_is_no_crash() -> None:
    class Panic(BaseException):
        pass

    def tokenizer(*arguments: Any, **options: Any) -> None:
        raise Panic

    with pytest.raises(ProtocolError, match="can't be read"):
        made("a").examples(spec("text"), tokenizer)  # type: ignore[arg-type]


def spec(*fields: str) -> DataSpec:
    labels = ("no", "yes") if "label" in fields else ()
    task = "classification" if labels else "causal-lm"
    return DataSpec({field: field for field in fields}, task, labels, 8, "record", 4)


def test_a_record_is_one_example_or_none(byte_tokenizer: Any) -> None:
    found = made("long enough for two windows", "  ", "x").examples(spec("text"), byte_tokenizer)
    assert [one is None for one in found] == [False, True, False]
    assert found[0] is not None and len(found[0].input_ids) == 8


@pytest.mark.parametrize(
    ("fields", "record"),
    [
        (("text",), {"prompt": "a", "completion": "b"}),
        (("text", "label"), {"text": "a"}),
        (("text", "label"), {"text": "a", "label": "maybe"}),
    ],
)
def test_records_of_another_job_are_refused(
    fields: tuple[str, ...], record: dict[str, str], byte_tokenizer: Any
) -> None:
    with pytest.raises(ProtocolError):
        SyntheticSet([record]).examples(spec(*fields), byte_tokenizer)
