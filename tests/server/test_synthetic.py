"""Who makes the records of a job: by its file, or an error that says what is wrong."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError, ModelError
from fedpriv.synthetic.instructed import InstructedGenerator
from fedpriv.synthetic.language_model import LanguageModelGenerator
from fedpriv_server.synthetic import generator_of, synthetic_records

Make = Callable[..., Any]
SIZE = "synthetic.size=4"


def generator(file: Path, *settings: str, **job: Any) -> Any:
    config = load_job(file, [SIZE, *(f"synthetic.generator.{one}" for one in settings)])
    config = config.model_copy(update=job)
    return generator_of(config, lambda: pytest.fail("not asked yet"), file.parent / "answers")


def classifying(file: Path) -> dict[str, Any]:
    config = load_job(file)
    model = config.model.model_copy(update={"task": "classification", "labels": ("no", "yes")})
    columns = {"text": "note", "label": "answer"}
    return {"model": model, "data": config.data.model_copy(update={"columns": columns})}


@pytest.fixture
def chatting(tmp_path: Path, model_folder: Make, byte_tokenizer: Any) -> Path:
    """A model with a chat template, beside the federation file."""
    import shutil

    folder = tmp_path / "federation" / "chatty"
    shutil.copytree(model_folder("llama"), folder)
    tokenizer = copy.deepcopy(byte_tokenizer)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    return folder


def test_the_trained_model_or_another_goes_on_from_prefixes(
    federation: Make, model_folder: Make
) -> None:
    file = federation()
    assert isinstance(generator(file, "kind=model"), LanguageModelGenerator)
    local = generator(file, "kind=local", f"model={model_folder('gpt2')}")
    assert isinstance(local, LanguageModelGenerator)
    assert len({record["text"] for record in local.random(3, "s")}) == 3


def test_a_local_model_with_a_template_is_instructed(federation: Make, chatting: Path) -> None:
    file = federation()
    made = generator(file, "kind=local", "model=chatty", "describe=a note")
    assert isinstance(made, InstructedGenerator)
    assert len(made.random(2, "s")) == 2
    with pytest.raises(ConfigError, match=r"describe: is missing.*what a record is"):
        generator(file, "kind=local", "model=chatty")


def test_labels_need_instructions(federation: Make, model_folder: Make, chatting: Path) -> None:
    file = federation()
    for settings in (("kind=model",), ("kind=local", f"model={model_folder('gpt2')}")):
        with pytest.raises(ConfigError, match="makes texts without a label"):
            generator(file, *settings, **classifying(file))
    instructed = ("kind=local", "model=chatty", "describe=a note")
    made = generator(file, *instructed, **classifying(file))
    assert {record["label"] for record in made.random(20, "s")} == {"yes", "no"}


def test_conversations_are_not_made(federation: Make) -> None:
    file = federation()
    data = load_job(file).data.model_copy(update={"columns": {"messages": "note"}})
    with pytest.raises(ConfigError, match="makes no conversations"):
        generator(file, "kind=model", data=data)


def test_a_model_that_is_not_there_is_named(federation: Make, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        generator(federation(), "kind=local", f"model={tmp_path / 'nowhere'}")


def test_records_are_read_as_texts(federation: Make, tmp_path: Path) -> None:
    file, path = federation(), tmp_path / "public.jsonl"
    rows = [{"note": "words", "answer": 1}, {"note": None, "answer": None}, {"note": "c"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = load_job(file, ["synthetic.size=2", f"synthetic.data={path}"])
    found = synthetic_records(config.model_copy(update=classifying(file)), tmp_path / "cache")
    assert found == [{"text": "words", "label": "1"}, {"text": "", "label": ""}]


def test_a_record_too_long_to_send_is_named(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, path = federation(), tmp_path / "public.jsonl"
    path.write_text("".join(json.dumps({"note": note}) + "\n" for note in ("short", "x" * 30)))
    config = load_job(file, ["synthetic.size=2", f"synthetic.data={path}"])
    monkeypatch.setattr("fedpriv_server.synthetic.MAX_TEXT", 20)
    with pytest.raises(ConfigError, match=r"public.jsonl.*row 2 has a text of 30 characters"):
        synthetic_records(config, tmp_path / "a")
    monkeypatch.setattr("fedpriv_server.synthetic.MAX_TEXT", 40)
    monkeypatch.setattr("fedpriv_server.synthetic.MAX_SET", 30)
    with pytest.raises(ConfigError, match="the set has 35"):
        synthetic_records(config, tmp_path / "b")


def test_a_prompt_for_all_needs_records_with_prompts(federation: Make, model_folder: Make) -> None:
    file, prompt = federation(), "prompt='Write a note.'"
    with pytest.raises(ConfigError, match="belongs to records with a prompt") as caught:
        generator(file, "kind=model", prompt)
    assert caught.value.key == "synthetic.generator.prompt"
    data = load_job(file).data.model_copy(update={"columns": {"prompt": "p", "completion": "c"}})
    made = generator(file, "kind=local", f"model={model_folder('gpt2')}", prompt, data=data)
    assert made.random(1, "s")[0]["prompt"] == "Write a note."
