"""What tools are told: numbers of metrics.jsonl, and settings that are nobody's address."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpriv.config.load import load_job
from fedpriv_server.run_directory import RunDirectory
from fedpriv_server.tracking.public import figures_of, settings_of

ROW: dict[str, Any] = {
    "round": 7,
    "eval_loss": 1.5,
    "eval_accuracy": None,
    "bytes_up": 10,
    "bytes_down": 20,
    "denoised": {"on": 2, "matrices": 4, "by_chance": 0.1},
    "gate": {"taken": "raw", "records": 3},
    "chosen": {"lengths": [1.0, 2.0], "share": None},
    "synthetic": None,
    "held_out": {
        "loss": {"mean": 2.0, "deviation": 0.1},
        "sites": {"north": {"status": "ok", "loss": None}},
    },
    "seconds": 0.25,
    "sites": {
        "north": {"status": "ok", "epsilon_spent": 1.0},
        "a.b-c_d": {"status": "no answer", "epsilon_spent": None},
    },
}


def test_every_number_of_a_round() -> None:
    assert figures_of(ROW) == {
        "eval_loss": 1.5,
        "bytes_up": 10,
        "bytes_down": 20,
        "denoised/on": 2,
        "denoised/matrices": 4,
        "denoised/by_chance": 0.1,
        "gate/records": 3,
        "chosen/lengths/0": 1.0,
        "chosen/lengths/1": 2.0,
        "held_out/loss/mean": 2.0,
        "held_out/loss/deviation": 0.1,
        "seconds": 0.25,
        "sites/north/epsilon_spent": 1.0,
    }


def test_settings_say_what_was_run_and_not_where(
    federation: Callable[..., Path], tmp_path: Path
) -> None:
    where = (
        "tracking.mlflow=https://mlflow.example.org",
        "server.address=fed.example.org:8443",
        "synthetic.generator.kind=endpoint",
        "synthetic.generator.url=https://maker.example.org/v1",
        "synthetic.generator.model=maker",
        "synthetic.generator.describe=a note",
        "sites.site-0.ledger=lasting.db",
        "sites.site-0.epsilon=3",
        'outside=[{name = "elsewhere", data = "elsewhere.jsonl"}]',
    )
    config = load_job(federation(), where)
    run = RunDirectory.create(tmp_path / "run", config, insecure_seed=3)
    folder = Path(config.model.name)
    run.info["model"] = {"name": str(folder), "folder": "../base", "trainable": 5}
    (tmp_path / "begun").mkdir()
    model = config.model.model_copy(update={"begin": str(tmp_path / "begun")})
    config = config.model_copy(update={"model": model})
    settings = settings_of(config, run)
    text = json.dumps(settings)
    for hidden in (
        "example.org",
        "maker",
        "lasting",
        "elsewhere",
        "../base",
        str(tmp_path),
        str(folder.parent),
        ".jsonl",
        "tracking",
    ):
        assert hidden not in text
    assert settings["privacy.delta"] == "0.001"
    assert settings["data.columns.text"] == "note"
    assert settings["sites.site-0.epsilon"] == "3.0" and "sites.site-1.epsilon" not in settings
    assert settings["run.model.trainable"] == "5"
    assert settings["model.name"] == folder.name
    assert settings["model.begin"] == "begun"
