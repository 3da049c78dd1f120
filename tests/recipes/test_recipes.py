"""Each recipe runs as it is written."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.config.load import load_job
from fedpriv.data.identity import whole_record
from fedpriv.errors import ConfigError
from fedpriv.recipes import RECIPES, write_recipe
from fedpriv_server.own_records import read_site, spec_of
from fedpriv_simulation.simulate import simulate

ONE_ROUND = ["job.rounds=1", "evaluation.limit=4", "privacy.sample_rate=0.02"]


@pytest.mark.parametrize("name", RECIPES)
def test_its_file_says_what_its_records_are(name: str, tmp_path: Path) -> None:
    file = write_recipe(name, tmp_path / "mine")
    config = load_job(file)
    known: set[bytes] = set()
    for site in config.sites:
        own = read_site(site, spec_of(config), tmp_path / "cache")
        assert site.size is not None
        units = len(own.training)
        if config.privacy.unit != "record":
            units = len(set(own.training["unit"]))
            assert units < len(own.training)  # a person has several notes
        assert abs(units - site.size) <= 1
        records = {whole_record(record) for record in own.training}
        assert b"" not in records and not records & known
        known |= records
    public = config.sites[0].model_copy(
        update={"data": config.evaluation.data, "omop": None, "held_out": None}
    )
    spec = spec_of(config.model_copy(update={"privacy": config.privacy.model_copy(
        update={"unit": "record"})}))  # fmt: skip
    held_out = read_site(public, spec, tmp_path / "cache").training
    assert len(held_out) >= 100
    assert not known & {whole_record(record) for record in held_out}


@pytest.mark.parametrize("name", RECIPES)
def test_it_is_the_same_whenever_it_is_written(name: str, tmp_path: Path) -> None:
    one, other = (write_recipe(name, tmp_path / folder).parent for folder in ("a", "b"))
    assert {"README.md", "federation.toml"} < {path.name for path in one.iterdir()}
    for path in one.iterdir():
        assert path.read_bytes() == (other / path.name).read_bytes(), path.name


@pytest.mark.nightly
@pytest.mark.parametrize("name", RECIPES)
def test_it_runs(name: str, tmp_path: Path) -> None:
    file = write_recipe(name, tmp_path / "mine")
    outcome = simulate(load_job(file, ONE_ROUND), tmp_path / "run", source=file)
    assert (outcome.run.path / "adapter").is_dir()
    assert len(outcome.budgets) == len(load_job(file).sites)


@pytest.mark.parametrize("name", RECIPES)
def test_its_page_names_its_files_and_commands(name: str, tmp_path: Path) -> None:
    folder = write_recipe(name, tmp_path / "mine").parent
    page = (folder / "README.md").read_text()
    for path in folder.iterdir():
        assert f"`{path.name}`" in page or path.name == "README.md"
    blocks = page.split("```console\n")[1:]
    commands = [line for block in blocks for line in block.partition("```")[0].splitlines()]
    assert "fedpriv simulate federation.toml" in commands
    assert all(shlex.split(line)[0] in ("fedpriv", "pip") for line in commands)


def test_init_writes_one_and_lists_them_for_a_name_that_is_none(tmp_path: Path) -> None:
    def init(folder: str, recipe: str) -> Result:
        return CliRunner().invoke(app, ["init", str(tmp_path / folder), "--recipe", recipe])

    assert f"fedpriv simulate {tmp_path / 'mine'}" in init("mine", "instruction").stdout
    assert (tmp_path / "mine" / "held-out.jsonl").exists()
    assert "not empty" in str(init("mine", "omop").exception)
    wrong = init("other", "classfication").exception
    assert isinstance(wrong, ConfigError) and "Did you mean 'classification'?" in str(wrong)
    assert all(name in str(wrong) for name in RECIPES)
    assert not (tmp_path / "other").exists()
    with pytest.raises(ConfigError, match="no such recipe"):
        write_recipe("../x", tmp_path / "other")
