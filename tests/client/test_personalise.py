"""A site's own adapter: what it is made of, that it is whole or not there, and that it stays."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.adapter_facts import read_facts
from fedpriv.base_model import WEIGHTS
from fedpriv.errors import ConfigError, DataError, RunningError
from fedpriv.files import private_folder
from fedpriv.personal.answering import Answer
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.process import only_process
from fedpriv.serving import load_site_model
from fedpriv_client.evaluate import own_view
from fedpriv_client.own import own_cache
from fedpriv_client.personalise import personalise, summary
from fedpriv_client.settings import ledgers
from fedpriv_client.site_settings import work_folder
from tests.arithmetic import Rounded
from tests.client.own_setting import WORDS, OwnSetting, invoke, notes, tree

Make = Callable[..., Any]


@pytest.fixture
def setting(tmp_path: Path, model_folder: Make) -> OwnSetting:
    return OwnSetting(tmp_path, model_folder("llama"), {"text": "note"}, notes())


@pytest.mark.slow
def test_it_goes_on_from_the_adapter_of_the_job_and_gets_better(setting: OwnSetting) -> None:
    federated = setting.hand_over()
    said: list[str] = []
    made = personalise(setting.file, setting.config, say=said.append)
    assert made.folder == setting.state / "site-model" / "job-1"
    result = made.models.trained["personal"]
    passes = result.best.number
    last = said[said.index("Training: personal") + 1 : -1]
    tried = ["before", *(f"rate 0.03, pass {n}" for n in (1, 2, 3))]
    assert [one.partition(":")[0] for one in last[:4]] == tried
    assert result.best.loss < result.epochs[0].loss
    assert last[4:] == [f"rate 0.03, pass {n + 1}, all records" for n in range(passes)]
    assert 0 < made.training <= 24 and made.parts == 4
    personal = made.folder / "personal"
    assert (federated / WEIGHTS).read_bytes() != (personal / WEIGHTS).read_bytes()
    facts = read_facts(personal)
    assert (facts.kind, facts.job, facts.held_out) == ("personal", "job-1", "0.25")
    assert facts.trained == f"0.03 × {passes}"


@pytest.mark.slow
def test_it_stays_in_a_folder_of_its_owner_and_its_card_says_so(setting: OwnSetting) -> None:
    setting.hand_over()
    made = personalise(setting.file, setting.config)
    for path in (made.folder.parent, made.folder, *made.folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    card = (made.folder / "README.md").read_text()
    assert "rained on this site's records without privacy: not to leave this house" in card


@pytest.mark.slow
def test_peft_loads_it(setting: OwnSetting) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    setting.hand_over()
    made = personalise(setting.file, setting.config)
    base = AutoModelForCausalLM.from_pretrained(setting.model)
    loaded = PeftModel.from_pretrained(base, made.folder / "personal")
    found = [p.detach().reshape(-1) for n, p in loaded.named_parameters() if ".lora_" in n]
    assert np.array_equal(
        np.concatenate([part.numpy() for part in found]), made.models.trained["personal"].values
    )


def test_alone_begins_at_the_base_model(setting: OwnSetting) -> None:
    setting.hand_over(scale=1.0)
    made = personalise(setting.file, setting.config)
    assert read_facts(made.folder / "alone").kind == "alone"
    trained = made.models.trained
    assert trained["alone"].epochs[0].loss != trained["personal"].epochs[0].loss


def test_again_differs_from_alone_in_its_seed_and_only_in_that(setting: OwnSetting) -> None:
    setting.hand_over()
    trained = personalise(setting.file, setting.config).models.trained
    alone, again = trained["alone"], trained["again"]
    assert (again.best.rate, again.best.number) == (alone.best.rate, alone.best.number)
    assert not np.array_equal(alone.values, again.values)
    assert len(again.best.without) == len(alone.best.without) == 4


@pytest.mark.slow
def test_the_site_model_answers_as_the_adapters_do(setting: OwnSetting) -> None:
    """In another process's way: each adapter by itself, with peft."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    setting.hand_over()
    made = personalise(setting.file, setting.config)
    model = load_site_model(made.folder)
    base = AutoModelForCausalLM.from_pretrained(setting.model)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    first, *others = made.models.answer.weights
    peft = PeftModel.from_pretrained(base, made.folder / first, adapter_name=first)
    for name in others:
        peft.load_adapter(made.folder / name, adapter_name=name)

    def by_hand() -> torch.Tensor:
        mean = torch.zeros(())
        for name, weight in made.models.answer.weights.items():
            peft.set_adapter(name)
            with torch.no_grad():
                mean = mean + weight * peft(input_ids=ids).logits.double().softmax(-1)
        return mean.log()

    with torch.no_grad():
        found = model(input_ids=ids).logits
    assert Rounded(by_hand).off_by(found) <= 1


@pytest.mark.slow
def test_a_single_adapter_answers_by_itself_and_is_evaluated(
    setting: OwnSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting.hand_over()
    both = Answer({"alone": 0.5, "personal": 0.5}, {}, 0.0)
    monkeypatch.setattr("fedpriv.personal.own_models.choose_answer", lambda *_: both)
    made = personalise(setting.file, setting.config, single=True)
    assert made.models.answer.weights == {"single": 1.0}
    assert made.models.trained.keys() == {"alone", "again", "personal"}
    model = load_site_model(made.folder)
    assert model.names == ("single",)
    facts = read_facts(made.folder / "single")
    assert (facts.kind, facts.proposal.lora.r) == ("single", 16)
    rows = {row.name: row for row in own_view(setting.file, setting.config).rows}
    assert rows["single"].served and sum(row.served for row in rows.values()) == 1
    assert rows["single"].scores.eval_loss < rows["base"].scores.eval_loss


def test_for_labels_a_single_adapter_is_the_one_that_was_trained_further(
    tmp_path: Path, model_folder: Make
) -> None:
    rows = [{"note": f"{WORDS[i % 6]} {i}", "label": ["no", "yes"][i % 2]} for i in range(24)]
    columns = {"text": "note", "label": "label"}
    setting = OwnSetting(tmp_path, model_folder("bert"), columns, rows, labels=("no", "yes"))
    setting.hand_over()
    made = personalise(setting.file, setting.config, single=True)
    assert made.models.answer.weights == {"personal": 1.0}
    assert made.models.trained.keys() == {"personal"}
    assert not (made.folder / "alone").exists()
    assert load_site_model(made.folder).names == ("personal",)


def test_held_out_records_teach_it_nothing(
    setting: OwnSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedpriv.data.held_out import HELD_OUT, is_apart
    from fedpriv.personal import records as records_module

    setting.hand_over()
    seen: list[str] = []

    def look(records: Any, *others: Any, **more: Any) -> Any:
        seen.extend(record["text"] for record in records)
        return own_examples(records, *others, **more)

    own_examples = records_module.own_examples
    monkeypatch.setattr(records_module, "own_examples", look)
    made = personalise(setting.file, setting.config)
    held = {
        row["note"] for row in notes() if is_apart({"text": row["note"]}, "record", 0.25, HELD_OUT)
    }
    assert held and not held & {*seen}
    assert made.training == len(seen) == 24 - len(held)


def test_a_patients_records_are_on_one_side_and_no_more_than_the_unit_allows(
    tmp_path: Path, model_folder: Make
) -> None:
    rows = [{"note": f"{WORDS[i % 6]} {i}", "patient": i // 4} for i in range(32)]
    setting = OwnSetting(tmp_path, model_folder("llama"), {"text": "note"}, rows, held_out="")
    setting.change('path = "notes.jsonl"', 'path = "notes.jsonl"\nunit = "patient"')
    for path in ledgers(setting.file).values():
        path.unlink()
    from fedpriv_client.init import init_site

    init_site(setting.file, setting.config)
    setting.hand_over()
    made = personalise(setting.file, setting.config)
    assert made.training == 2 * 8


@pytest.mark.slow
def test_the_newest_adapter_is_taken_or_the_one_that_is_named(setting: OwnSetting) -> None:
    first, second = setting.hand_over("job-1"), setting.hand_over("job-2")
    os.utime(first / "fedpriv.json", (1, 1))
    assert personalise(setting.file, setting.config).folder.name == "job-2"
    assert personalise(setting.file, setting.config, first).folder.name == "job-1"
    os.utime(second / "fedpriv.json", (0, 0))
    assert personalise(setting.file, setting.config).folder.name == "job-1"


def test_without_any_adapter_it_is_said_where_to_get_one(setting: OwnSetting) -> None:
    with pytest.raises(ConfigError, match=r"no adapter was handed over.*--adapter DIR"):
        personalise(setting.file, setting.config)
    with pytest.raises(ConfigError, match=r"holds no adapter of a job: fedpriv\.json is missing"):
        personalise(setting.file, setting.config, setting.folder)


def test_an_adapter_of_another_base_is_refused_by_both_digests(
    setting: OwnSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "sha256:" + "b" * 64
    setting.hand_over(base_digest=other)
    monkeypatch.setattr("fedpriv_client.own.read_records", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(ConfigError) as caught:
        personalise(setting.file, setting.config)
    assert other in str(caught.value)
    assert setting.digest in str(caught.value)


def test_what_a_site_loads_is_the_model_that_it_allows(setting: OwnSetting, tmp_path: Path) -> None:
    """Whatever an adapter calls it: its own word names no file here."""
    folder = setting.hand_over()
    assert read_facts(folder).proposal.model.name == "elsewhere"
    setting.change(str(setting.model), str(tmp_path / "none"))
    with pytest.raises(Exception, match="none"):
        personalise(setting.file, setting.config)


@pytest.mark.parametrize(
    ("limit", "words"), [("max_r = 1", r"lora\.r"), ("max_length = 8", r"model\.max_length")]
)
def test_an_adapter_beyond_the_sites_limits_is_refused(
    setting: OwnSetting, limit: str, words: str
) -> None:
    setting.hand_over()
    setting.change("[allow]", f"[allow]\n{limit}")
    with pytest.raises(ConfigError, match=words):
        personalise(setting.file, setting.config)


def test_more_parameters_than_the_site_allows_are_refused(setting: OwnSetting) -> None:
    setting.hand_over()
    setting.change("[allow]", "[allow]\nmax_trainable = 100")
    with pytest.raises(Exception, match="more than this site allows"):
        personalise(setting.file, setting.config)
    assert not (setting.state / "site-model" / "job-1").exists()


@pytest.mark.slow
def test_a_personal_adapter_is_nothing_to_begin_with(setting: OwnSetting) -> None:
    setting.hand_over()
    made = personalise(setting.file, setting.config)
    with pytest.raises(ConfigError, match="of kind 'personal'"):
        personalise(setting.file, setting.config, made.folder / "personal")


def test_too_few_units_to_choose_by_are_told(tmp_path: Path, model_folder: Make) -> None:
    setting = OwnSetting(tmp_path, model_folder("llama"), {"text": "note"}, notes(1), held_out="")
    setting.hand_over()
    with pytest.raises(DataError, match=r"personal\.validation.*in 1 of 4 parts"):
        personalise(setting.file, setting.config)


def test_a_site_of_few_units_may_learn_from_all_of_them(tmp_path: Path, model_folder: Make) -> None:
    few = "validation = 0\nepochs = 2\nepochs_alone = 3\nrates = [1e-2]"
    columns = {"text": "note"}
    setting = OwnSetting(
        tmp_path, model_folder("llama"), columns, notes(3), held_out="", personal=few
    )
    setting.hand_over()
    made = personalise(setting.file, setting.config)
    assert (made.training, made.parts) == (3, 0)
    for kind, passes in (("personal", 2), ("alone", 3), ("again", 3)):
        best = made.models.trained[kind].best
        assert (best.number, best.loss) == (passes, None)
        assert f"{kind}: {passes} passes over all records" in summary(made)
    assert made.models.answer.weights == {"alone": 0.4, "personal": 0.4, "federated": 0.2}


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("patient 7"), MemoryError()])
@pytest.mark.parametrize("where", ["train_own", "write_adapter", "write_base"])
def test_what_ends_half_way_leaves_nothing_and_what_was_there(
    setting: OwnSetting, monkeypatch: pytest.MonkeyPatch, error: BaseException, where: str
) -> None:
    setting.hand_over()
    personalise(setting.file, setting.config)
    before = tree(setting.state)

    def stop(*_: Any, **__: Any) -> None:
        assert own_cache(setting.state).exists() is (where != "write_base")  # clear text, for now
        raise error

    place = {
        "train_own": "fedpriv_client.personalise.train_own",
        "write_adapter": "fedpriv.plain_training.adapter.write_facts",
        "write_base": "fedpriv.serving.write.check_answers",
    }
    monkeypatch.setattr(place[where], stop)
    with pytest.raises(type(error)):
        personalise(setting.file, setting.config)
    assert tree(setting.state) == before
    assert not own_cache(setting.state).exists()
    assert not list(work_folder(setting.state).iterdir())
    monkeypatch.undo()
    personalise(setting.file, setting.config)
    assert tree(setting.state).keys() == before.keys()


def test_clear_text_is_gone_afterwards_also_that_of_one_that_was_killed(
    setting: OwnSetting,
) -> None:
    setting.hand_over()
    left = private_folder(own_cache(setting.state)) / "left.arrow"
    left.write_text("patient 7")
    personalise(setting.file, setting.config)
    assert not own_cache(setting.state).exists()


def test_two_at_once_are_one_too_many(setting: OwnSetting) -> None:
    setting.hand_over()
    folder = private_folder(work_folder(setting.state))
    with only_process(folder), pytest.raises(RunningError, match="another process"):
        personalise(setting.file, setting.config)


@pytest.mark.slow
def test_a_job_of_any_name_is_in_nobodys_way(setting: OwnSetting) -> None:
    """A coordinator chooses it."""
    for job in ("process.lock", "cache", "personal", "alone"):
        setting.hand_over(job)
        assert personalise(setting.file, setting.config).folder.name == job


def test_while_the_client_runs_nothing_is_computed_beside_it(setting: OwnSetting) -> None:
    """Its answers would take longer, and the records decide how long own training takes."""
    setting.hand_over()
    for command in (personalise, own_view):
        with (
            only_process(setting.state),
            pytest.raises(RunningError, match="the client is running"),
        ):
            command(setting.file, setting.config)
    assert not work_folder(setting.state).exists()


def test_it_opens_no_ledger(setting: OwnSetting) -> None:
    setting.hand_over()
    [path] = ledgers(setting.file).values()
    before = path.read_bytes()
    with Ledger.open(path):
        assert personalise(setting.file, setting.config).folder.exists()
    assert path.read_bytes() == before


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_signals")
def test_the_command_says_how_it_goes_and_where_it_is(setting: OwnSetting) -> None:
    setting.hand_over()
    answer = invoke(setting, "personalise")
    assert answer.exit_code == 0, answer.output
    lines = answer.output.splitlines()
    assert any(line.startswith("before: loss ") for line in lines)
    assert any(line.startswith("rate 0.03, pass 3: loss ") for line in lines)
    assert "rate 0.03, pass 1, all records" in lines
    shown = " ".join(lines)
    assert str(setting.state / "site-model" / "job-1") in shown
    assert "The smallest set within" in shown
    assert "held-out records of clinic" in shown and "oining" in shown
    assert "not to leave this house" in shown


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_signals")
def test_records_that_can_not_judge_it_are_said_and_it_is_there(setting: OwnSetting) -> None:
    setting.hand_over()
    rows = [{"note": f"{i} {i + 1} {i + 2} {i + 3}"} for i in range(50, 60)]
    (setting.folder / "further.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    setting.change("held_out = 0.25", 'held_out = "further.jsonl"')
    answer = invoke(setting, "personalise")
    assert answer.exit_code == 0, answer.output
    assert "model can't be evaluated: " in answer.output and "another data set's" in answer.output
    assert load_site_model(setting.state / "site-model" / "job-1").names


@pytest.mark.usefixtures("quiet_signals")
def test_nothing_is_logged(setting: OwnSetting, caplog: pytest.LogCaptureFixture) -> None:
    """What is shown is for the screen of the administrator; logs are collected elsewhere."""
    caplog.set_level(0)
    setting.hand_over()
    caplog.clear()
    answer = invoke(setting, "personalise")
    assert answer.exit_code == 0
    ours = [one for one in caplog.records if one.name.startswith("fedpriv")]
    assert not ours


@pytest.mark.slow
def test_what_a_killed_one_left_is_gone_with_the_next(setting: OwnSetting) -> None:
    setting.hand_over()
    left = private_folder(setting.state / "site-model") / ".old-job.tmp"
    left.mkdir()
    personalise(setting.file, setting.config)
    assert [path.name for path in left.parent.iterdir()] == ["job-1"]
