"""Prompts from files, with what people wrote there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedpriv.errors import ConfigError, DataError
from fedpriv.hub.prompts import Prompt, read_pairs, read_prompts

PAIR = {"prompt": "mr", "completion": "ref"}


def records(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_records_of_one_prompt_are_its_references(tmp_path: Path) -> None:
    rows = [("a", "1"), ("b", "2"), ("a", "3"), ("c", " "), ("", "4"), ("b", "2")]
    path = records(tmp_path / "t.jsonl", [{"mr": mr, "ref": ref} for mr, ref in rows])
    found = read_pairs(path, PAIR, "--score")
    assert found == [Prompt("a", ("1", "3")), Prompt("b", ("2", "2"))]


def test_prompts_alone_need_no_completion(tmp_path: Path) -> None:
    path = records(tmp_path / "t.jsonl", [{"mr": "a"}, {"mr": " "}, {"mr": "a"}])
    assert read_prompts(path, PAIR, "--prompts") == [Prompt("a"), Prompt("a")]


def test_each_line_of_a_text_is_one(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("\ufeffchest pain\r\n\n  since\x0cMay\u2028or\x85June\n")
    found = read_prompts(path, {"text": "note"}, "--prompts")
    assert found == [Prompt("chest pain"), Prompt("  since\x0cMay\u2028or\x85June")]


TALK = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Fever?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "And now?"},
]
SAID = [{"role": "assistant", "content": "No."}]


@pytest.mark.parametrize("field", ["messages", "text"])
def test_of_a_conversation_all_but_what_is_said_last(field: str, tmp_path: Path) -> None:
    talks = [TALK, [*TALK, *SAID], json.dumps([*TALK, *SAID]), SAID, ""]
    path = records(tmp_path / "t.jsonl", [{"talk": talk} for talk in talks])
    found = read_prompts(path, {field: "talk"}, "--prompts")
    assert [json.loads(one.text) for one in found] == [TALK] * 3


def test_what_is_no_conversation_is_a_text_elsewhere(tmp_path: Path) -> None:
    path = records(tmp_path / "t.jsonl", [{"talk": "none"}, {"talk": TALK}])
    assert len(read_prompts(path, {"messages": "talk"}, "--prompts")) == 1
    assert read_prompts(path, {"text": "talk"}, "--prompts")[0] == Prompt("none")


def test_prompts_may_be_conversations_with_what_was_said(tmp_path: Path) -> None:
    """As in trl. Of one side alone nothing is learned, and so nothing is asked."""
    asked, other = TALK[1:2], [TALK[0], TALK[3]]
    rows = [(asked, SAID), (other, SAID), (asked, [{"role": "assistant", "content": "Ja."}]),
            (asked, "text"), ("text", SAID), (asked, [{**SAID[0], "content": ""}])]  # fmt: skip
    path = records(tmp_path / "t.jsonl", [{"mr": mr, "ref": ref} for mr, ref in rows])
    found = read_pairs(path, PAIR, "--score")
    assert [(json.loads(one.text), one.references) for one in found] == [
        (asked, ("No.", "Ja.")),
        (other, ("No.",)),
    ]
    assert len(read_prompts(path, PAIR, "--prompts")) == 6


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = records(tmp_path / "t.jsonl", [{"mr": "a"}])
    with pytest.raises(DataError, match=r"data\.columns\.completion.*'ref'"):
        read_pairs(path, PAIR, "--score")
    with pytest.raises(DataError, match="no such file"):
        read_prompts(tmp_path / "none.jsonl", PAIR, "--prompts")
    with pytest.raises(DataError, match=r"--prompts: can't be read"):
        read_prompts(tmp_path / "none.txt", PAIR, "--prompts")
    empty = records(tmp_path / "e.jsonl", [{"mr": "a", "ref": ""}])
    with pytest.raises(DataError, match=r"--score: holds no prompt"):
        read_pairs(empty, PAIR, "--score")
    with pytest.raises(ConfigError, match=r"--score: .*--prompts"):
        read_pairs(path, {"text": "mr"}, "--score")
