"""A site's own view of the models it has: the right figures, and for nobody else."""

from __future__ import annotations

import html
import json
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from fedpriv.data.held_out import HELD_OUT, is_apart
from fedpriv.errors import ConfigError, DataError
from fedpriv.files import private_folder
from fedpriv.personal.answering import title
from fedpriv.personal.evaluation import MEANING
from fedpriv.personal.records import to_test_on
from fedpriv.process import only_process
from fedpriv_client.evaluate import PAGE, own_view
from fedpriv_client.own import federated, opened, own_cache
from fedpriv_client.personalise import personalise
from fedpriv_client.site_settings import work_folder
from tests.arithmetic import Rounded
from tests.client.own_setting import QUICK, WORDS, OwnSetting, invoke, notes

Make = Callable[..., Any]
ROWS = [name for name in MEANING if name != "single"]


@pytest.fixture
def setting(tmp_path: Path, model_folder: Make) -> OwnSetting:
    made = OwnSetting(tmp_path, model_folder("llama"), {"text": "note"}, notes())
    made.hand_over()
    return made


def labelled(count: int = 40, label: Callable[[int], str] = lambda i: ["no", "yes"][i % 2]):
    return [{"note": f"{WORDS[i % 6]} {i}", "label": label(i)} for i in range(count)]


@pytest.mark.slow
def test_the_models_there_are_in_order(setting: OwnSetting) -> None:
    found = own_view(setting.file, setting.config)
    assert [row.name for row in found.rows] == ["base", "federated"]
    assert any("fedpriv-client personalise trains" in note for note in found.notes)
    assert not found.verdict and not any(row.served for row in found.rows)
    made = personalise(setting.file, setting.config)
    found = own_view(setting.file, setting.config)
    assert [row.name for row in found.rows] == ROWS
    [note] = found.notes
    assert "the federation's has 0.2 of the weight" in note
    [served] = [row.name for row in found.rows if row.served]
    assert served == title([*made.models.answer.weights])
    assert served in found.verdict and "oining" in found.verdict
    assert "ROUGE" not in note
    assert list(found.columns) == ["loss", "next-token accuracy"]
    losses = dict(zip((row.name for row in found.rows), found.columns["loss"], strict=True))
    assert len(set(losses.values())) == len(ROWS)


def test_held_out_records_of_another_data_set_are_refused(setting: OwnSetting) -> None:
    others = [{"note": f"{i} {i + 1} {i + 2} {i + 3}"} for i in range(50, 60)]
    path = setting.folder / "others.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in others))
    setting.change("held_out = 0.25", 'held_out = "others.jsonl"')
    with pytest.raises(DataError, match=r"data\.held_out.*read as another data set's"):
        own_view(setting.file, setting.config)


@pytest.mark.slow
def test_how_an_own_model_was_trained_stands_beside_it(setting: OwnSetting) -> None:
    best = personalise(setting.file, setting.config).models.trained["alone"].best
    rows = {row.name: row for row in own_view(setting.file, setting.config).rows}
    assert rows["alone"].trained == best.said
    assert not rows["base"].trained and not rows["federated"].trained
    answer = invoke(setting, "evaluate")
    assert "rate × passes" in answer.output
    assert best.said in answer.output


@pytest.mark.slow
def test_two_models_answer_together_as_peft_has_them(setting: OwnSetting) -> None:
    """Both adapters in one model, as another program would run them, record by record."""
    setting.change(QUICK, f"{QUICK}\nbeside = 0.35")
    made = personalise(setting.file, setting.config)
    rows = own_view(setting.file, setting.config).rows
    [row] = [row for row in rows if row.name == "alone + federated"]
    chosen = federated(setting.file, setting.config, None)
    with opened(chosen, lambda text: None) as (own, worker):
        tokenizer = worker.base.tokenizer
        examples, _ = to_test_on(own.held_out, chosen.spec, tokenizer, key="data.held_out")
    base = AutoModelForCausalLM.from_pretrained(setting.model)
    model = PeftModel.from_pretrained(base, made.folder / "alone", adapter_name="own").eval()
    model.load_adapter(chosen.folder, adapter_name="federated")
    right: list[bool] = []

    def by_hand() -> float:
        losses: list[float] = []
        right.clear()
        for example in examples:
            ids = torch.tensor([example.input_ids])
            mean = torch.zeros(())
            for name, share in (("own", 0.65), ("federated", 0.35)):
                model.set_adapter(name)
                with torch.no_grad():
                    mean = mean + share * model(input_ids=ids).logits[0, :-1].double().softmax(-1)
            targets = ids[0, 1:]
            losses += (-mean[range(len(targets)), targets].log()).tolist()
            right.extend((mean.argmax(-1) == targets).tolist())
        return sum(losses) / len(losses)

    assert Rounded(by_hand).off_by(row.scores.eval_loss) <= 1
    by_hand()
    assert row.scores.eval_accuracy == pytest.approx(sum(right) / len(right))


def test_it_is_of_the_held_out_records_alone(
    setting: OwnSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedpriv.personal import records as module

    seen: list[str] = []
    own_examples = module.own_examples

    def look(records: Any, *rest: Any) -> Any:
        seen.extend(record["text"] for record in records)
        return own_examples(records, *rest)

    monkeypatch.setattr(module, "own_examples", look)
    found = own_view(setting.file, setting.config)
    texts = [row["note"] for row in notes()]
    assert seen == [t for t in texts if is_apart({"text": t}, "record", 0.25, HELD_OUT)]
    assert found.records == len(seen) > 1


def test_a_file_of_further_records_is_used(setting: OwnSetting) -> None:
    rows = "".join(json.dumps({"note": f"other {i}"}) + "\n" for i in range(5))
    (setting.folder / "further.jsonl").write_text(rows)
    setting.change("held_out = 0.25", 'held_out = "further.jsonl"')
    found = own_view(setting.file, setting.config)
    assert found.records == 5 and "data.held_out was 0.25" in found.notes[0]


def test_a_site_without_held_out_records_is_told_what_to_set(setting: OwnSetting) -> None:
    setting.change("held_out = 0.25", "")
    with pytest.raises(ConfigError, match=r"data\.held_out: is missing.*held_out = 0\.2"):
        own_view(setting.file, setting.config)
    assert not (setting.state / PAGE).exists()


def test_held_out_records_without_a_token_are_told(setting: OwnSetting) -> None:
    (setting.folder / "further.jsonl").write_text('{"note": ""}\n{"note": " "}\n')
    setting.change("held_out = 0.25", 'held_out = "further.jsonl"')
    with pytest.raises(DataError, match=r"data\.held_out: holds nothing to test on"):
        own_view(setting.file, setting.config)


@pytest.mark.slow
def test_models_trained_by_another_held_out_share_are_noted(setting: OwnSetting) -> None:
    personalise(setting.file, setting.config)
    setting.change("held_out = 0.25", "held_out = 0.5")
    found = own_view(setting.file, setting.config)
    known = [note for note in found.notes if "may know some of these records" in note]
    assert len(known) == 4 and all("data.held_out was 0.25" in note for note in known)
    assert not found.verdict


@pytest.mark.slow
def test_an_adapter_that_trained_on_what_is_held_out_since_is_noted(setting: OwnSetting) -> None:
    facts = federated(setting.file, setting.config, None).folder / "fedpriv.json"
    written = facts.read_text()
    facts.write_text(written.replace('"held_out": "0.25"', '"held_out": "not set"'))
    personalise(setting.file, setting.config)
    found = own_view(setting.file, setting.config)
    [note] = [note for note in found.notes if "'federated'" in note]
    assert "was trained when data.held_out was not set, so it may know some" in note
    assert not found.verdict
    facts.write_text(written.replace('"held_out": "0.25"', '"held_out": null'))  # as 0.2.0 did
    found = own_view(setting.file, setting.config)
    assert any("data.held_out was not written down" in note for note in found.notes)
    assert found.verdict


@pytest.mark.slow
def test_a_classifier_has_an_auc(tmp_path: Path, model_folder: Make) -> None:
    columns = {"text": "note", "label": "label"}
    setting = OwnSetting(tmp_path, model_folder("bert"), columns, labelled(), labels=("no", "yes"))
    setting.hand_over()
    found = own_view(setting.file, setting.config)
    assert list(found.columns) == ["loss", "accuracy", "AUC"]
    assert all(value is not None and 0 <= value <= 1 for value in found.columns["AUC"])
    personalise(setting.file, setting.config)
    found = own_view(setting.file, setting.config)
    assert [row.name for row in found.rows] == ROWS
    assert all(value is not None and 0 <= value <= 1 for value in found.columns["AUC"])


def test_with_one_label_there_is_no_auc_and_it_says_so(tmp_path: Path, model_folder: Make) -> None:
    columns = {"text": "note", "label": "label"}
    further = "".join(json.dumps(row) + "\n" for row in labelled(6, lambda i: "yes"))
    (tmp_path / "further.jsonl").write_text(further.replace('note": "', 'note": "other '))
    setting = OwnSetting(
        tmp_path,
        model_folder("bert"),
        columns,
        labelled(),
        labels=("no", "yes"),
        held_out='held_out = "further.jsonl"',
    )
    setting.hand_over()
    found = own_view(setting.file, setting.config)
    assert list(found.columns) == ["loss", "accuracy"]
    assert any("have the label 'yes': there is no AUC" in note for note in found.notes)


@pytest.mark.slow
def test_clear_text_is_gone_afterwards_and_the_lock_too(
    setting: OwnSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        assert any(own_cache(setting.state).iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr("fedpriv_client.evaluate.evaluate", stop)
    with pytest.raises(KeyboardInterrupt):
        own_view(setting.file, setting.config)
    assert not own_cache(setting.state).exists()
    with only_process(private_folder(work_folder(setting.state))):
        pass


@pytest.mark.slow
def test_an_adapter_that_was_changed_is_refused(setting: OwnSetting) -> None:
    made = personalise(setting.file, setting.config)
    path = made.folder / "personal" / "adapter_model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"is not the file that fedpriv\.json names"):
        own_view(setting.file, setting.config)


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_signals")
def test_table_and_page_say_the_same_and_that_they_stay(setting: OwnSetting) -> None:
    personalise(setting.file, setting.config)
    answer = invoke(setting, "evaluate")
    assert answer.exit_code == 0, answer.output
    shown = " ".join(answer.output.split())
    assert "not to leave this house" in shown
    page = setting.state / PAGE
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    text = page.read_text()
    assert "Not to leave this house" in text
    assert not re.search(r'(src|href)="', text)  # it needs nothing but itself
    found = own_view(setting.file, setting.config)
    for column in found.columns.values():
        for value in column:
            assert f"{value:.3f}" in shown
            assert f">{value:.3f}<" in text
    assert "has 0.2 of the weight" in shown and "has 0.2 of the weight" in text
    for name in ROWS:
        assert f'<th scope="row">{name} ' in text
    assert found.verdict and found.verdict in html.unescape(text) and found.verdict in shown


def test_a_page_shows_texts_as_they_are(tmp_path: Path) -> None:
    from fedpriv.personal.evaluation import Evaluation, Row
    from fedpriv.personal.page import write_page
    from fedpriv.plain_training.scores import Scores

    rows = (Row("base", Scores(1.0, 0.5)),)
    write_page(Evaluation("<b>x", "<i>y", "causal-lm", 1, rows, "<u>z"), tmp_path / "p")
    text = (tmp_path / "p").read_text()
    assert all(shown in text for shown in ("&lt;b&gt;x", "&lt;i&gt;y", "&lt;u&gt;z"))
