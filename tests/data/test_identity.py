"""By what a unit is known: the same person's records agree, other people's don't."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.data.identity import identities, whole_record

TEXT = st.text('ab \n"[]:,é', max_size=6)
RECORDS = st.fixed_dictionaries({"prompt": TEXT, "completion": TEXT, "unit": TEXT})


def squeezed(text: str) -> str:
    return " ".join(text.split())


@given(RECORDS, RECORDS)
def test_contents_agree_when_their_words_do(one: dict[str, str], two: dict[str, str]) -> None:
    same = all(squeezed(one[f]) == squeezed(two[f]) for f in ("prompt", "completion"))
    found = [sorted(identities(record, "record")) for record in (one, two)]
    assert (found[0] == found[1]) == same
    assert (whole_record(one) == whole_record(two)) == same


@given(RECORDS, RECORDS, st.sampled_from(["patient", "case"]), st.sampled_from(["patient", "case"]))
def test_a_unit_is_its_id_whatever_its_column_is_called(
    one: dict[str, str], two: dict[str, str], column: str, another: str
) -> None:
    same = one["unit"] == two["unit"]
    assert (identities(one, column)[0] == identities(two, another)[0]) == same


@given(TEXT.filter(squeezed), st.sampled_from(["text", "prompt", "completion"]))
def test_a_text_is_the_same_in_every_field(text: str, field: str) -> None:
    """And beside whatever other field: a prompt may be put before a note."""
    [alone] = identities({"text": text}, "record")
    beside = identities({"other": "Summarise: ", field: text}, "record")
    assert [identity.content for identity in beside].count(alone.content) == 1
    assert {identity.kind for identity in beside} == {"other", field}


def test_an_id_is_no_text() -> None:
    id_, text = identities({"unit": "7", "text": "7"}, "patient")
    assert id_.content != text.content


@given(RECORDS)
def test_a_record_is_known_in_a_ledger_by_patient_too(record: dict[str, str]) -> None:
    unit, *content = identities(record, "patient")
    alone = {field: record[field] for field in ("prompt", "completion")}
    assert sorted(content) == sorted(identities(alone, "record"))
    assert unit not in content
    assert whole_record(record) == whole_record(alone)


def test_the_label_is_no_part_of_whom_a_note_belongs_to() -> None:
    for label in ("0", "1", None):
        labelled = {"text": "fever", "label": label}
        assert identities(labelled, "record") == identities({"text": "fever"}, "record")
        assert whole_record(labelled) == whole_record({"text": "fever"})


@pytest.mark.parametrize(
    "record",
    [
        {"text": None},
        {"text": " \n\t"},
        {"text": "", "label": "1"},
        {"prompt": None, "completion": ""},
        {"messages": None},
        {"messages": []},
    ],
)
def test_an_empty_record_is_nobodys(record: dict[str, Any]) -> None:
    assert identities(record, "record") == []
    assert whole_record(record) == b""
    assert len(identities({**record, "unit": "7"}, "patient")) == 1


def test_conversations_agree_whatever_the_order_of_their_keys() -> None:
    turns: list[Any] = [
        {"role": "user", "content": "Hello"},
        {"content": "Hello", "role": "user"},
        {"role": "user", "content": "Hello", "score": float("nan")},
        {"role": "user", "content": ["Hello"]},
    ]
    found = [tuple(identities({"messages": [turn]}, "record")) for turn in turns]
    assert found[0] == found[1] == found[2]
    assert len(set(found)) == 2
    [said] = identities({"messages": json.dumps(turns[:1])}, "record")
    assert said.content == identities({"text": "Hello"}, "record")[0].content


def test_texts_are_compared_as_people_read_them() -> None:
    plain = {"text": "Café, 37 °C"}
    for alike in ("Cafe\u0301, 37 °C", "Café, 37\u00a0°C", "Ca\u200bfé, 37 °C\ufeff"):
        assert identities({"text": alike}, "record") == identities(plain, "record")
        assert whole_record({"text": alike}) == whole_record(plain)
