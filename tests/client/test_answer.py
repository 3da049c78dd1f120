"""A site model answers to texts of a shell and of files, which may be gone on with."""

from __future__ import annotations

import fcntl
import json
import shutil
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpriv.data.encode import encode_labelled
from fedpriv.errors import ConfigError, DataError, RunningError
from fedpriv.serving.answers import Answering
from fedpriv_client.answer import answer_file, run
from fedpriv_client.cli import app
from tests.serving.answering import Made, MakeSiteModel
from tests.small_models import TARGETS

RECORDS = [{"text": f"the patient has {i}", "ward": i} for i in range(5)]


@pytest.fixture(scope="module")
def writing(llama: Made) -> Answering:
    return Answering(llama.folder, writes=True)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return path


def answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_file_is_gone_on_with_as_if_it_had_not_stopped(
    temperature: float, writing: Answering, source: Path, tmp_path: Path
) -> None:
    how = writing.write(4, temperature, 7)
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    options: dict[str, Any] = {"field": None, "batch_size": 2}
    assert answer_file(writing, how, source, whole, **options) == 5
    found = answers(whole)
    assert [{"text": row["text"], "ward": row["ward"]} for row in found] == RECORDS
    assert [row["row"] for row in found] == [1, 2, 3, 4, 5]
    assert all(isinstance(row["completion"], str) for row in found)
    assert whole.stat().st_mode & 0o777 == 0o600

    lines = whole.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:3]) + lines[3][:5])
    out.chmod(0o600)
    assert answer_file(writing, how, source, out, **options) == 2
    assert out.read_bytes() == whole.read_bytes()
    assert answer_file(writing, how, source, out, **options) == 0


def test_ctrl_c_leaves_what_is_done(writing: Answering, source: Path, tmp_path: Path) -> None:
    how, out = writing.write(2), tmp_path / "out.jsonl"

    def interrupted(texts: Any, first: int) -> Any:
        if first >= 2:
            raise KeyboardInterrupt
        return how(texts, first)

    with pytest.raises(KeyboardInterrupt):
        answer_file(writing, interrupted, source, out, field=None, batch_size=2)
    assert [row["row"] for row in answers(out)] == [1, 2]


def test_answers_to_other_records_are_left_alone(
    writing: Answering, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text('{"text": "another", "row": 1, "completion": "x"}\n')
    for there in (out, source):
        there.chmod(0o600)
        before = there.read_bytes()
        with pytest.raises(ConfigError, match="--out: line 1 is not an answer to that line"):
            answer_file(writing, writing.write(2), source, there, field=None, batch_size=2)
        assert there.read_bytes() == before


def test_two_processes_do_not_write_one_file(
    writing: Answering, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    out.touch(0o600)
    with out.open("w") as held, pytest.raises(RunningError, match="another process is writing"):
        fcntl.flock(held, fcntl.LOCK_EX)
        answer_file(writing, writing.write(2), source, out, field=None, batch_size=2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\n{"text": \n', "--in: line 2 is not a JSON object"),
        ('["text"]\n', "--in: line 1 is not a JSON object"),
        ('{"note": "a"}\n', r"text: line 1 has no text there\. Name the field with --field"),
    ],
)
def test_a_record_that_cannot_be_read_is_named(
    content: str, message: str, writing: Answering, source: Path, tmp_path: Path
) -> None:
    source.write_text(content)
    with pytest.raises(DataError, match=message):
        answer_file(writing, writing.write(2), source, tmp_path / "out", field=None, batch_size=2)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_labels_come_with_their_probabilities(
    make_site_model: MakeSiteModel,
    source: Path,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = make_site_model("bert", task="classification")
    answering = Answering(made.folder, writes=False)
    out = tmp_path / "out.jsonl"
    answer_file(answering, answering.label, source, out, field=None, batch_size=4)
    batch = made.worker.base.tokenizer(RECORDS[0]["text"], return_tensors="pt")
    share = made.mean(**{name: batch[name] for name in ("input_ids", "attention_mask")}).exp()[0]
    row = answers(out)[0]
    assert list(row["probabilities"]) == ["no", "yes", "may be"]
    assert list(row["probabilities"].values()) == pytest.approx(share.tolist(), rel=1e-4)
    assert row["label"] == ["no", "yes", "may be"][share.argmax()]
    options: dict[str, Any] = {"field": None, "batch_size": 4}
    monkeypatch.setattr("sys.stdin", StringIO("the patient\n"))
    run(answering, answering.label, None, None, **options)
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.endswith(f"  {answering.label(['the patient'])[0]['label']}")
    talk = '[{"role": "assistant", "content": "fever"}]'
    assert answering.text_of(talk) == talk  # which a label is learned of as it is written
    with pytest.raises(ConfigError, match=r"labels texts.* fedpriv-client classify"):
        Answering(made.folder, writes=True)


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_a_label_is_that_of_training_whatever_the_tokenizer_s_own_side_and_segments(
    kind: str, make_site_model: MakeSiteModel, model_folder: Any, tmp_path: Path
) -> None:
    """Training pads on the right, and gives no segments."""
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    base = tmp_path / "base"
    shutil.copytree(model_folder(kind), base)
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    ends = TemplateProcessing(single="$A:1 <eos>:1", special_tokens=[("<eos>", 2)])
    tokenizer.backend_tokenizer.post_processor = ends
    tokenizer.save_pretrained(base)
    path = base / "tokenizer_config.json"
    names = ["input_ids", "token_type_ids", "attention_mask"]
    own = {"padding_side": "left", "model_input_names": names}
    path.write_text(json.dumps(json.loads(path.read_text()) | own))
    made = make_site_model(base, task="classification", targets=TARGETS[kind])
    answering = Answering(made.folder, writes=False)
    texts = ["a cough", "the patient has no fever"]
    examples = [encode_labelled(text, 0, tokenizer, 32)[0] for text in texts]
    batch = made.worker.batch(examples, 32)
    expected = made.mean(input_ids=batch.input_ids, attention_mask=batch.attention_mask).exp()
    for found in (answering.label(texts), [answering.label([text])[0] for text in texts]):
        for one, share in zip(found, expected, strict=True):
            assert list(one["probabilities"].values()) == pytest.approx(share.tolist(), rel=1e-4)


@pytest.mark.slow
def test_the_newest_site_model_of_the_site_answers(
    llama: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    data = SimpleNamespace(transform=None)
    site = SimpleNamespace(site=SimpleNamespace(state_dir=tmp_path), data=data)
    monkeypatch.setattr("fedpriv_client.cli._load", lambda config: site)

    def command(text: str, *words: str) -> None:
        monkeypatch.setattr("sys.stdin", StringIO(text))
        app(["generate", *words], standalone_mode=False)

    with pytest.raises(ConfigError, match="site-model: no site model was made yet"):
        command("the patient")
    (tmp_path / "site-model").mkdir()
    (tmp_path / "site-model" / "job-1").symlink_to(llama.folder)
    command("the patient", "--max-new-tokens", "3")
    [expected] = Answering(llama.folder, writes=True).write(3)(["the patient"], 0)
    assert capsys.readouterr().out == expected["completion"] + "\n"
    data.transform = f"{__name__}:without_names"
    command("Smith coughs", "--max-new-tokens", "3")
    [scrubbed] = Answering(llama.folder, writes=True).write(3)(["X coughs"], 0)
    assert capsys.readouterr().out == scrubbed["completion"] + "\n"
    with pytest.raises(DataError, match=r"a text that data\.transform fails on \(KeyError\)"):
        command("the patient fails")
    command("Smith coughs", "--max-new-tokens", "3", "--folder", str(llama.folder))
    shown = capsys.readouterr()
    assert shown.out != scrubbed["completion"] + "\n"
    assert "site.toml (--config) is not there: no data.transform is applied" in shown.err
    config = tmp_path / "site.toml"
    config.touch()
    command("Smith coughs", "--max-new-tokens", "3", "--config", str(config))
    assert capsys.readouterr().out == scrubbed["completion"] + "\n"
    with pytest.raises(ConfigError, match="expected --in and --out, or neither"):
        command("a", "--in", "b")
    with pytest.raises(ConfigError, match="expected a text on the standard input"):
        command(" ")


def without_names(text: str) -> str:
    """A site's own function for each text."""
    if "fails" in text:
        raise KeyError(text)
    return text.replace("Smith", "X")


def test_texts_of_a_file_go_through_the_site_s_transform(
    make_site_model: MakeSiteModel, source: Path, tmp_path: Path
) -> None:
    """As those that the model was trained and scored on did."""
    folder = make_site_model("bert", task="classification").folder
    named = f"{__name__}:without_names"
    scrubbing = Answering(folder, writes=False, transform=named)
    source.write_text('{"text": "Smith coughs"}\n{"text": "X coughs"}\n')
    out = tmp_path / "out.jsonl"
    answer_file(scrubbing, scrubbing.label, source, out, field=None, batch_size=1)
    one, other = answers(out)
    assert one["probabilities"] == other["probabilities"] and one["text"] == "Smith coughs"
    source.write_text('{"text": "a"}\n{"text": "it fails"}\n')
    with pytest.raises(DataError, match=r"text: line 2 has a text that data.transform fails on"):
        answer_file(scrubbing, scrubbing.label, source, out, field=None, batch_size=1)


def test_of_a_conversation_every_turn_goes_through_it(writing: Answering, llama: Made) -> None:
    scrubbing = Answering(llama.folder, writes=True, transform=f"{__name__}:without_names")
    scrubbing.field = "messages"
    talk = [{"role": "user", "content": "Smith?"}, {"role": "assistant", "content": "Yes"}]
    assert json.loads(scrubbing.text_of(talk)) == [{"role": "user", "content": "X?"}]
    assert scrubbing.as_trained("Smith?") == "X?"
    writing.field, before = "messages", writing.field
    assert json.loads(writing.text_of([*talk, *talk])) == [*talk, talk[0]]
    with pytest.raises(ValueError, match="no text there"):
        writing.text_of("no conversation")
    writing.field = before


@pytest.mark.slow
def test_answers_do_not_change_with_the_batch_size(
    writing: Answering, source: Path, tmp_path: Path
) -> None:
    """Nor is one longer than it may be, beside a text that nearly fills what the model reads."""
    texts = ["a", "the chest is clear", "b" * 127, "no fever " * 5]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    for new in (None, 5, 100):
        found = []
        for size in (1, 4):
            out = tmp_path / f"{new}-{size}"
            answer_file(writing, writing.write(new), source, out, field=None, batch_size=size)
            found.append([row["completion"] for row in answers(out)])
        assert found[0] == found[1]


@pytest.mark.parametrize("content", ["a site's file, without an end", '{"text": "another"}'])
def test_what_is_no_half_line_of_ours_is_left_alone(
    content: str, writing: Answering, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text(content)
    out.chmod(0o600)
    with pytest.raises(ConfigError, match="--out: line 1 is not an answer to that line"):
        answer_file(writing, writing.write(2), source, out, field=None, batch_size=2)
    assert out.read_text() == content


def test_a_file_of_answers_is_its_owners_alone_and_no_link(
    writing: Answering, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    out.touch(0o644)
    with pytest.raises(ConfigError, match="can be read by others"):
        answer_file(writing, writing.write(2), source, out, field=None, batch_size=2)
    out.unlink()
    out.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="it is a link"):
        answer_file(writing, writing.write(2), source, out, field=None, batch_size=2)
    assert not (tmp_path / "elsewhere").exists()
