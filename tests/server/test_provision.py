"""`fedpriv provision`, as a coordinator uses it over the life of a federation."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import fedpriv.files
from fedpriv.config.job import JobConfig
from fedpriv.config.load import load_job
from fedpriv.config.server import ServerSection
from fedpriv.data.config import DataSection
from fedpriv.errors import ConfigError, EnrolmentError, FedprivError, RunningError
from fedpriv.pki.certificates import check_certificate, describe, load_certificate
from fedpriv.pki.enrolment import Enrolment, read_enrolment
from fedpriv.pki.keys import fingerprint, is_encrypted, load_key, new_key, public_pem, write_key
from fedpriv.pki.points import in_groups
from fedpriv.pki.request import make_request
from fedpriv.privacy.config import PrivacySection
from fedpriv.process import only_process
from fedpriv_server.authority import Authority
from fedpriv_server.provision import ProvisionOptions, provision, server_names
from fedpriv_server.provision_command import PASSPHRASE
from fedpriv_server.provision_command import provision as command
from fedpriv_server.site_file import site_file
from fedpriv_server.site_keys import SiteKeys

NOW = datetime.now(UTC)
Files = dict[str, bytes]
Make = Callable[..., Path]


@pytest.fixture
def federation(tmp_path: Path) -> Make:
    """A factory of federation files; the next one replaces the one before."""

    def make(
        *sites: str, address: str = "fed.example.org:8443", names: tuple[str, ...] = ("localhost",)
    ) -> Path:
        file = tmp_path / "federation.toml"
        tables = "".join(f'[[sites]]\nname = "{name}"\n' for name in sites or ("a", "b"))
        file.write_text(
            f"""
[job]
name = "hearts"
rounds = 20
engine = "network"
[evaluation]
data = "held-out.jsonl"
[server]
address = "{address}"
names = {list(names)}
{tables}"""
        )
        return file

    return make


def run(file: Path, *arguments: str | Path, given: str | None = None) -> dict[str, Any]:
    """The command's JSON; an error on purpose is raised here."""
    app = typer.Typer()
    app.command()(command)
    words = [str(file), "--json", *map(str, arguments)]
    result = CliRunner().invoke(app, words, input=given, env={PASSPHRASE: None})
    if isinstance(result.exception, FedprivError):
        raise result.exception
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def tree(folder: Path) -> Files:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def changed(before: Files, after: Files) -> set[str]:
    names = before.keys() | after.keys()
    return {name for name in names if before.get(name) != after.get(name)}


def enrolment(file: Path, name: str, key: Path | None = None) -> Enrolment:
    folder = file.parent / "pki" / "enrolments" / name
    return read_enrolment(folder / "enrolment.json", key=key or folder / "site.key")


def admitted(file: Path) -> list[str]:
    return [s.name for s in SiteKeys.read(file.parent / "pki" / "sites.json").admissible()]


def request(file: Path, name: str) -> tuple[Path, Path, str]:
    """A request, the key that it is for, and its fingerprint; each time another."""
    key = new_key()
    mark = fingerprint(key.public_key())
    folder = file.parent / "site" / mark[-12:]
    write_key(folder / "site.key", key)
    path = folder / f"{name}.request.pem"
    path.write_bytes(make_request(key, name))
    return path, folder / "site.key", mark


def test_a_first_run_makes_all_that_server_and_sites_need(federation: Make) -> None:
    file = federation()
    found = run(file)
    pki = file.parent / "pki"
    ca = load_certificate(pki / "ca.crt")
    server = check_certificate(
        load_certificate(pki / "server.crt"),
        ca,
        use="server",
        path=pki / "server.crt",
        key=load_key(pki / "server.key").public_key(),
    )
    assert server.names == ("fed.example.org", "localhost")
    assert admitted(file) == ["a", "b"]
    site_keys = SiteKeys.read(pki / "sites.json")
    for name in ("a", "b"):
        whole = enrolment(file, name)
        assert whole.manifest.address == "fed.example.org:8443"
        assert whole.manifest.ca == found["ca"]["fingerprint"]
        assert whole.manifest.federation == found["federation"]
        site = site_keys.sites[name]
        assert site.public_key == public_pem(whole.key.public_key())
        row = found["sites"][name]
        assert row["fingerprint"] == site.fingerprint
        assert (row["status"], row["key_made"]) == ("active", "here")


def test_what_is_private_is_readable_by_its_owner_only(federation: Make) -> None:
    file = federation()
    run(file)
    pki = file.parent / "pki"
    assert stat.S_IMODE(pki.stat().st_mode) == 0o700
    holders = [
        path for path in pki.rglob("*") if path.is_file() and b"PRIVATE" in path.read_bytes()
    ]
    assert {path.name for path in holders} == {"ca.key", "server.key", "site.key"}
    for path in holders:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (pki / ".gitignore").read_text() == "*\n"


def test_nothing_secret_is_printed(federation: Make) -> None:
    file = federation()
    found = json.dumps(run(file))
    for path in (file.parent / "pki").rglob("*.key"):
        number = load_key(path).private_numbers().private_value
        assert "PRIVATE" not in found
        assert f"{number:x}" not in found
        assert str(number) not in found


def test_a_second_run_changes_nothing(federation: Make) -> None:
    file = federation()
    run(file)
    before = tree(file.parent)
    assert run(file)["done"] == []
    assert tree(file.parent) == before


def test_a_new_site_gets_its_enrolment_and_the_others_keep_theirs(federation: Make) -> None:
    file = federation("a", "b")
    run(file)
    before = tree(file.parent / "pki")
    run(federation("a", "b", "c"))
    parts = ("ca.crt", "enrolment.json", "site.crt", "site.key", "site.toml")
    assert changed(before, tree(file.parent / "pki")) == {
        "sites.json",
        *(f"enrolments/c/{part}" for part in parts),
    }
    assert admitted(file) == ["a", "b", "c"]


def test_another_address_makes_new_enrolments_and_no_new_keys(federation: Make) -> None:
    file = federation()
    run(file)
    before = tree(file.parent / "pki")
    found = run(federation(address="10.0.0.7:9443", names=("localhost", "::1")))
    assert changed(before, tree(file.parent / "pki")) == {
        "server.crt",
        "enrolments/a/enrolment.json",
        "enrolments/b/enrolment.json",
    }
    assert found["server"]["names"] == ["10.0.0.7", "localhost", "::1"]
    assert enrolment(file, "a").manifest.address == "10.0.0.7:9443"
    assert len(found["done"]) == 3


def test_another_port_leaves_the_server_as_it_is(federation: Make) -> None:
    file = federation()
    run(file)
    before = tree(file.parent / "pki")
    run(federation(address="fed.example.org:9443"))
    assert changed(before, tree(file.parent / "pki")) == {
        "enrolments/a/enrolment.json",
        "enrolments/b/enrolment.json",
    }


def test_what_was_handed_over_and_deleted_is_made_again_but_not_the_key(federation: Make) -> None:
    """A coordinator does well to keep no copy of a site's key."""
    file = federation()
    run(file)
    mine = file.parent / "site.key"
    (file.parent / "pki/enrolments/a/site.key").rename(mine)
    shutil.rmtree(file.parent / "pki/enrolments/a")
    run(file)
    assert not (file.parent / "pki/enrolments/a/site.key").exists()
    assert enrolment(file, "a", mine).manifest.site == "a"


def test_the_sites_own_file_is_written_once(federation: Make) -> None:
    file = federation()
    run(file)
    own = file.parent / "pki/enrolments/a/site.toml"
    own.write_text("mine")
    run(federation(address="elsewhere:1"), "--renew", "a")
    assert own.read_text() == "mine"


def test_a_revoked_site_is_let_in_no_more_until_it_has_another_key(federation: Make) -> None:
    file = federation()
    first = run(file)["sites"]["a"]["fingerprint"]
    assert run(file, "--revoke", "a")["sites"]["a"]["status"] == "revoked"
    assert admitted(file) == ["b"]
    assert run(file)["done"] == []
    assert run(file, "--revoke", "a")["done"] == []
    assert admitted(file) == ["b"]
    again = run(file, "--renew", "a")["sites"]["a"]
    assert again["status"] == "active"
    assert again["fingerprint"] != first
    assert enrolment(file, "a").manifest.site == "a"
    assert SiteKeys.read(file.parent / "pki/sites.json").sites["a"].retired == (first,)


def test_a_site_that_left_the_file_can_still_be_revoked(federation: Make) -> None:
    file = federation("a", "b")
    run(file)
    file = federation("b")
    assert run(file)["sites"]["a"]["status"] == "active"
    run(file, "--revoke", "a")
    assert admitted(file) == ["b"]


def test_renewing_gives_a_new_key_where_it_is_made_here(federation: Make) -> None:
    file = federation()
    first = run(file, "--days", "5")
    before = tree(file.parent / "pki")
    found = run(file, "--renew", "a", "--days", "50")
    assert changed(before, tree(file.parent / "pki")) == {
        "sites.json",
        "enrolments/a/site.key",
        "enrolments/a/site.crt",
        "enrolments/a/enrolment.json",
    }
    for part in ("fingerprint", "expires"):
        assert found["sites"]["a"][part] != first["sites"]["a"][part]
    assert found["sites"]["b"] == first["sites"]["b"]
    assert admitted(file) == ["a", "b"]


def test_renewing_the_server_changes_no_enrolment(federation: Make) -> None:
    file = federation()
    run(file)
    before = tree(file.parent / "pki")
    run(file, "--renew", "server")
    assert changed(before, tree(file.parent / "pki")) == {"server.crt", "server.key"}


def test_a_damaged_certificate_of_the_server_is_made_again_for_the_same_key(
    federation: Make,
) -> None:
    file = federation()
    first = run(file)["server"]["fingerprint"]
    (file.parent / "pki/server.crt").write_text("half")
    assert run(file)["server"]["fingerprint"] == first


def test_a_site_can_keep_its_key_to_itself(federation: Make) -> None:
    file = federation()
    waiting = run(file, "--keys-at-sites")
    assert {one["status"] for one in waiting["sites"].values()} == {"waiting"}
    assert admitted(file) == []
    assert list((file.parent / "pki").rglob("site.key")) == []
    assert run(file)["done"] == []  # it goes on waiting

    asked, key, mark = request(file, "a")
    found = run(file, "--approve", asked)
    assert (found["sites"]["a"]["status"], found["sites"]["a"]["key_made"]) == ("active", "site")
    assert found["sites"]["a"]["fingerprint"] == mark
    assert admitted(file) == ["a"]
    assert list((file.parent / "pki").rglob("site.key")) == []
    back = key.parent
    for part in ("enrolment.json", "ca.crt", "site.crt"):
        shutil.copy(file.parent / "pki/enrolments/a" / part, back / part)
    assert read_enrolment(back / "enrolment.json", key=key).manifest.site == "a"
    assert run(file, "--approve", asked)["done"] == []


def test_a_sites_own_key_can_get_a_new_certificate_and_a_new_key_needs_a_request(
    federation: Make,
) -> None:
    file = federation("a")
    asked, key, mark = request(file, "a")
    run(file, "--approve", asked)
    first = SiteKeys.read(file.parent / "pki/sites.json").sites["a"].certificate
    renewed = run(file, "--renew", "a")["sites"]["a"]
    assert SiteKeys.read(file.parent / "pki/sites.json").sites["a"].certificate != first
    assert renewed["fingerprint"] == mark
    assert enrolment(file, "a", key).manifest.site == "a"

    another, new, new_mark = request(file, "a")
    with pytest.raises(
        EnrolmentError, match=rf"{in_groups(mark)}.*{in_groups(new_mark)}.*--renew a"
    ):
        run(file, "--approve", another)
    assert run(file, "--approve", another, "--renew", "a")["sites"]["a"]["fingerprint"] == new_mark
    assert enrolment(file, "a", new).manifest.site == "a"
    with pytest.raises(EnrolmentError, match="was retired"):
        run(file, "--approve", asked, "--renew", "a")

    run(file, "--revoke", "a")
    with pytest.raises(EnrolmentError, match="has none that is accepted"):
        run(file, "--renew", "a")
    for options in ((), ("--renew", "a")):
        with pytest.raises(EnrolmentError, match="was revoked"):
            run(file, "--approve", another, *options)
    assert admitted(file) == []


def test_a_site_can_take_its_key_over(federation: Make) -> None:
    file = federation("a")
    first = run(file)["sites"]["a"]["fingerprint"]
    asked, key, _ = request(file, "a")
    run(file, "--approve", asked, "--renew", "a")
    assert not (file.parent / "pki/enrolments/a/site.key").exists()
    assert enrolment(file, "a", key).manifest.site == "a"
    assert SiteKeys.read(file.parent / "pki/sites.json").sites["a"].retired == (first,)


def test_one_key_is_not_certified_for_two_sites(federation: Make) -> None:
    file = federation("a", "b")
    asked, key, _ = request(file, "a")
    run(file, "--keys-at-sites", "--approve", asked)
    copied = file.parent / "b.request.pem"
    copied.write_bytes(make_request(load_key(key), "b"))
    with pytest.raises(EnrolmentError, match="of another site"):
        run(file, "--approve", copied)
    assert admitted(file) == ["a"]


def test_orders_that_cannot_be_are_refused_and_nothing_is_done(federation: Make) -> None:
    file = federation()
    run(file)
    stranger, _, _ = request(file, "nobody")
    first, _, _ = request(file, "a")
    second, _, _ = request(file, "a")
    before = tree(file.parent / "pki")
    cases: list[tuple[str, tuple[str | Path, ...]]] = [
        ("--revoke: names an unknown site", ("--revoke", "nobody")),
        ("--revoke: names an unknown site", ("--revoke", "b", "--revoke", "server")),
        ("--renew: names an unknown site", ("--revoke", "b", "--renew", "nobody")),
        ("--approve: names an unknown site", ("--revoke", "b", "--approve", stranger)),
        ("is a second request", ("--revoke", "b", "--approve", first, "--approve", second)),
        ("is also given to --renew or --approve", ("--revoke", "a", "--renew", "a")),
        ("is also given to --renew or --approve", ("--revoke", "a", "--approve", first)),
    ]
    for words, arguments in cases:
        with pytest.raises((ConfigError, EnrolmentError), match=words):
            run(file, *arguments)
        assert tree(file.parent / "pki") == before


def test_a_passphrase_is_asked_for_only_where_something_is_signed(federation: Make) -> None:
    file = federation("a")
    run(file, "--encrypt-ca", given="horse\nhorse\n")
    path = file.parent / "pki/ca.key"
    assert is_encrypted(path.read_bytes())
    assert run(file)["done"] == []
    run(file, "--revoke", "a")
    with pytest.raises(EnrolmentError, match=r"ca\.key: can't be read as a private key"):
        run(file, "--renew", "a", given="staple\n")
    run(file, "--renew", "a", given="horse\n")
    assert admitted(file) == ["a"]


def test_a_key_that_is_there_can_be_put_under_a_passphrase(
    federation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = federation("a")
    first = run(file)
    path = file.parent / "pki/ca.key"
    plain = load_key(path)
    found = run(file, "--encrypt-ca", given="horse\nhorse\n")
    assert load_key(path, lambda: b"horse").private_numbers() == plain.private_numbers()
    assert found["ca"] == first["ca"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_environment_can_hold_the_passphrase(federation: Make) -> None:
    file = federation("a")
    program = Path(sys.executable).parent / "fedpriv"
    environment = os.environ | {PASSPHRASE: "horse"}
    words = [str(program), "provision", str(file), "--encrypt-ca"]
    shown = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert shown.returncode == 0, shown.stderr
    load_key(file.parent / "pki/ca.key", lambda: b"horse")
    digits = load_key(file.parent / "pki/ca.key", lambda: b"horse").public_key()
    assert in_groups(fingerprint(digits))[-39:] in shown.stdout
    assert "telephone" in shown.stdout
    assert "fedpriv doctor FILE says which certificates end soon" in shown.stdout
    assert "horse" not in shown.stdout + shown.stderr


@pytest.mark.parametrize("name", ["ca.key", "ca.crt", "sites.json"])
def test_a_federation_that_lost_a_part_is_not_replaced_by_another(
    federation: Make, name: str
) -> None:
    file = federation()
    run(file)
    (file.parent / "pki" / name).unlink()
    before = tree(file.parent / "pki")
    with pytest.raises(EnrolmentError, match=rf"{name}: is missing"):
        run(file)
    assert tree(file.parent / "pki") == before


def test_a_key_of_another_authority_signs_nothing(federation: Make) -> None:
    file = federation("a")
    run(file)
    write_key(file.parent / "pki/ca.key", new_key(), replace=True)
    with pytest.raises(EnrolmentError, match=r"ca\.key: is not the key of ca\.crt"):
        run(file, "--renew", "a")


class Killed(BaseException):
    """As a process ends that is killed."""


@pytest.fixture
def killed_after(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Let so many files be written, and die at the next."""
    original = fedpriv.files.replacing
    left = 1_000_000

    def counted(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        return original(*arguments)

    monkeypatch.setattr(fedpriv.files, "replacing", counted)

    def allow(files: int) -> None:
        nonlocal left
        left = files

    yield allow
    left = 1_000_000


def test_a_run_that_was_killed_anywhere_is_completed_by_the_next(
    federation: Make, killed_after: Callable[[int], None]
) -> None:
    """And no key that was in use is replaced on the way."""
    file = federation("a", "b")
    for files in range(100):
        shutil.rmtree(file.parent / "pki", ignore_errors=True)
        killed_after(files)
        try:
            run(file)
        except Killed:
            killed_after(1_000_000)
        else:
            break
        keys = {n: c for n, c in tree(file.parent).items() if n.endswith(".key")}
        run(file)
        assert keys.items() <= tree(file.parent).items()
        assert [enrolment(file, name).manifest.site for name in ("a", "b")] == ["a", "b"]
        assert admitted(file) == ["a", "b"]
        assert run(file)["done"] == []
    assert files > 10


def test_a_renewal_that_was_killed_is_done_again(
    federation: Make, killed_after: Callable[[int], None]
) -> None:
    file = federation("a")
    run(file)
    for files in range(100):
        killed_after(files)
        try:
            run(file, "--renew", "a")
        except Killed:
            killed_after(1_000_000)
        else:
            break
        try:
            run(file)
        except EnrolmentError as error:
            assert "--renew a" in str(error)
        run(file, "--renew", "a")
        assert enrolment(file, "a").manifest.site == "a"
    assert files > 3


def test_two_runs_do_not_mix(federation: Make) -> None:
    file = federation()
    run(file)
    with only_process(file.parent / "pki"), pytest.raises(RunningError, match="another process"):
        run(file)
    run(file)


def made(file: Path, now: datetime, **options: Any) -> Authority:
    def nothing() -> bytes:
        raise AssertionError("no passphrase is needed")

    return provision(
        load_job(file), ProvisionOptions(**options), passphrase=nothing, now=now
    ).authority


def test_an_expired_site_is_not_let_in_and_only_renewal_helps(federation: Make) -> None:
    file = federation("a")
    made(file, NOW - timedelta(days=20), days=10)
    assert admitted(file) == []
    found = run(file)
    assert (found["done"], found["sites"]["a"]["status"]) == ([], "expired")
    assert found["server"]["status"] == "expired"
    run(file, "--renew", "a", "--renew", "server")
    assert admitted(file) == ["a"]


def test_an_expired_authority_certifies_nobody(federation: Make) -> None:
    file = federation("a")
    made(file, NOW - timedelta(days=5000))
    with pytest.raises(EnrolmentError, match="the authority expired"):
        run(file, "--renew", "a")


def test_a_file_without_a_server_is_refused(federation: Make) -> None:
    file = federation("a")
    text = file.read_text().replace('engine = "network"', "")
    file.write_text(text[: text.index("[server]")] + '[[sites]]\nname="a"\ndata="x"\nsize=9\n')
    with pytest.raises(ConfigError, match="server: is missing"):
        run(file)


def test_a_folder_that_cannot_be_made_is_named(federation: Make) -> None:
    file = federation("a")
    (file.parent / "pki").write_text("")
    with pytest.raises(EnrolmentError, match="pki: can't be written"):
        run(file)


@pytest.mark.parametrize("name", ["", "a b", "*.example.org", "exämple.org", "x:1", "a..b", "a\n"])
def test_a_name_that_nobody_can_dial_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.names: is neither a host name nor"):
        server_names(ServerSection(address="localhost:1", names=(name,)))


def test_names_are_told_apart_by_what_they_mean() -> None:
    server = ServerSection(address="[::1]:8443", names=("Fed.example.org", "0:0::1", "10.0.0.7"))
    assert server_names(server) == ("::1", "fed.example.org", "10.0.0.7")


def test_provisioning_needs_neither_torch_nor_flower(federation: Make) -> None:
    code = (
        "import sys; from fedpriv.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = ('torch', 'transformers', 'flwr', 'grpc', 'numpy', 'matplotlib')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    words = [sys.executable, "-c", code, "provision", str(federation())]
    child = subprocess.run(words, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    assert child.stderr.strip() == "[]"


def filled_in(text: str) -> str:
    """As the administrator fills the file in."""
    text = text.replace("#! ", "").replace("sha256:...", "sha256:" + "a" * 64)
    assert "#!" not in text.replace('"#!"', "")
    return text


def test_the_sites_file_is_refused_until_it_is_filled_in(federation: Make, tmp_path: Path) -> None:
    from fedpriv.config.load import load_site

    run(federation("cardiology"))
    path = tmp_path / "pki/enrolments/cardiology/site.toml"
    with pytest.raises(ConfigError, match="is missing"):
        load_site(path)
    path.write_text(filled_in(path.read_text()))
    site = load_site(path)
    job = load_job(tmp_path / "federation.toml")
    assert site.site.name == "cardiology"
    assert site.server.address == "fed.example.org:8443"
    assert site.server.key == path.with_name("site.key")
    assert site.data.columns == job.data.columns
    assert (site.data.unit, site.data.max_records_per_unit) == (
        job.privacy.unit,
        job.privacy.max_records_per_unit,
    )
    assert site.budget.delta == job.privacy.delta
    assert site.allow.methods == (job.job.method,)
    assert site.allow.max_steps >= job.job.rounds


@given(st.text(min_size=1), st.text(min_size=1))
@settings(max_examples=50)
def test_whatever_the_federation_names_the_sites_file_says_the_same(unit: str, column: str) -> None:
    job = JobConfig.model_validate(
        {
            "job": {"rounds": 1},
            "evaluation": {"data": "x"},
            "sites": [{"name": "a", "data": "x", "size": 9}],
        }
    ).model_copy(
        update={
            "privacy": PrivacySection(unit=unit),
            "data": DataSection(columns={"text": column}),
        }
    )
    found = tomllib.loads(site_file(job, "a", "localhost:1"))
    assert (found["data"]["unit"], found["data"]["columns"]) == (unit, {"text": column})


def test_the_servers_certificate_is_for_servers(federation: Make) -> None:
    file = federation("a")
    run(file)
    pki = file.parent / "pki"
    assert describe(load_certificate(pki / "server.crt")).use == "server"
    assert describe(load_certificate(pki / "enrolments/a/site.crt")).use == "site"
    assert describe(load_certificate(pki / "ca.crt")).use is None


@pytest.mark.parametrize("looks", [False, True])
def test_the_draft_of_a_site_says_what_looks_need_and_allows_none(looks: bool) -> None:
    sites = {"looks": 2, "slots": 3} if looks else None
    job = JobConfig.model_validate(
        {
            "job": {"rounds": 5},
            "evaluation": {"data": "x", "sites": sites},
            "sites": [{"name": "a", "data": "x", "size": 9, "held_out": 0.2}],
        }
    )
    text = site_file(job, "a", "localhost:1")
    found = tomllib.loads(text)["allow"]
    assert "evaluation" not in found and found["max_steps"] == (11 if looks else 5)
    assert "# evaluation = true" in text and "# held_out = 0.2" in text
    allowed = text.replace("# evaluation = true", "evaluation = true")
    assert tomllib.loads(allowed)["allow"]["evaluation"] is True


@pytest.mark.parametrize("begin", [None, "/at/the/coordinators/adapter"])
def test_the_draft_of_a_site_asks_for_the_adapter_that_a_job_begins_at(begin: str | None) -> None:
    """Its folder is the coordinator's, and its digest is for the site to find out."""
    job = JobConfig.model_validate(
        {
            "job": {"rounds": 5},
            "model": {"begin": begin},
            "evaluation": {"data": "x"},
            "sites": [{"name": "a", "data": "x", "size": 9}],
        }
    )
    text = site_file(job, "a", "localhost:1")
    assert "begin" not in tomllib.loads(text)["allow"] and "coordinators" not in text
    assert text.count("#! begin") == (0 if begin is None else 2)
    filled = tomllib.loads(text.replace("#! begin", "begin"))["allow"]
    assert ("begin_digest" in filled) == (begin is not None)
    assert filled["min_noise"] == 0.3


@pytest.mark.parametrize("trust", ["local", "secure-sum"])
def test_the_draft_of_a_site_says_what_a_secure_sum_needs_and_takes_part_in_none(
    trust: str,
) -> None:
    shared = {"max_colluding": 2, "spare_slots": 2} if trust == "secure-sum" else {}
    sites = [{"name": name, "data": name, "size": 9} for name in "abcd"]
    job = JobConfig.model_validate(
        {
            "job": {"rounds": 5},
            "privacy": {"trust": trust, **shared},
            "evaluation": {"data": "x"},
            "sites": sites,
        }
    )
    text = site_file(job, "a", "localhost:1")
    found = tomllib.loads(text)
    assert "secure_sum" not in found and "epsilon_alone" not in found["budget"]
    assert found["allow"]["max_steps"] == (7 if shared else 5)
    keys = ("epsilon_alone", "per_job_alone", "max_colluding_at_least", "min_noise_alone")
    keys += ("[secure_sum]", "roster", "digest")
    for key in keys:
        assert f"# {key}" in text, key
        text = text.replace(f"# {key}", key)
    filled = tomllib.loads(text)
    assert filled["budget"]["epsilon_alone"] > filled["budget"].get("epsilon", 0)
    assert filled["allow"]["max_colluding_at_least"] == (2 if shared else 1)
    assert filled["budget"]["per_job_alone"] < filled["budget"]["epsilon_alone"]
    assert filled["allow"]["min_noise_alone"] < 0.3  # of what all have to add together
    assert filled["secure_sum"].keys() == {"roster", "digest"}
