"""A federation of two sites begins at an adapter that was there, and goes on from it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from fedpriv.adapter_facts import read_facts
from fedpriv.base_model import WEIGHTS
from fedpriv.config.load import digest, load_job
from fedpriv.errors import ConfigError, ModelError, RunError
from fedpriv.hub.export import Wanted, export
from fedpriv.hub.writer import Writer
from fedpriv.stored_adapter import find_adapter
from fedpriv_simulation.simulate import simulate
from tests.greedy import by_hand
from tests.peft_adapters import model_on, write_peft_adapter

Make = Callable[..., Any]
STILL = ("optimizer.lr=1e-12",)  # what is trained stays where it began


@pytest.mark.slow
@pytest.mark.parametrize("how", ["continued", "merged"])
def test_it_writes_what_the_adapter_does_and_its_run_can_be_moved(
    federation: Make, model_folder: Make, tmp_path: Path, how: str
) -> None:
    """Base, adapter and run lie in one folder, which is then elsewhere, as on another machine."""
    place = tmp_path / "here"
    base, begin, run = place / "base", place / "adapter", place / "runs" / "one"
    shutil.copytree(model_folder("llama"), base)
    theirs = write_peft_adapter(begin, base)
    settings = [f"model.name={base}", f"model.begin={begin}", f"model.begin_as={how}", *STILL]
    if how == "continued":  # the file's own r and alpha
        settings += ["lora.r=3", "lora.alpha=5"]
    file = federation(rounds=1)
    outcome = simulate(load_job(file, settings), run, source=file)
    info, facts = json.loads((run / "run.json").read_text()), read_facts(run / "adapter")
    stored = find_adapter(str(begin)).digest
    assert facts.proposal.begin_digest == info["model"]["begin"] == stored
    assert stored in (run / "adapter" / "README.md").read_text()
    plain = simulate(load_job(file, [f"model.name={base}"]), place / "plain", source=file)
    assert outcome.baseline.eval_loss != plain.baseline.eval_loss
    if how == "continued":
        begun, ended = load_file(begin / WEIGHTS), load_file(run / "adapter" / WEIGHTS)
        assert all(np.allclose(begun[name], ended[name], atol=1e-9) for name in begun)
    writer = Writer(run)
    prompts = ["fever", "the chest is"]
    expected = [by_hand(theirs, writer._tokenizer, one, 32) for one in prompts]
    assert [writer.write([one])[0] for one in prompts] == expected
    bare = model_on(base)
    assert [by_hand(bare, writer._tokenizer, one, 32) for one in prompts] != expected
    moved = place.rename(tmp_path / "elsewhere") / "runs" / "one"
    assert Writer(moved).write(prompts[:1]) == expected[:1]
    export(moved, tmp_path / "merged", Wanted(merge=True))
    card = " ".join((tmp_path / "merged" / "README.md").read_text().split())
    assert f"Begun at an adapter, `{stored}`, {how}" in card
    if how == "continued":
        export(moved, tmp_path / "exported", Wanted())
        return
    with pytest.raises(ConfigError, match="into which another adapter was merged"):
        export(moved, tmp_path / "exported", Wanted())
    write_peft_adapter(moved / "begin", moved.parents[1] / "base", scale=0.1)
    with pytest.raises(ModelError, match=r"model\.begin: .*the run began at"):
        Writer(moved)


@pytest.mark.parametrize("how", ["continued", "merged"])
def test_pe_sgd_begins_there_too(
    federation: Make, model_folder: Make, tmp_path: Path, how: str
) -> None:
    begin = tmp_path / "adapter"
    write_peft_adapter(begin, model_folder("llama"), r=2, lora_alpha=4)
    public = tmp_path / "public.jsonl"
    public.write_text("".join(json.dumps({"note": f"fever {i}"}) + "\n" for i in range(4)))
    extra = f'[synthetic]\ndata = "{public}"\nsize = 4\n'
    file = federation(rounds=1, extra=extra)
    settings = ["job.method=pe-sgd", f"model.begin={begin}", f"model.begin_as={how}"]
    run = tmp_path / "run"
    outcome = simulate(load_job(file, settings), run, source=file)
    assert np.isfinite(outcome.rounds[-1]["eval_loss"])
    assert read_facts(run / "adapter").proposal.begin_digest == find_adapter(str(begin)).digest


@pytest.mark.slow
def test_a_run_that_was_copied_in_part_says_what_is_missing(
    federation: Make, tmp_path: Path
) -> None:
    file, run = federation(rounds=1), tmp_path / "run"
    simulate(load_job(file), run, source=file)
    for name in ("run.json", "adapter/adapter_config.json", f"adapter/{WEIGHTS}", "metrics.jsonl"):
        part = tmp_path / "part"
        shutil.copytree(run, part)
        (part / name).unlink()
        with pytest.raises(RunError, match=r"Copy the whole run directory") as caught:
            export(part, tmp_path / "out", Wanted())
        assert str(part / name) in str(caught.value)
        if name != "metrics.jsonl":  # which says nothing of the model
            with pytest.raises(RunError, match=r"Copy the whole run directory"):
                Writer(part)
        shutil.rmtree(part)
    with pytest.raises(RunError, match="Give the directory of a run"):
        export(tmp_path / "none", tmp_path / "out", Wanted())


def test_a_job_that_begins_at_none_has_the_digest_that_it_always_had(federation: Make) -> None:
    """So that what was begun before there was such a key can go on."""
    job = load_job(federation())
    settings = job.model_dump(mode="json")
    assert settings["model"].keys() >= {"begin", "begin_as"}
    begun = job.model.model_copy(update={"begin": "somewhere"})
    assert digest(job.model_copy(update={"model": begun})) != digest(job)
