"""What a run's model writes is what the model that was trained writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.errors import ConfigError, DataError, ModelError
from fedpriv.hub.writer import Writer
from tests.greedy import by_hand
from tests.hub.hub_runs import MakeRun

PAIR = {"prompt": "mr", "completion": "ref"}


def test_it_writes_what_the_trained_model_does_and_the_base_model_otherwise(
    make_run: MakeRun,
) -> None:
    run, worker = make_run(columns=PAIR)
    writer = Writer(run)
    assert (writer.job, writer.columns, writer.private) == ("job-1", PAIR, True)
    tokenizer, longest = worker.base.tokenizer, worker.recipe.model.max_length
    prompts = ["fever", "the chest is"]
    expected = [by_hand(worker.model, tokenizer, prompt, longest) for prompt in prompts]
    assert [writer.write([prompt])[0] for prompt in prompts] == expected
    worker.vector.write(worker.initial)
    plain = [by_hand(worker.model, tokenizer, prompt, longest) for prompt in prompts]
    assert [writer.write([prompt], base=True)[0] for prompt in prompts] == plain
    assert not set(plain) & set(expected)


def test_what_is_drawn_is_drawn_from_a_seed(make_run: MakeRun) -> None:
    run, _ = make_run()
    writer = Writer(run)
    first, again, other = (
        writer.write(["fever", "cough"], temperature=1.0, seed=seed) for seed in (0, 0, 1)
    )
    assert first == again != other


def test_an_adapter_that_was_handed_over_is_enough(make_run: MakeRun, tmp_path: Path) -> None:
    run, _ = make_run(columns=PAIR)
    whole = Writer(run).write(["fever"])
    (run / "adapter").rename(tmp_path / "job-1")
    alone = Writer(tmp_path / "job-1")
    assert alone.write(["fever"]) == whole
    assert alone.private is None and alone.columns == {
        "prompt": "prompt",
        "completion": "completion",
    }


@pytest.mark.parametrize("kind", ["personal", "alone"])
def test_what_a_site_trained_for_itself_writes_nothing(make_run: MakeRun, kind: Any) -> None:
    """A record can be read out of it, so that what it writes is paid for by nobody (law 16)."""
    run, _ = make_run(adapter=kind)
    for folder in (run, run / "adapter"):
        with pytest.raises(ConfigError, match=f"never leaves that site.*{kind}.*evaluate"):
            Writer(folder)


def test_a_classifier_is_refused(make_run: MakeRun) -> None:
    run, _ = make_run(task="classification")
    with pytest.raises(ConfigError, match="writes no text"):
        Writer(run)


def test_a_prompt_is_read_as_far_as_a_record_learns_it(make_run: MakeRun) -> None:
    """All but a token, which is the shortest answer; a text has half of a record in any case."""
    run, worker = make_run()
    prompt = "fever and cough " * 20
    tokens = worker.base.tokenizer(prompt)["input_ids"]
    longest = worker.recipe.model.max_length
    assert len(tokens) > longest
    end = worker.base.tokenizer.decode(tokens[-(longest - 1) :])
    expected = by_hand(worker.model, worker.base.tokenizer, end, longest - 1 + longest // 2)
    assert Writer(run).write([prompt]) == Writer(run).write([end]) == [expected]
    assert Writer(run).write([""])[0]


def test_a_chat_model_is_asked_through_its_template(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, worker = make_run(columns={"messages": "talk"})
    writer = Writer(run)
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    writer._tokenizer.chat_template = template + "{% if add_generation_prompt %}[a]{% endif %}"
    expected = by_hand(worker.model, worker.base.tokenizer, "[user]fever[a]", 32)
    assert writer.write(["fever"]) == [expected]
    talk = [{"role": "system", "content": "s"}, {"role": "user", "content": "fever"}]
    expected = by_hand(worker.model, worker.base.tokenizer, "[system]s[user]fever[a]", 39)
    assert writer.write([json.dumps(talk)]) == [expected]
    writer.columns = PAIR  # no chat model by its columns
    assert writer.write([json.dumps(talk)]) == [expected]
    writer._tokenizer.chat_template = "{{ raise_exception('no system') }}"
    with pytest.raises(DataError, match="chat template refuses the messages"):
        writer.write([json.dumps(talk)])


@pytest.mark.slow
def test_the_command_writes_and_scores(make_run: MakeRun, tmp_path: Path) -> None:
    from tests.forked_commands import command

    run, _ = make_run(columns=PAIR, private=False)
    plain = Writer(run).write(["fever", "cough"])
    done = command("fedpriv", "generate", str(run), "fever", "cough")
    assert (done.returncode, done.stdout) == (0, "\n\n".join(plain) + "\n"), done.stderr
    assert "NOT PRIVATE" in done.stderr
    file = tmp_path / "test.jsonl"
    rows = [{"mr": "fever", "ref": plain[0]}, {"mr": "fever", "ref": "x"}, {"mr": "b", "ref": "y"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("generate", str(run), "--score", str(file), "--limit", "1")
    done = command("fedpriv", *words, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["answers"] == [
        {"prompt": "fever", "text": plain[0], "references": [plain[0], "x"]}
    ]
    assert found["scores"]["rouge_l"] == 1.0 and not found["private"]
    shown = command("fedpriv", *words)
    assert "1 prompts, 2 references" in shown.stdout and "ROUGE-L  100.00" in shown.stdout
    for options, said in (((), "one of three"), (("a", "--prompts", str(file)), "one of three")):
        refused = command("fedpriv", "generate", str(run), *options)
        assert refused.returncode == 2 and said in refused.stderr


def test_a_base_model_that_was_moved_is_asked_for_and_found(
    make_run: MakeRun, model_folder: Any, tmp_path: Path
) -> None:
    """Such as on another machine. Another model in its place is still refused."""
    base = tmp_path / "base"
    shutil.copytree(model_folder("llama"), base)
    run, _ = make_run(name=str(base))
    asked = ["generate", str(run), "fever", "--json"]
    before = CliRunner().invoke(app, asked)
    moved = base.rename(tmp_path / "moved")
    lost = CliRunner().invoke(app, asked)
    assert isinstance(lost.exception, ModelError)
    assert "no such folder" in str(lost.exception) and "--model FOLDER" in str(lost.exception)
    found = CliRunner().invoke(app, [*asked, "--model", str(moved)])
    assert found.stdout == before.stdout and found.exit_code == 0
    out = str(tmp_path / "out")
    assert isinstance(
        CliRunner().invoke(app, ["adapter", str(run), "--out", out]).exception, ModelError
    )
    written = CliRunner().invoke(app, ["adapter", str(run), "--out", out, "--model", str(moved)])
    assert written.exit_code == 0 and str(base) not in (tmp_path / "out" / "README.md").read_text()
    other = CliRunner().invoke(app, [*asked, "--model", str(model_folder("gpt2"))])
    assert isinstance(other.exception, ModelError) and "run was made" in str(other.exception)
