"""Each tool with the real library: what it reads of a run is what is public of it, and no more."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.nightly

CURVE = [0, 1, 2, 3]
NAMED = ("job.name", "privacy.epsilon", "sites.site-0.size", "run.model.digest")


def check_settings(settings: dict[str, str], followed: Any) -> None:
    """Those of the file, without a path of this machine."""
    assert {name: settings[name] for name in NAMED[:3]} == {
        "job.name": "test",
        "privacy.epsilon": "6.0",
        "sites.site-0.size": "24",
    }
    assert settings["run.model.digest"].startswith("sha256:")
    assert settings["model.name"] and "/" not in settings["model.name"]
    assert str(followed.folder.parent) not in json.dumps(settings)


def test_tensorboard_reads_each_round_once(followed: Any) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(followed.folder / "tracking" / "tensorboard"))
    found.Reload()
    read: dict[int, dict[str, float]] = {}
    for name in found.Tags()["scalars"]:
        for point in found.Scalars(name):
            assert name not in read.setdefault(point.step, {})
            read[point.step][name] = point.value
    assert sorted(read) == CURVE
    for step, said in followed.said.items():
        assert read[step] == pytest.approx(said, rel=1e-6)
    assert found.Tags()["tensors"] == ["settings/text_summary"]
    table = found.Tensors("settings/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert "NOT PRIVATE" not in table
    lines = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    check_settings({line[0][2:]: line[1].removesuffix(" |") for line in lines}, followed)


def test_mlflow_has_one_run_with_each_round_once(followed: Any) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=followed.store)
    experiment = client.get_experiment_by_name("wards")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.tags == {
        "fedpriv.job_id": followed.job,
        "fedpriv.private": "true",
        "mlflow.runName": followed.job,
    }
    assert run.info.user_id == "unknown"
    check_settings(run.data.params, followed)
    assert set(run.data.metrics) == set(followed.said[3])
    for name in run.data.metrics:
        history = client.get_metric_history(run.info.run_id, name)
        said = {step: values[name] for step, values in followed.said.items() if name in values}
        assert [point.step for point in history] == sorted(said)
        assert {point.step: point.value for point in history} == pytest.approx(said)


def test_wandb_has_an_offline_run_in_two_parts_and_nothing_of_the_machine(followed: Any) -> None:
    parts = sorted(followed.folder.glob("tracking/wandb/offline-run-*/*.wandb"))
    assert len(parts) == 2
    for part, last in zip(parts, (2, 3), strict=True):
        records = list(wandb_records(part))
        kinds = {record.WhichOneof("record_type") for record in records}
        assert kinds <= {"header", "run", "telemetry", "history", "summary", "exit"}
        (run,) = (record.run for record in records if record.WhichOneof("record_type") == "run")
        assert (run.run_id, run.project, run.host) == (followed.job, "wards", "fedpriv")
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        assert config.pop("_wandb") == {}
        check_settings(config, followed)
        read = {}
        for record in records:
            row = {key(item): json.loads(item.value_json) for item in record.history.item}
            if row:
                own = [row.pop(name) for name in ("_step", "_timestamp", "_runtime")]
                read[own[0]] = row
        assert read == {step: said for step, said in followed.said.items() if step <= last}
    names = {path.name for path in followed.folder.glob("tracking/wandb/offline-run-*/files/*")}
    assert not names & {"wandb-metadata.json", "requirements.txt", "output.log"}


def key(item: Any) -> str:
    return "/".join(item.nested_key) if item.nested_key else str(item.key)


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of a W&B file: LevelDB's log format, of blocks of 32 KiB, after 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            record = Record()
            record.ParseFromString(whole)
            whole = b""
            yield record
