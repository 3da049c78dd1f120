"""An adapter that is there already is read as peft wrote it, or refused for what it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from peft import EvaConfig
from safetensors.torch import load_file, save_file

from fedpriv.base_model import CONFIG, FACTS, MARK, WEIGHTS
from fedpriv.errors import ConfigError
from fedpriv.models.config import LoraSection
from fedpriv.names import OWN_KINDS
from fedpriv.stored_adapter import find_adapter, refuse_own
from tests.peft_adapters import write_peft_adapter

Make = Callable[..., Any]


@pytest.fixture(scope="module")
def made(model_folder: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peft") / "adapter"
    write_peft_adapter(folder, model_folder("llama"))
    return folder


@pytest.fixture
def adapter(made: Path, tmp_path: Path) -> Path:
    """A copy, to be changed."""
    return Path(shutil.copytree(made, tmp_path / "adapter"))


def configured(folder: Path, **changes: Any) -> None:
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_its_shape_is_what_peft_says(adapter: Path) -> None:
    expected = LoraSection(r=3, alpha=5.0, target_modules=("q_proj", "v_proj"))
    assert find_adapter(str(adapter)).lora == expected


def test_its_digest_is_of_what_it_computes_wherever_it_is(adapter: Path, tmp_path: Path) -> None:
    digest = find_adapter(str(adapter)).digest
    elsewhere = adapter.rename(tmp_path / "elsewhere")
    configured(
        elsewhere,
        base_model_name_or_path="/other",
        target_modules=["v_proj", "q_proj"],
        revision="b",
    )
    assert find_adapter(str(elsewhere)).digest == digest
    configured(elsewhere, lora_alpha=6)
    other = find_adapter(str(elsewhere)).digest
    assert other != digest
    weights = load_file(elsewhere / WEIGHTS)
    next(iter(weights.values()))[0, 0] += 1
    save_file(weights, elsewhere / WEIGHTS)
    assert find_adapter(str(elsewhere)).digest not in (digest, other)


def test_a_pattern_of_layers_is_what_it_matched(adapter: Path) -> None:
    configured(adapter, target_modules=".*self_attn.(q|v)_proj")
    targets = find_adapter(str(adapter)).lora.target_modules
    assert {target.rpartition(".")[2] for target in targets} == {"q_proj", "v_proj"}
    assert all(target.startswith("model.layers.") for target in targets)


def test_how_its_values_were_drawn_changes_nothing(adapter: Path) -> None:
    before = find_adapter(str(adapter))
    drawn = EvaConfig(rho=1.0).__dict__
    configured(adapter, init_lora_weights="eva", eva_config=drawn)
    assert find_adapter(str(adapter)).digest == before.digest


def test_one_at_a_hub_is_of_one_commit(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="is no folder, and can't be loaded"):
        find_adapter("clinic/adapter")
    digest = find_adapter(str(adapter)).digest
    repository = tmp_path / "hub" / "models--clinic--adapter"
    shutil.copytree(adapter, repository / "snapshots" / ("a" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    assert find_adapter("clinic/adapter").digest == digest


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "IA3"}, "is no LoRA adapter: its peft_type is 'IA3'"),
        ({"use_dora": True}, "more than a plain LoRA adapter: its use_dora is True"),
        ({"use_rslora": True}, "its use_rslora is True"),
        ({"rank_pattern": {"q_proj": 8}}, "its rank_pattern is"),
        ({"bias": "lora_only"}, "its bias is 'lora_only'"),
        ({"init_lora_weights": "pissa"}, "its init_lora_weights is 'pissa'"),
        ({"a_key_of_a_later_peft": 1}, "its a_key_of_a_later_peft is 1"),
        ({"r": "many"}, "in which r is not valid"),
        ({"r": None}, "in which r is not valid"),
        ({"lora_alpha": -1}, "in which alpha is not valid"),
        ({"target_modules": [1]}, "in which target_modules is not valid"),
        ({"target_modules": [1, "a"]}, "in which a name is not valid"),
        ({"modules_to_save": 3}, "in which a name is not valid"),
    ],
)
def test_what_is_no_plain_lora_is_refused_by_name(
    adapter: Path, changes: dict[str, Any], words: str
) -> None:
    configured(adapter, **changes)
    with pytest.raises(ConfigError, match=words) as caught:
        find_adapter(str(adapter))
    assert (caught.value.key, caught.value.value) == ("model.begin", str(adapter))


def test_half_a_folder_is_told_by_what_is_missing(adapter: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such folder"):
        find_adapter(str(adapter / "none"))
    (adapter / WEIGHTS).rename(adapter / "adapter_model.bin")
    with pytest.raises(ConfigError, match=f"has no {WEIGHTS}: its weights are pickled"):
        find_adapter(str(adapter))
    (adapter / "adapter_model.bin").unlink()
    with pytest.raises(ConfigError, match=f"has no {WEIGHTS} "):
        find_adapter(str(adapter))
    (adapter / CONFIG).unlink()
    with pytest.raises(ConfigError, match=f"has no {CONFIG} "):
        find_adapter(str(adapter))


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, FACTS])
@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff" * 64, b"\0" * 7 + b"\x7f"])
def test_files_that_are_none_are_refused(adapter: Path, name: str, content: bytes) -> None:
    (adapter / name).write_bytes(content)
    with pytest.raises(ConfigError, match="can't be read"):
        find_adapter(str(adapter))


@pytest.mark.parametrize("kind", OWN_KINDS)
def test_what_a_site_trained_for_itself_is_known_by_each_of_its_marks(
    adapter: Path, tmp_path: Path, kind: str
) -> None:
    """Law 16: every gradient would be taken at values that depend on its records."""
    weights = load_file(adapter / WEIGHTS)
    (adapter / FACTS).write_text(json.dumps({"kind": kind}))
    for marked in (False, True):
        if marked:  # copied without what lies beside it, and renamed
            (adapter / FACTS).unlink()
            save_file(weights, adapter / WEIGHTS, {"format": "pt", MARK: kind})
        for refuse in (find_adapter, lambda name: refuse_own(Path(name))):
            with pytest.raises(ConfigError, match="on a site's own records") as caught:
                refuse(str(adapter))  # type: ignore[operator]
            assert caught.value.value == kind
    save_file(weights, adapter / WEIGHTS)
    find_adapter(str(adapter))
    inside = tmp_path / "state" / "site-model" / "job-1" / "personal"
    shutil.copytree(adapter, inside)
    (tmp_path / "link").symlink_to(inside)
    with pytest.raises(ConfigError, match="models that a site trained for itself"):
        find_adapter(str(tmp_path / "link"))
