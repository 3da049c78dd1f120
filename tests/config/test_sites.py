"""Sites that take no part, beside those that do."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpriv.config.job import JobConfig
from fedpriv.config.load import digest, load_job
from fedpriv.errors import ConfigError

FILE = """
[job]
rounds = 3
{engine}
[evaluation]
data = "public.jsonl"
[[outside]]
name = "new"
{outside}
[[sites]]
name = "a"
{site}
"""


def load(
    folder: Path,
    outside: str,
    engine: str = "",
    site: str = 'size = 30\ndata = "a.jsonl"',
    *overrides: str,
) -> JobConfig:
    file = folder / "federation.toml"
    file.write_text(FILE.format(engine=engine, outside=outside, site=site))
    return load_job(file, overrides)


def test_an_outside_site_is_in_no_list_of_those_that_take_part(tmp_path: Path) -> None:
    job = load(tmp_path, 'data = "new.jsonl"\nheld_out = 0.3')
    assert [site.name for site in job.sites] == ["a"]
    assert [site.name for site in job.everybody] == ["a", "new"]
    assert job.files()["outside.new.data"] == tmp_path / "new.jsonl"
    assert JobConfig.model_validate(job.model_dump()) == job
    without = job.model_copy(update={"outside": ()})
    assert digest(without) != digest(job)
    assert "outside" not in without.model_dump()  # as a file of an older version


@pytest.mark.parametrize(
    ("outside", "key", "words"),
    [
        ("", "outside.new.data", "is missing"),
        ('data = "b.jsonl"\nsize = 3', "outside.new.size", "unknown key"),
        ('data = "b.jsonl"\nepsilon = 1', "outside.new.epsilon", "unknown key"),
        ('data = "b.jsonl"\nledger = "l.db"', "outside.new.ledger", "unknown key"),
        ('data = "b.jsonl"\nheld_out = "c"\nheld_out_size = 3', "outside.new.held_out_size", "key"),
    ],
)
def test_it_has_no_key_of_a_site_that_takes_part(
    tmp_path: Path, outside: str, key: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load(tmp_path, outside)
    assert caught.value.key == key


def test_nobody_takes_part_and_does_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="takes no part") as caught:
        load(tmp_path, 'data = "b.jsonl"', "", 'size = 30\ndata = "a.jsonl"', "sites.a.name=new")
    assert caught.value.key == "outside.new.name"


def test_over_the_network_it_is_not_named(tmp_path: Path) -> None:
    server = 'engine = "network"\n[server]\naddress = "127.0.0.1:9092"'
    with pytest.raises(ConfigError, match="takes the exported adapter") as caught:
        load(tmp_path, 'data = "b.jsonl"', server, "")
    assert caught.value.key == "outside.new"
