"""The site's own file: every key and every way to get it wrong."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from fedpriv.config.load import load_site
from fedpriv.config.site_file import SiteFile, is_loopback
from fedpriv.errors import ConfigError
from fedpriv.privacy.ledger.rules import PlanRule, RdpRule, SumRule

TEXT = f"""
[site]
name = "cardiology"
[server]
address = "fed.example.org:8443"
ca = "ca.crt"
key = "site.key"
[data]
path = "notes.jsonl"
unit = "patient_nbr"
size = 250
[budget]
epsilon = 10.0
per_job = 4.0
[allow]
model_digest = "sha256:{"a" * 64}"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(TEXT)
    return path


def error_of(file: Path, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_site(file, overrides)
    return caught.value


def test_paths_are_relative_to_the_file(file: Path) -> None:
    folder = file.parent
    (folder / "base").mkdir()
    begin = ["allow.begin=base", f"allow.begin_digest=sha256:{'0' * 64}"]
    site = load_site(file, ["allow.model=base", "budget.witness='../usb/witness.json'", *begin])
    assert site.site.state_dir == folder / "state"
    assert (site.server.ca, site.server.key) == (folder / "ca.crt", folder / "site.key")
    assert (site.server.certificate, site.server.enrolment) == (
        folder / "site.crt",
        folder / "enrolment.json",
    )
    assert site.data.path == folder / "notes.jsonl"
    assert site.budget.witness == folder / "../usb/witness.json"
    assert site.allow.model == site.allow.begin == str(folder / "base")


def test_what_is_no_path_stays_as_it_is(file: Path) -> None:
    site = load_site(file, ["data.path=owner/notes", "allow.model=owner/model"])
    assert (site.data.path, site.allow.model) == ("owner/notes", "owner/model")
    assert load_site(file, ["data.path=/abs/notes.csv"]).data.path == Path("/abs/notes.csv")
    assert load_site(file).allow.model == "embedded"


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        (["data.sise=3"], "data.sise", "Did you mean 'size'?"),
        (["budgte.epsilon=3"], "budgte", "Did you mean 'budget'?"),
        (["data.size=0"], "data.size", "greater than or equal to 1"),
        (["data.size=many"], "data.size", "valid integer"),
        (["data.size=10000000001"], "data.size", "less than or equal to 10000000000"),
        ([r'data.path="a\u0000b"'], "data.path", "NUL"),
        (["allow.model=" + "a" * 300], "allow.model", "File name too long"),
        (["allow.begin=adapter"], "allow.begin_digest", "is named with its digest"),
        ([f"allow.begin_digest=sha256:{'0' * 64}"], "allow.begin", "is named with its digest"),
        (["allow.max_basis=1e7"], "allow.max_basis", "less than or equal to 1000000"),
        (["budget.rule=sum", "budget.plans=1000001"], "budget.rule", "plans=1000001"),
        (["data.dataset_id=7"], "data.dataset_id", "valid string"),
        (["data.dataset_id=../../etc/passwd"], "data.dataset_id", "pattern"),
        (["data.columns={letter='x'}"], "data.columns", "letter is not what any task needs"),
        (["data.columns={prompt='x'}"], "data.columns", "not what any task needs"),
        (["data.labels=['a','b']"], "data.labels", "belong to a label column"),
        (["data.columns={text='t',label='l'}"], "data.labels", "two distinct names"),
        (["server.address=fed.example.org"], "server.address", "expected host:port"),
        (["server.address=fed.example.org:65536"], "server.address", "at most 65535"),
        (["server.plain=true"], "server.plain", "another machine"),
        (["budget.epsilon=inf"], "budget.epsilon", "finite"),
        (["budget.epsilon=0"], "budget.epsilon", "greater than 0"),
        (["budget.per_job=10.5"], "budget.per_job", "more than there is for life, 10"),
        (["budget.delta=0.004"], "budget.delta", "not below 1 / data.size (1 / 250 = 0.004)"),
        (["budget.rule=renyi"], "budget.rule", "'plan', 'rdp' or 'sum'"),
        (["budget.plans=5"], "budget.plans", "does not belong to the rule 'rdp'"),
        (["budget.rule=sum"], "budget.plans", "is needed by the rule 'sum'"),
        (["data.sise=250"], "data.sise", "Did you mean 'size'?"),
        (["budget.order=100000"], "budget.rule", "order=100000"),
        (["allow.model_digest=sha256:abc"], "allow.model_digest", "64 hexadecimal digits"),
        (["allow.methods=[]"], "allow.methods", "at least 1 item"),
        (["allow.numerics=['exact']"], "allow.numerics.0", "'default' or 'strict'"),
        (["allow.max_rate=1.5"], "allow.max_rate", "less than or equal to 1"),
        (["allow.targets=q_proj"], "allow.targets", "valid tuple"),
        (["site.name=a/b"], "site.name", "expected letters, digits"),
        (["personal.beside=0"], "personal.beside", "greater than 0"),
        (["personal.beside=1"], "personal.beside", "less than 1"),
    ],
)  # fmt: skip
def test_a_bad_value_names_file_key_and_value(
    file: Path, overrides: list[str], key: str, words: str
) -> None:
    error = error_of(file, *overrides)
    assert error.key == key
    assert error.file == file
    assert words in str(error)


OMOP = "data.omop={url='postgresql+psycopg://reader@db.example.org/cdm'}"


def test_records_in_a_database_or_in_fhir(file: Path) -> None:
    file.write_text(TEXT.replace('path = "notes.jsonl"\n', ""))
    assert "name a file of records" in str(error_of(file))
    site = load_site(file, [OMOP, "data.omop.password_env='DB'"])
    assert site.data.records is site.data.omop
    assert site.data.omop is not None and site.data.omop.password_env == "DB"
    dumped = site.data.omop.model_dump() | {"password_file": None}  # as 0.2.0 did
    assert type(site.data.omop).model_validate(dumped) == site.data.omop
    site = load_site(file, ["data.omop.url='sqlite:///cdm.db'", "data.omop.first_date=2020-01-31"])
    assert site.data.omop is not None
    assert site.data.omop.url == f"sqlite:///{file.parent}/cdm.db"
    assert site.data.omop.first_date == date(2020, 1, 31)
    site = load_site(file, ["data.fhir={path='export', type_code=['11506-3']}"])
    assert site.data.fhir is not None
    assert (site.data.records, site.data.fhir.path) == (site.data.fhir, file.parent / "export")
    error = error_of(file, OMOP, "data.fhir={path='export'}")
    assert error.key == "data.fhir" and "in omop, too" in str(error)
    file.write_text(TEXT)
    assert error_of(file, OMOP).key == "data.omop"


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        ([OMOP, "data.omop.urk=1"], "data.omop.urk", "Did you mean 'url'?"),
        (["data.omop={}"], "data.omop.url", "is missing"),
        ([OMOP, "data.omop.table='a; DROP TABLE b'"], "data.omop.table", "pattern"),
        ([OMOP, "data.omop.note_type_concept_id=['x']"], "data.omop.note_type_concept_id.0", "int"),
        ([OMOP, "data.omop.last_date=soon"], "data.omop.last_date", "valid date"),
        ([OMOP, "data.omop.last_date=2020-01-01", "data.omop.first_date=2021-01-01"], "data.omop",
         "first_date is after last_date"),
        ([OMOP, "data.omop.password_file=b"], "data.omop.password_file", "'password_env'"),
        (["data.fhir.status=[]"], "data.fhir.path", "is missing"),
        (["data.transform='no function'"], "data.transform", "pattern"),
    ],
)  # fmt: skip
def test_a_bad_value_of_a_source_names_key_and_value(
    file: Path, overrides: list[str], key: str, words: str
) -> None:
    file.write_text(TEXT.replace('path = "notes.jsonl"\n', ""))
    error = error_of(file, *overrides)
    assert error.key == key
    assert words in str(error)


@pytest.mark.parametrize(
    "override",
    [
        "data.omop.url='postgresql://me:hunter2@db/cdm'",
        "data.omop.url='postgresql://me:hun/t?er2@db/cdm?x=y'",
        "data.omop.url='postgresql://me@db/cdm?password=hunter2'",
        "data.omop.url='mssql+pyodbc:///?odbc_connect=UID%3dme;PWD%3dhunter2'",
        "data.omop.urk='postgresql://me:hunter2@db/cdm'",
        "data.omop={url='sqlite:///a.db', password='hunter2'}",
        "data.omop={url='sqlite:///a.db', pasword_file='hunter2'}",
        "data.omop={url='sqlite:///a.db', password_file=['hunter2']}",
        "data.omop='postgresql://me:hunter2@db/cdm'",
        "data.omop=[{url='postgresql://me:hunter2@db/cdm'}]",
        "data.fhir='postgresql://me:hunter2@db/cdm'",
    ],
)
def test_a_password_in_the_file_is_refused_and_not_shown(file: Path, override: str) -> None:
    file.write_text(TEXT.replace('path = "notes.jsonl"\n', ""))
    error = error_of(file, override)
    assert "er2" not in f"{error} {error!r} {error.__cause__}"


def test_a_port_is_no_password(file: Path) -> None:
    file.write_text(TEXT.replace('path = "notes.jsonl"\n', ""))
    url = "postgresql+psycopg://reader@db.example.org:5433/cdm"
    site = load_site(file, [f"data.omop.url='{url}'"])
    assert site.data.omop is not None and site.data.omop.url == url


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('name = "cardiology"\n', "site.name"),
        ('ca = "ca.crt"\n', "server.ca"),
        ('key = "site.key"\n', "server.key"),
        ("size = 250\n", "data.size"),
        ("epsilon = 10.0\n", "budget.epsilon"),
        ("per_job = 4.0\n", "budget.per_job"),
        (f'model_digest = "sha256:{"a" * 64}"\n', "allow.model_digest"),
    ],
)
def test_what_only_the_administrator_can_say_has_no_default(
    file: Path, line: str, key: str
) -> None:
    assert TEXT.count(line) == 1
    file.write_text(TEXT.replace(line, ""))
    error = error_of(file)
    assert (error.key, "is missing" in str(error)) == (key, True)


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        ([], RdpRule.best(10.0, 1e-5)),
        (["budget.order=8"], RdpRule(8)),
        (["budget.rule=plan"], PlanRule()),
        (["budget.rule=sum", "budget.plans=4"], SumRule(2.5e-6)),
    ],
)
def test_the_rule_is_that_of_a_ledger(file: Path, overrides: list[str], rule: object) -> None:
    assert load_site(file, overrides).budget.new_rule() == rule


def test_plain_http_stays_on_this_machine(file: Path) -> None:
    file.write_text(TEXT.replace('ca = "ca.crt"\n', "plain = true\n"))
    assert load_site(file, ["server.address=127.0.0.1:8080"]).server.ca is None
    assert error_of(file).key == "server.plain"


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("localhost:1", True),
        ("127.8.0.1:1", True),
        ("[::1]:1", True),
        ("10.0.0.1:1", False),
        ("[::]:1", False),
        ("0.0.0.0:1", False),
        ("localhost.example.org:1", False),
        ("127.0.0.1.example.org:1", False),
    ],
)
def test_what_is_this_machine(address: str, here: bool) -> None:
    assert is_loopback(address) == here


def test_a_site_is_not_changed_once_it_is_read(file: Path) -> None:
    site: SiteFile = load_site(file)
    with pytest.raises(ValueError, match="frozen"):
        site.allow.max_steps = 10**6  # type: ignore[misc]


ALONE = "budget.epsilon_alone=20"
ROSTER = ("secure_sum.roster=roster.json", f"secure_sum.digest='sha256:{'b' * 64}'")


def test_a_secure_sum_is_paid_twice(file: Path) -> None:
    site = load_site(file, [ALONE, *ROSTER])
    assert site.secure_sum is not None
    assert site.secure_sum.roster == file.parent / "roster.json"
    assert site.secure_sum.digest == "sha256:" + "b" * 64
    assert (site.budget.epsilon_alone, site.allow.max_colluding_at_least) == (20.0, 1)
    before = load_site(file, [ALONE])  # the ledger is made before there is a roster
    assert before.secure_sum is None
    assert isinstance(site.budget.new_rule(), RdpRule)
    assert site.budget.new_rule() == RdpRule(
        RdpRule.best(10.0, 1e-5).order, RdpRule.best(20.0, 1e-5).order
    )
    assert load_site(file).budget.new_rule() == RdpRule.best(10.0, 1e-5)


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        (ROSTER, "budget.epsilon_alone", "is missing; secure_sum needs"),
        ((ALONE, ROSTER[0]), "secure_sum.digest", "is missing"),
        ((ALONE, ROSTER[1]), "secure_sum.roster", "is missing"),
        ((ALONE, ROSTER[0], "secure_sum.digest=abc"), "secure_sum.digest", "64 hexadecimal digits"),
        (("budget.epsilon_alone=9.9",), "budget.epsilon_alone", "less than budget.epsilon, 10"),
        (("budget.per_job_alone=9",), "budget.per_job_alone", "is a part of budget.epsilon_alone"),
        ((ALONE, "budget.per_job_alone=21"), "budget.per_job_alone", "alone for life, 20"),
        ((ALONE, "budget.per_job_alone=0.1"), "budget.per_job_alone", "trust in the others"),
        (("budget.epsilon_alone=0",), "budget.epsilon_alone", "greater than 0"),
        (("budget.epsilon_alone=inf",), "budget.epsilon_alone", "finite"),
        (("allow.max_colluding_at_least=-1",), "allow.max_colluding_at_least", "greater than or"),
    ],
)
def test_a_second_budget_that_promises_nothing_is_refused(
    file: Path, overrides: tuple[str, ...], key: str, words: str
) -> None:
    error = error_of(file, *overrides)
    assert (error.key, words in str(error)) == (key, True), error


PERSONS = ["allow.approve=ask", "allow.approvers=['Ada', 'Bea']"]


def test_who_approves_is_asked(file: Path) -> None:
    allow = load_site(file, [*PERSONS, "allow.approvals=2"]).allow
    assert (allow.approvers, allow.approvals) == (("Ada", "Bea"), 2)
    for overrides, words in (
        (PERSONS[1:], "are asked only with"),
        (["allow.approve=ask", "allow.approvals=2"], "expected 2 names"),
        ([PERSONS[0], "allow.approvers=['Ada', 'Ada']", "allow.approvals=2"], "expected 2 names"),
        (["notify.urls=['json://localhost']"], "nobody's yes is waited for"),
        (
            ["server.plain=true", "server.address='localhost:1'", "allow.statement=true"],
            "nobody signs",
        ),
    ):
        assert words in str(error_of(file, *overrides))


def test_addresses_of_notices_are_shown_nowhere(file: Path) -> None:
    site = load_site(file, [PERSONS[0], "notify.urls=['json://localhost/secret']"])
    assert site.notify is not None and "secret" not in repr(site)
    assert site.notify.urls[0].get_secret_value() == "json://localhost/secret"
    for wrong in ("urls=[['json://x/hush']]", "url='json://x/hush'"):
        assert "hush" not in str(error_of(file, PERSONS[0], f"notify.{wrong}"))
