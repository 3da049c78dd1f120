"""How large a stored model is, from what its files say of themselves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.constants
import pytest
from safetensors.torch import load_file, save_file

from fedpriv.model_size import INDEX, parameters_of
from fedpriv.models.base import load_base
from fedpriv.models.config import ModelSection

Make = Callable[..., Any]


def loaded(name: str) -> int:
    model: Any = load_base(ModelSection(name=name)).model
    return sum(parameter.numel() for parameter in model.parameters())


def test_of_a_folder(model_folder: Make) -> None:
    for name in ("embedded", str(model_folder("llama"))):
        assert parameters_of(name) == loaded(name)


def test_of_several_files_and_only_those_that_are_loaded(
    model_folder: Make, tmp_path: Path
) -> None:
    whole = Path(model_folder("llama"))
    tensors = load_file(whole / "model.safetensors")
    folder = tmp_path / "shards"
    folder.mkdir()
    shards = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(tensors)}
    for shard in set(shards.values()):
        save_file({n: t for n, t in tensors.items() if shards[n] == shard}, folder / shard)
    (folder / INDEX).write_text(json.dumps({"weight_map": shards}))
    shutil.copy(whole / "model.safetensors", folder / "consolidated.safetensors")
    assert parameters_of(str(folder)) == parameters_of(str(whole))


def test_of_the_hubs_copy_on_this_machine(
    model_folder: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cache, revision = Path(model_folder("llama")), tmp_path / "hub", "a" * 40
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    repository = cache / "models--clinic--base"
    shutil.copytree(whole, repository / "snapshots" / revision)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    assert parameters_of("clinic/base") == parameters_of(str(whole))


def test_of_what_only_the_hub_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))

    class Answer:
        parameter_count = {"F32": 5, "BF16": 7}  # noqa: RUF012

    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", lambda name: Answer())
    assert parameters_of("clinic/base") == 12

    def fails(name: str) -> Any:
        raise RuntimeError("no network")

    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", fails)
    assert parameters_of("clinic/base") is None


@pytest.mark.parametrize("content", [None, b"", b"no tensors", b"\x02" + bytes(7) + b"[]"])
def test_of_what_can_not_be_read(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    assert parameters_of(str(tmp_path)) is None
    assert parameters_of("http://elsewhere/model") is None
