"""What is exported loads in transformers and peft as its card says, to the model of the run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from fedpriv.adapter_facts import read_facts
from fedpriv.base_model import WEIGHTS
from fedpriv.errors import ConfigError, LedgerCorruptError, ModelError, RunError
from fedpriv.hub.export import Wanted, export
from fedpriv.plain_training.adapter import write_facts
from fedpriv.report import budget, received
from tests.arithmetic import Rounded
from tests.hub.hub_runs import MakeRun, report

CLASSIFIER: dict[str, Any] = {"task": "classification"}
TIED = {"tie_word_embeddings": True}
UPPER = tuple(f"layers.1.self_attn.{name}_proj" for name in "qkvo")


def loaded(folder: Path, base: str) -> Any:
    """The model and tokenizer that the card's own Python makes."""
    card = (folder / "README.md").read_text()
    [code] = re.findall(r"^```python\n(.*?)^```$", card, re.M | re.S)
    code = code.replace('folder = "."', f"folder = {str(folder)!r}")
    code = re.sub(r"^name = .*$", f"name = {base!r}", code, flags=re.M)
    names: dict[str, Any] = {}
    exec(code, names)
    return names["model"], names["tokenizer"]


def logits(model: Any) -> torch.Tensor:
    ids = torch.randint(3, 100, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    return found.float()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {}),
        ("llama", {"lora": {"frozen_a": True}}),
        ("llama", {"targets": UPPER}),
        ("llama", {"targets": "all-linear", "dtype": "bfloat16"}),
        ("llama", {"targets": "all-linear", "dtype": "mixed"}),
        ("llama", {"lora": {"modules_to_save": ("lm_head",)}}),
        ("llama", {"lora": {"modules_to_save": ("lm_head",)}, "model": TIED}),
        ("gpt2", {}),
        ("bert", CLASSIFIER),
        ("roberta", CLASSIFIER),
        ("distilbert", {"targets": ("q_lin", "v_lin"), **CLASSIFIER}),
        ("llama", CLASSIFIER),
        ("", {"name": "embedded"}),
        ("", {"name": "embedded", "quantize": "8bit"}),
        ("llama", {"targets": "all-linear", "quantize": "4bit"}),
        ("gpt2", {"quantize": "4bit"}),
        ("distilbert", {"targets": ("q_lin", "v_lin"), "quantize": "8bit", **CLASSIFIER}),
    ],
)
def test_both_forms_load_to_the_model_of_the_run(
    make_run: MakeRun, tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    run, worker = make_run(kind, **options)
    export(run, tmp_path / "a", Wanted())
    export(run, tmp_path / "m", Wanted(merge=True, dtype="float32"))
    halved = [n for n, p in worker.model.named_parameters() if p.dtype == torch.bfloat16]
    worker.model.float()
    base = str(worker.base.source)
    (adapted, tokenizer), (merged, _) = loaded(tmp_path / "a", base), loaded(tmp_path / "m", base)
    assert Rounded(lambda: logits(adapted.float())).off_by(logits(merged)) <= 1
    with torch.no_grad():
        for name in halved:  # a run in bfloat16 rounded its base, and the folder has it in full
            weight = adapted.get_parameter(name)
            weight.copy_(weight.to(torch.bfloat16))
    ours = Rounded(lambda: logits(worker.model))
    assert ours.off_by(logits(adapted)) <= 1
    assert type(merged).__module__.startswith("transformers.")
    text = "The lungs are clear."
    assert tokenizer(text)["input_ids"] == worker.base.tokenizer(text)["input_ids"]
    if worker.recipe.model.labels:
        assert [*merged.config.id2label.values()] == ["no", "yes", "may be"]
    for wrong in (worker.initial, 1.005 * worker.vector.read()):  # in B and in A: by 1%
        worker.vector.write(wrong)
        assert ours.off_by(logits(worker.model)) > 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_merged_model_is_stored_as_its_base_or_as_wanted(
    make_run: MakeRun, tmp_path: Path, dtype: Any
) -> None:
    run, worker = make_run(name="embedded")
    export(run, tmp_path / "m", Wanted(merge=True, dtype=dtype))
    with safe_open(tmp_path / "m" / "model.safetensors", framework="pt") as stream:
        kinds = {stream.get_tensor(name).dtype for name in stream.keys()}  # noqa: SIM118
    assert kinds == {torch.float16 if dtype is None else torch.bfloat16}
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["use_cache"] is True
    [kind] = kinds
    found = logits(loaded(tmp_path / "m", "")[0].float())
    assert Rounded(lambda: logits(worker.model), stored=kind).off_by(found) <= 1
    assert Rounded(lambda: logits(worker.model)).off_by(found) > 1


def test_a_merged_model_that_would_be_another_one_is_refused(
    make_run: MakeRun, tmp_path: Path
) -> None:
    """The output layer shares its weights with the embeddings, into which it would be merged."""
    run, _ = make_run("llama", targets=("lm_head", "q_proj"), model=TIED)
    export(run, tmp_path / "a", Wanted())
    with pytest.raises(ModelError, match=r"is not what was trained.*shares its weights"):
        export(run, tmp_path / "m", Wanted(merge=True, dtype="float32"))
    assert not (tmp_path / "m").exists()


def test_nothing_but_what_may_be_handed_on_goes_out(make_run: MakeRun, tmp_path: Path) -> None:
    run, _ = make_run()
    export(run, tmp_path / "a", Wanted())
    export(run, tmp_path / "m", Wanted(merge=True))
    common = {"README.md", "tokenizer.json", "tokenizer_config.json"}
    common |= {"budgets/north.json", "budgets/south.json"}
    for folder, own in (
        ("a", {"adapter_config.json", WEIGHTS}),
        ("m", {"config.json", "generation_config.json", "model.safetensors"}),
    ):
        files = {path for path in (tmp_path / folder).rglob("*") if path.is_file()}
        assert {str(path.relative_to(tmp_path / folder)) for path in files} == common | own
        for path in files:  # no path of this machine either
            assert (
                b"/tmp" not in path.read_bytes() and str(tmp_path).encode() not in path.read_bytes()
            )
    assert (tmp_path / "a" / WEIGHTS).read_bytes() == (run / "adapter" / WEIGHTS).read_bytes()
    for name in ("north", "south"):
        received.verify(budget.read(tmp_path / "a" / "budgets" / f"{name}.json"))


def test_the_adapter_has_the_form_that_vllm_and_llama_cpp_read(
    make_run: MakeRun, tmp_path: Path
) -> None:
    """Named and shaped as their loaders look for it; both refuse what is set otherwise here."""
    run, _ = make_run(targets="all-linear")
    export(run, tmp_path / "a", Wanted())
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and config["bias"] == "none"
    assert (config["r"], config["lora_alpha"]) == (2, 4.0)
    assert isinstance(config["target_modules"], list)
    assert config["init_lora_weights"] is True
    for key in ("use_dora", "use_rslora", "modules_to_save", "layer_replication", "lora_bias"):
        assert not config[key]
    with safe_open(tmp_path / "a" / WEIGHTS, framework="pt") as stream:
        shapes = {name: stream.get_slice(name).get_shape() for name in stream.keys()}  # noqa: SIM118
    assert shapes
    for name, shape in shapes.items():
        found = re.fullmatch(
            r"base_model\.model\.model\.layers\.\d+\.(.+)\.lora_([AB])\.weight", name
        )
        assert found and any(name.endswith(found[1]) for name in config["target_modules"])
        assert shape[0 if found[2] == "A" else 1] == config["r"]


@pytest.mark.parametrize("kind", ["personal", "alone"])
def test_what_a_site_trained_for_itself_never_leaves(
    make_run: MakeRun, tmp_path: Path, kind: Any
) -> None:
    run, _ = make_run(adapter=kind)
    for folder in (run, run / "adapter"):
        for merge in (False, True):
            with pytest.raises(ConfigError, match=f"never leaves that site.*{kind}"):
                export(folder, tmp_path / "out", Wanted(merge=merge))
    assert not (tmp_path / "out").exists()


def test_an_adapter_without_its_run_is_refused(make_run: MakeRun, tmp_path: Path) -> None:
    run, _ = make_run()
    (run / "adapter").rename(tmp_path / "job-1")
    with pytest.raises(RunError, match="without the reports of what it cost"):
        export(tmp_path / "job-1", tmp_path / "out", Wanted())


def test_a_budget_report_that_was_changed_is_refused(make_run: MakeRun, tmp_path: Path) -> None:
    run, _ = make_run()
    path = run / "sites" / "north" / "budget.json"
    received.write(budget.read(path).model_copy(update={"epsilon_committed": 0.5}), path)
    with pytest.raises(LedgerCorruptError, match="north"):
        export(run, tmp_path / "out", Wanted())
    assert not (tmp_path / "out").exists()


def test_a_run_at_work_and_a_folder_in_use_are_refused(make_run: MakeRun, tmp_path: Path) -> None:
    run, _ = make_run(status="running")
    with pytest.raises(RunError, match="still running"):
        export(run, tmp_path / "out", Wanted())
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | {"status": "interrupted"}))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(RunError, match="there already"):
        export(run, tmp_path / "out", Wanted())
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]
    export(run, tmp_path / "other", Wanted())
    assert "interrupted" in (tmp_path / "other" / "README.md").read_text()


def test_an_adapter_of_another_job_and_changed_weights_are_refused(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run, _ = make_run()
    facts = read_facts(run / "adapter")
    other = facts.proposal.model_copy(update={"job_id": "job-2"})
    write_facts(run / "adapter", other, kind="federated")
    with pytest.raises(ConfigError, match="another job"):
        export(run, tmp_path / "out", Wanted())
    write_facts(run / "adapter", facts.proposal, kind="federated")
    weights = (run / "adapter" / WEIGHTS).read_bytes()
    (run / "adapter" / WEIGHTS).write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(ConfigError, match="is not the file"):
        export(run, tmp_path / "out", Wanted())


def test_a_record_of_the_run_without_its_settings_is_named(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run, _ = make_run(config={})
    with pytest.raises(ConfigError, match=r"run\.json: config\.model: is missing"):
        export(run, tmp_path / "out", Wanted())


def test_another_base_than_that_of_the_run_is_refused(
    make_run: MakeRun, tmp_path: Path, model_folder: Any
) -> None:
    run, _ = make_run()
    info = json.loads((run / "run.json").read_text())
    info["config"]["model"]["name"] = str(model_folder("llama", rms_norm_eps=1e-4))
    (run / "run.json").write_text(json.dumps(info))
    with pytest.raises(ModelError, match="Put that one back"):
        export(run, tmp_path / "out", Wanted())


def test_a_pooled_classifier_is_merged_into_nothing_and_its_adapter_loads_with_fedpriv(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run, worker = make_run("bert", pooling="mean", **CLASSIFIER)
    with pytest.raises(ConfigError, match=r"config\.model\.pooling: .*no class of transformers"):
        export(run, tmp_path / "m", Wanted(merge=True))
    export(run, tmp_path / "a", Wanted())
    found, _ = loaded(tmp_path / "a", str(worker.base.source))
    assert Rounded(lambda: logits(worker.model)).off_by(logits(found)) <= 1


def test_an_adapter_whose_base_has_drawn_layers_is_refused_by_name_and_merged(
    make_run: MakeRun, tmp_path: Path, byte_tokenizer: Any
) -> None:
    """A pooler that is in no file: transformers would draw another one."""
    import transformers

    from tests.small_models import small_config

    folder = tmp_path / "masked"
    transformers.AutoModelForMaskedLM.from_config(small_config("bert")).save_pretrained(folder)
    byte_tokenizer.save_pretrained(folder)
    run, worker = make_run(name=str(folder), targets=("query", "value"), **CLASSIFIER)
    with pytest.raises(ModelError, match=r"bert\.pooler\.dense\.weight was in no file"):
        export(run, tmp_path / "a", Wanted())
    export(run, tmp_path / "m", Wanted(merge=True))
    merged, _ = loaded(tmp_path / "m", "")
    assert Rounded(lambda: logits(worker.model)).off_by(logits(merged)) <= 1


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Wanted(dtype="float16"), "--dtype: is for a merged model"),
        (Wanted(base="/models/llama"), "--base: is no name at a hub"),
    ],
)
def test_options_that_can_not_be_meant_are_refused(
    make_run: MakeRun, tmp_path: Path, wanted: Wanted, message: str
) -> None:
    run, _ = make_run()
    with pytest.raises(ConfigError, match=message):
        export(run, tmp_path / "out", wanted)


def test_weights_that_half_precision_can_not_hold_are_refused(
    make_run: MakeRun, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    run, _ = make_run(reports=(report("north"),))
    path, proposal = run / "adapter" / WEIGHTS, read_facts(run / "adapter").proposal
    save_file({name: 1000 * tensor for name, tensor in load_file(path).items()}, path)
    write_facts(run / "adapter", proposal, kind="federated")
    with pytest.raises(ModelError, match="too large for float16"):
        export(run, tmp_path / "out", Wanted(merge=True, dtype="float16"))
    export(run, tmp_path / "out", Wanted(merge=True, dtype="float32"))
