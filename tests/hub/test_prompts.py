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


def test_of_a_conversation_what_the_user_says_first(tmp_path: Path) -> None:
    talk = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Fever?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "And now?"},
    ]
    path = records(tmp_path / "t.jsonl", [{"talk": talk}, {"talk": "no conversation"}])
    assert read_prompts(path, {"messages": "talk"}, "--prompts") == [Prompt("Fever?")]


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
