from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fedpriv.base_model import EMBEDDED as STORED
from fedpriv.config.job import JobConfig
from fedpriv.config.load import EMBEDDED, HOSPITALS, digest, load_job, load_site, settings_of
from fedpriv.config.trust import check_shared_noise
from fedpriv.errors import ConfigError


def error_of(*overrides: str, file: Path = HOSPITALS) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_job(file, overrides)
    return caught.value


@pytest.mark.parametrize(
    ("override", "key", "words"),
    [
        ("privacy.epsilonn=3", "privacy.epsilonn", "Did you mean 'epsilon'?"),
        ("privcy.epsilon=3", "privcy", "Did you mean 'privacy'?"),
        ("sites.surgery.siz=3", "sites.surgery.siz", "Did you mean 'size'?"),
        ("privacy.epsilon=0", "privacy.epsilon", "greater than 0"),
        ("job.rounds=0x" + "f" * 5000, "job.rounds", "got int, too long to show"),
        ("job.rounds=" + "f" * 5000, "job.rounds", "f" * 400 + "…"),
        ("job.seed=9223372036854775808", "job.seed", "more than 64 bits (got 9223372036854775808)"),
        ("job.round_timeout=" + "9" * 10 + "s", "job.round_timeout", "such as 10m"),
        (r'sites.surgery.data="a\u0000b"', "sites.0.data", "NUL"),
        ("model.name=" + "a" * 300, "model.name", "File name too long"),
        ("privacy.epsilon=-1", "privacy.epsilon", "greater than 0"),
        ("privacy.epsilon=nan", "privacy.epsilon", "finite"),
        ("privacy.epsilon=inf", "privacy.epsilon", "finite"),
        ("privacy.sample_rate=1.5", "privacy.sample_rate", "less than or equal to 1"),
        ("privacy.delta=0.004", "privacy.delta", "not below 1 / size"),
        ("privacy.numerics=exact", "privacy.numerics", "'default' or 'strict'"),
        ("privacy.clip_norm=0", "privacy.clip_norm", "greater than or equal to"),
        ("sites.surgery.size=many", "sites.surgery.size", "valid integer"),
        ("sites.surgery.name=radiology", "sites", "same name"),
        ("job.min_sites=5", "job.min_sites", "more than the 4 sites"),
        ("job.sync=0", "job.sync", "greater than or equal to 1"),
        ("compute.gpus_per_site=0.5", "compute.gpus_per_site", "is for engine 'ray'"),
        ("job.engine=cloud", "job.engine", "'inline', 'ray' or 'network'"),
        ("job.round_timeout=soon", "job.round_timeout", "such as 10m"),
        ("job.name=../etc", "job.name", "expected letters, digits"),
        ("model.task=classification", "model", "labels"),
        ("model.labels=['a','b']", "model", "labels belong"),
        ("data.columns={letter='x'}", "data.columns", "or messages, not letter"),
        ("data.columns={prompt='x'}", "data.columns", "needs text or completion + prompt"),
        ("denoise.where=client", "denoise.where", "'off', 'server' or 'site'"),
        ("denoise.where=gate", "denoise.where", "'site' (got 'gate')"),
        ("gate.data=x.jsonl", "gate", "unknown key (got {'data': 'x.jsonl'})"),
        ("denoise.kappa=0.9", "denoise.kappa", "from 1 to 100, or auto"),
        ("denoise.kappa=often", "denoise.kappa", "from 1 to 100, or auto"),
        ("denoise.kappa=1e200", "denoise.kappa", "from 1 to 100, or auto"),
        ("optimizer.betas=[0.9, 1.5]", "optimizer.betas.1", "less than 1"),
        ("optimizer.lr=1e39", "optimizer.lr", "less than or equal to"),
        ("audit.canaries=200", "audit", "unknown key"),
    ],
)
def test_a_bad_value_names_file_key_and_value(override: str, key: str, words: str) -> None:
    error = error_of(override)
    assert error.key == key
    assert words in str(error)
    assert str(error.file).endswith("federation.toml")
    assert str(error.file) in str(error)


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        (["denoise.where=site"], "denoise.where", "for local steps"),
        (["compute.dtype=mixed", "compute.engine=opacus"], "compute", "'mixed' needs engine"),
        (["compute.gpus_per_site=1.5"], "compute", "only whole GPUs"),
        (
            ["model.quantize=4bit", "compute.dtype=bfloat16"],
            "compute.dtype",
            "all else is float32; use float32 or mixed",
        ),
        (
            ["model.quantize=8bit", "compute.engine=opacus"],
            "compute.engine",
            "use fedpriv",
        ),
        (
            ["compute.engine=opacus", "compute.gradient_checkpointing=true"],
            "compute",
            "needs engine",
        ),
        (["job.engine=ray", "compute.devices=2"], "compute.devices", "each site has one device"),
        (["job.engine=ray", "compute.device=cuda:1"], "compute.device", "use auto"),
        (["job.sync=2", "denoise.where=server"], "denoise.where", "use 'site'"),
        (["server_optimizer.lr=0.5"], "server_optimizer", "leave it out"),
        (["job.sync=1000", "job.rounds=200"], "job.sync", "more than 100000"),
    ],
)
def test_steps_and_noise_fit_where_they_are(overrides: list[str], key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_job(HOSPITALS, overrides)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        (["evaluation.tuning=held-out.jsonl.gz"], "evaluation.tuning", "that are reported"),
        (["evaluation.tuning=surgery.jsonl.gz"], "evaluation.tuning", "nobody paid for"),
        (["synthetic={data='surgery.jsonl.gz', size=2}"], "synthetic.data", "nobody paid for"),
        (["evaluation.data=surgery.jsonl.gz"], "evaluation.data", "nobody paid for"),
    ],
)
def test_nothing_is_chosen_by_records_that_are_private_or_reported(
    overrides: list[str], key: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_job(HOSPITALS, ["job.data_is_public=false", *overrides])
    assert caught.value.key == key


@pytest.mark.parametrize("key", ["data", "tuning"])
def test_no_model_is_judged_by_a_file_that_trains(key: str) -> None:
    """Also where all is public; what a site holds out, or an outside site has, trains nothing."""
    with pytest.raises(
        ConfigError, match=r"sites\.surgery\.data: no model can be judged"
    ) as caught:
        load_job(HOSPITALS, [f"evaluation.{key}=surgery.jsonl.gz"])
    assert caught.value.key == f"evaluation.{key}"
    held_out = ["evaluation.data=x.jsonl", "sites.surgery.held_out=x.jsonl"]
    load_job(HOSPITALS, [*held_out, "sites.surgery.held_out_size=24"])


@pytest.mark.parametrize(
    "way",
    ["../DATA/surgery.jsonl.gz", "link.jsonl.gz", ".", "folder-link", "same.jsonl.gz", "public"],
)
def test_private_records_are_known_by_where_they_are(tmp_path: Path, way: str) -> None:
    """Whatever the path is called: a detour, a link, or the folder that holds them."""
    folder = tmp_path / "mine"
    shutil.copytree(HOSPITALS.parent, folder)
    (folder / "link.jsonl.gz").symlink_to(folder / "surgery.jsonl.gz")
    (folder / "folder-link").symlink_to(folder)
    (folder / "same.jsonl.gz").hardlink_to(folder / "surgery.jsonl.gz")
    (folder / "public").mkdir()
    (folder / "public" / "notes.jsonl.gz").hardlink_to(folder / "surgery.jsonl.gz")
    overrides = [f"evaluation.tuning='{way.replace('DATA', 'mine')}'"]
    with pytest.raises(ConfigError, match="nobody paid for") as caught:
        load_job(folder / "federation.toml", ["job.data_is_public=false", *overrides])
    assert caught.value.key == "evaluation.tuning"


def test_a_value_is_shown() -> None:
    assert "(got -3)" in str(error_of("privacy.epsilon=-3"))


@pytest.mark.parametrize(
    ("line", "key", "fix"),
    [
        ("[job]\nroundz = 3", "job.roundz", "Did you mean 'rounds'?"),
        ("[job]\nrounds = 0\n[evaluation]\ndat = 'x'", "evaluation.dat", "Did you mean 'data'?"),
        ("[jobs]\nrounds = 3", "jobs", "Did you mean 'job'?"),
    ],
)
def test_a_misspelt_key_is_named_before_what_is_missing(
    tmp_path: Path, line: str, key: str, fix: str
) -> None:
    file = tmp_path / "f.toml"
    file.write_text(line)
    error = error_of(file=file)
    assert (error.key, error.problem, error.fix) == (key, "unknown key", fix)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"is empty\. It needs at least \[job\], "),
        ("[privacy]\nepsilon = 12,0\n", r"is not TOML: .*Decimals have a point: epsilon = 12\.0"),
        ("[job]\nname = surgery\n", r"is not TOML: .*Put text in quotes"),
        ("[job]\nname = 'a'\nname = 'b'\n", r"is not TOML: .*stands there twice: remove one"),
        ("[job]\nname = \n", r"is not TOML: .*line 2"),
    ],
)
def test_a_mistake_is_told_with_what_helps(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "f.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_job(file)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("sites.surgery.size=-5", r"sites\.surgery\.size: "),
        ('sites.surgery.name="a b"', r"sites\.0\.name: expected letters"),
        ("sites.surgery.held_out=1.2", r"sites\.surgery\.held_out: input"),
    ],
)
def test_a_site_is_called_by_its_name(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_job(HOSPITALS, [override])


def test_what_nobody_filled_in_is_told_by_its_mark(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text("[site]\nname = 'a'\n#! size = 3\n#! path = 'x'\n")
    with pytest.raises(ConfigError, match=r'2 lines that begin with "#!" are not filled in'):
        load_site(file)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text(
        '[job]\nrounds = 3\n[evaluation]\ndata = "x"\n[[sites]]\nname = "a"\nsize = 3\n'
    )
    error = error_of(file=file)
    assert (error.key, "is missing" in str(error)) == ("sites.a.data", True)


@pytest.mark.parametrize("text", ["[job", "a = ", "\x00", "a = " + "9" * 5000, "a = " + "[" * 1100])
def test_what_is_not_toml_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "f.toml"
    file.write_text(text)
    assert "is not TOML" in str(error_of(file=file))


def test_a_file_of_windows_editor_is_read_and_other_encodings_are_named(tmp_path: Path) -> None:
    text = HOSPITALS.read_text(encoding="utf-8")
    folder = shutil.copytree(HOSPITALS.parent, tmp_path / "f")
    file = folder / HOSPITALS.name
    expected = load_job(file)
    file.write_bytes(text.encode("utf-8-sig").replace(b"\n", b"\r\n"))
    assert load_job(file) == expected
    for encoding in ("utf-16", "utf-32", "latin-1"):
        file.write_text("# ü\n" + text.replace("ε", "e"), encoding=encoding)
        assert "is not in UTF-8. Save it as UTF-8" in str(error_of(file=file))


@pytest.mark.parametrize("kind", [str, Path])
def test_a_job_is_loaded_by_the_name_of_its_file_alone(
    kind: Callable[[str], Any], tmp_path: Path
) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(EMBEDDED.read_text())
    assert load_job(kind(str(path))).job.name == load_job().job.name
    for text, words in (
        (EMBEDDED.read_text(), "path: is the text of a file, where its name is expected"),
        (str(tmp_path), "Name a file in it, such as federation.toml or site.toml."),
        (str(tmp_path / "no.toml"), "no such file"),
    ):
        with pytest.raises(ConfigError) as found:
            load_job(kind(text))
        assert words in str(found.value) and len(str(found.value)) < 400
    wrong: Any = {"job": {"rounds": 2}}
    with pytest.raises(ConfigError, match="path: is a dict"):
        load_job(wrong)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "no such file" in str(error_of(file=tmp_path / "nowhere.toml"))


@pytest.mark.parametrize(
    "override",
    [
        *("privacy.epsilon", "=3", "sites.nobody.size=3", "sites.9.size=3", "job.name.x=3"),
        *("sites.².size=3", f"sites.{'9' * 5000}.size=3"),
    ],
)
def test_a_bad_override_is_refused(override: str) -> None:
    assert str(error_of(override)).startswith("--set")


def test_overrides_reach_tables_and_sites() -> None:
    job = load_job(
        HOSPITALS,
        ["privacy.epsilon=3", "sites.radiology.epsilon=1.5", "sites.0.size=99", "job.name=other"],
    )
    assert job.privacy.epsilon == 3
    assert job.sites[1].epsilon == 1.5
    assert job.sites[0].size == 99
    assert job.job.name == "other"


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    shutil.copytree(STORED, tmp_path / "tiny")
    file.write_text(
        '[job]\nrounds = 3\n[model]\nname = "tiny"\n[evaluation]\ndata = "e.jsonl"\n'
        '[[sites]]\nname = "a"\nsize = 30\ndata = "a.jsonl"\nledger = "l.db"\n'
        '[[sites]]\nname = "b"\nsize = 30\ndata = "owner/data-2.5"\n'
        '[[sites]]\nname = "c"\nsize = 30\ndata = "folder/notes.csv"\n'
    )
    job = load_job(file)
    assert job.model.name == str(tmp_path / "tiny")
    assert job.evaluation.data == tmp_path / "e.jsonl"
    assert (job.sites[0].data, job.sites[0].ledger) == (tmp_path / "a.jsonl", tmp_path / "l.db")
    assert job.sites[1].data == "owner/data-2.5"  # a hub's, as there is no such path
    assert job.sites[2].data == tmp_path / "folder" / "notes.csv"


def test_the_digest_tells_settings_apart() -> None:
    assert digest(load_job(HOSPITALS)) == digest(load_job(HOSPITALS))
    assert digest(load_job(HOSPITALS)) != digest(load_job(HOSPITALS, ["privacy.epsilon=7.5"]))
    assert digest(load_job(HOSPITALS)) == digest(load_job(HOSPITALS, ["compute.engine=fedpriv"]))
    assert digest(load_job(HOSPITALS)) != digest(load_job(HOSPITALS, ["compute.engine=opacus"]))


SECURE = "privacy.trust=secure-sum"


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        (["privacy.max_colluding=0"], "privacy.max_colluding", "belongs to trust"),
        (["privacy.spare_slots=1"], "privacy.spare_slots", "belongs to trust"),
        (["privacy.roster=roster.json"], "privacy.roster", "belongs to trust"),
        (["sites.surgery.epsilon_alone=9"], "sites.surgery.epsilon_alone", "the same as epsilon"),
        (["privacy.trust=everybody"], "privacy.trust", "'local' or 'secure-sum'"),
        ([SECURE, "privacy.max_colluding=-1"], "privacy.max_colluding", "greater than or equal"),
        ([SECURE, "privacy.max_colluding=1.5"], "privacy.max_colluding", "integer"),
        ([SECURE, "privacy.max_colluding=4"], "privacy.max_colluding", "4 of 4 sites"),
        ([SECURE, "privacy.spare_slots=-1"], "privacy.spare_slots", "greater than or equal"),
        ([SECURE, "privacy.spare_slots=100000"], "privacy.spare_slots", "more than 100000"),
        ([SECURE, "privacy.roster=roster.json"], "privacy.roster", "is for engine 'network'"),
        (
            [SECURE, "sites.surgery.epsilon_alone=0"],
            "sites.surgery.epsilon_alone",
            "greater than 0",
        ),
        ([SECURE, "job.sync=2"], "job.sync", "a share of the noise is too little"),
        ([SECURE, "job.sync=2", "denoise.where=site"], "job.sync", "too little"),
        ([SECURE, "job.wire=int8"], "job.wire", "masks cancel only"),
        ([SECURE, "job.wire=bf16"], "job.wire", "masks cancel only"),
    ],
)
def test_what_a_secure_sum_cannot_have_is_refused(
    overrides: list[str], key: str, words: str
) -> None:
    error = error_of(*overrides)
    assert error.key == key
    assert words in str(error)


def one_file(folder: Path, sites: int, rest: str, engine: str = "network") -> Path:
    file = folder / "f.toml"
    file.write_text(
        f'[job]\nrounds = 3\nengine = "{engine}"\n[evaluation]\ndata = "e.jsonl"\n{rest}\n'
        + '[server]\naddress = "h:1"\n'
        + "".join(f'[[sites]]\nname = "s{number}"\n' for number in range(sites))
    )
    return file


def test_a_secure_sum_needs_several_sites_and_over_the_network_a_roster(tmp_path: Path) -> None:
    secure = '[privacy]\ntrust = "secure-sum"\n'
    error = error_of(file=one_file(tmp_path, 1, secure + 'roster = "r.json"'))
    assert (error.key, "there is one site" in str(error)) == ("privacy.trust", True)
    error = error_of(file=one_file(tmp_path, 2, secure))
    assert (error.key, "is missing" in str(error)) == ("privacy.roster", True)
    job = load_job(one_file(tmp_path, 2, secure + 'roster = "r.json"'))
    assert job.privacy.roster == tmp_path / "r.json"
    looks = "[evaluation.sites]\nlooks = 1\n"
    error = error_of(file=one_file(tmp_path, 2, looks + secure + 'roster = "r.json"'))
    assert (error.key, "its own noise" in str(error)) == ("evaluation.sites", True)


def test_a_site_that_denoises_is_refused_for_a_reason() -> None:
    """Without local steps it is refused for them; the check stands on its own feet all the same."""
    with pytest.raises(ValueError, match=r"denoise\.where: 'site' looks at a site's own"):
        check_shared_noise(sync=1, denoise="site", wire="float32", looks=False)


@pytest.mark.parametrize(
    ("sites", "usual"), [(2, 1), (3, 1), (4, 1), (5, 2), (6, 2), (7, 3), (10, 4), (50, 24)]
)
def test_how_many_may_collude_where_nobody_says(tmp_path: Path, sites: int, usual: int) -> None:
    secure = '[privacy]\nroster = "r.json"\ntrust = "secure-sum"\n'
    job = load_job(one_file(tmp_path, sites, secure))
    assert (job.privacy.max_colluding, job.max_colluding) == (None, usual)
    assert load_job(one_file(tmp_path, sites, secure + "max_colluding = 0")).max_colluding == 0
    assert load_job(one_file(tmp_path, sites, "")).max_colluding is None


def test_spare_slots_are_slots_and_no_rounds() -> None:
    job = load_job(HOSPITALS, [SECURE, "privacy.spare_slots=7", "job.rounds=20"])
    assert (job.steps, job.slots, job.max_colluding) == (20, 27, 1)
    assert load_job(HOSPITALS).privacy.trust == "local"


def test_what_records_of_older_runs_hold_of_keys_that_are_gone_is_read() -> None:
    generator = "synthetic.generator={kind='endpoint', model='m', describe='d', url='http://h/v1'}"
    job = load_job(HOSPITALS, ["synthetic.size=2", generator])
    record = settings_of(job)
    record["synthetic"]["generator"]["answers"] = record["gate"] = record["controller"] = None
    record["evaluation"]["hardest"] = 0
    record["synthetic"] |= {"fold": 2, "selection_temperature": 1.0}
    record["synthetic"]["generator"] |= {"keep": [0.25, 0.75], "label_prior": {}}
    assert settings_of(JobConfig.model_validate(record)) == settings_of(job)
    assert record["synthetic"]["generator"]["answers"] is None
    for table in (record, record["synthetic"]["generator"]):
        key = "gate" if table is record else "answers"
        table[key] = "kept"
        with pytest.raises(ValidationError, match=key):
            JobConfig.model_validate(record)
        table[key] = None
