"""A site model is as it was made or is refused, and stays in the house."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from fedpriv.errors import ConfigError
from fedpriv.serving import load_site_model
from fedpriv.serving.config import SiteModelConfig
from fedpriv.serving.folder import check_folder
from fedpriv.serving.write import write_site_model
from tests.serving.answering import Made, MakeSiteModel


def add(folder: Path) -> None:
    (folder / "base" / "more.bin").write_bytes(b"x")


def change(folder: Path) -> None:
    (path,) = (folder / "base").glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def lose(folder: Path) -> None:
    (folder / "alone" / "adapter_model.safetensors").unlink()


@pytest.fixture
def copy(llama: Made, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama.folder, tmp_path / "copy"))


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (add, r"base/more\.bin: was put there later: .* Take it away"),
        (change, r"base/model\.safetensors: was changed: .* fedpriv-client personalise"),
        (lose, r"alone/adapter_model\.safetensors: is missing: .* fedpriv-client personalise"),
    ],
    ids=["add", "change", "lose"],
)
def test_a_folder_that_is_not_as_it_was_made_is_refused(
    tamper: Callable[[Path], None], message: str, copy: Path
) -> None:
    tamper(copy)
    with pytest.raises(ConfigError, match=message):
        load_site_model(copy)
    with pytest.raises(ConfigError, match=message):
        AutoModelForCausalLM.from_pretrained(copy)


def test_another_folder_is_no_site_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no site model"):
        load_site_model(tmp_path)
    (tmp_path / "site_model.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"site_model\.json: can't be read"):
        load_site_model(tmp_path)


def test_a_copy_works_and_warns(copy: Path) -> None:
    with pytest.warns(UserWarning, match="made of the records of north .* not to leave"):
        load_site_model(copy)


def test_a_folder_that_others_may_read_warns(llama: Made) -> None:
    assert llama.folder.stat().st_mode & 0o777 == 0o700
    llama.folder.chmod(0o755)
    try:
        with pytest.warns(UserWarning, match=r"others may read it\. Type: chmod 700"):
            load_site_model(llama.folder)
    finally:
        llama.folder.chmod(0o700)


def test_it_can_neither_be_saved_elsewhere_nor_pushed(llama: Made, tmp_path: Path) -> None:
    model = load_site_model(llama.folder)
    tokenizer = AutoTokenizer.from_pretrained(llama.folder)
    config = SiteModelConfig.from_pretrained(llama.folder)
    line = pipeline("text-generation", model=model, tokenizer=tokenizer)
    for one in (model, model.config, config, line):
        with pytest.raises(ConfigError, match="not to leave this house") as raised:
            one.save_pretrained(tmp_path / "elsewhere")
        assert one is config or raised.value.file == str(llama.folder)
    for one in (model, config):
        with pytest.raises(ConfigError, match="not to leave this house"):
            one.push_to_hub("clinic/model")


def test_an_adapter_of_another_base_is_refused(
    llama: Made, make_site_model: MakeSiteModel, tmp_path: Path
) -> None:
    other = make_site_model(hidden_size=64)
    recipe = llama.worker.recipe
    with pytest.raises(ConfigError, match="is of another base model than") as raised:
        adapters = {"alone": other.adapters["alone"]}
        write_site_model(tmp_path / "m", recipe, adapters, {"alone": 1.0}, site="s", job="j")
    assert raised.value.file == other.adapters["alone"] and not (tmp_path / "m").exists()


def test_a_link_in_the_folder_is_refused(make_site_model: MakeSiteModel, tmp_path: Path) -> None:
    folder = make_site_model().folder
    (folder / "more").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="more: is a link"):
        check_folder(folder)
    (folder / "more").unlink()


def test_of_an_adapter_only_its_own_files_are_taken(make_site_model: MakeSiteModel) -> None:
    """A coordinator may send a folder with anything in it."""
    folder = make_site_model().folder
    names = {path.name for path in (folder / "federated").iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors", "fedpriv.json"}


def test_no_part_of_it_can_be_saved(make_site_model: MakeSiteModel, tmp_path: Path) -> None:
    model = load_site_model(make_site_model().folder)
    for part in (model.base_model, model.answering):
        with pytest.raises(ConfigError, match="not to leave this house"):
            part.save_pretrained(tmp_path / "out")
