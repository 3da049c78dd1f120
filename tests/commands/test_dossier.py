"""`fedpriv export` and `fedpriv verify`, as a coordinator and a privacy officer use them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fedpriv.cli import app
from fedpriv.command_line import run
from fedpriv.errors import ConfigError, FedprivError, RunError, SignerError
from fedpriv.pki.points import in_groups
from fedpriv.secure_sum.roster import write
from tests.dossier.made_runs import ROSTER, SITE_KEYS, make_run, public

OTHER = public(SITE_KEYS["north"])  # no coordinator's


def fedpriv(*arguments: str | Path) -> Result:
    """Run the command; an error on purpose is raised here."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, FedprivError):
        raise result.exception
    return result


def test_what_was_exported_is_verified(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    done = fedpriv("export", made.run, "--out", made.out)
    assert done.exit_code == 0
    signer = done.output.split('--signer "')[1].rstrip('"\n')
    assert [len(group) for group in signer.split(" ")] == [4] * 16
    key = made.run / "private" / "dossier.key"
    assert key.stat().st_mode & 0o777 == 0o600
    text = fedpriv("verify", made.out, "--signer", signer, "--adapter", made.run / "adapter").output
    assert "✓ that is the key that was given for the coordinator." in text
    assert text.startswith("All of it\n") and "? " in text
    assert "2 sites, alike but for their keys\n" in text
    for name in made.names:
        assert f"KEY of {name}: {in_groups(public(SITE_KEYS[name]))}\n" in text
    found = json.loads(fedpriv("verify", made.out, "--json").output)
    assert {finding["kind"] for finding in found} == {"holds", "word", "open"}
    fedpriv("verify", made.out, "--page", tmp_path / "own.html")
    [line] = [one for one in text.splitlines() if one.startswith("VERIFIED: ")]
    assert text.endswith(f"{line}\n")
    own = (tmp_path / "own.html").read_text()
    [shown] = [one for one in own.splitlines() if "VERIFIED" in one]
    assert own.replace(f"{shown}\n", "") == made.out.with_suffix(".html").read_text()
    with pytest.raises(SignerError):
        fedpriv("verify", made.out, "--signer", OTHER, "--page", tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()
    assert fedpriv("export", made.run, "--out", tmp_path / "b.zip").exit_code == 0
    assert (tmp_path / "b.zip").read_bytes() == made.out.read_bytes()


def test_a_job_over_the_network_is_signed_by_a_key_that_is_named(tmp_path: Path) -> None:
    made = make_run(tmp_path, engine="network")
    with pytest.raises(ConfigError, match="--key: has to be named"):
        fedpriv("export", made.run, "--out", made.out)
    key = tmp_path / "federation" / "dossier.key"
    fedpriv("export", made.run, "--out", made.out, "--key", key)
    assert key.exists() and not (made.run / "private").exists()


def test_a_site_that_took_part_and_has_not_reported_is_named(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    (made.run / "sites" / "south" / "budget.json").unlink()
    with pytest.raises(RunError, match=r"report of south is missing.*--without-reports"):
        fedpriv("export", made.run, "--out", made.out)
    assert not made.out.exists() and RunError.exit_code != 0
    fedpriv("export", made.run, "--out", made.out, "--without-reports")
    assert made.out.exists()


def test_a_report_that_is_older_than_the_last_round_is_missing_too(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    path = made.run / "run.json"
    owed = {"owed": {"reports": ["north"], "adapters": ["north", "south"]}}
    path.write_text(json.dumps(json.loads(path.read_text()) | owed))
    with pytest.raises(RunError, match="report of north is missing"):
        fedpriv("export", made.run, "--out", made.out)


def test_keys_of_sites_are_given_one_by_one_or_as_a_roster(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    fedpriv("export", made.run, "--out", made.out)
    pairs: list[Any] = [f"{name}={public(SITE_KEYS[name])}" for name in made.names]
    given = "that is the key that was given for the site"
    text = fedpriv("verify", made.out, "--site", pairs[0]).output
    assert text.count(given) == 1 and "north\n" in text and "south\n" in text  # not alike
    text = fedpriv("verify", made.out, "--site", pairs[0], "--site", pairs[1], "--json").output
    assert text.count(given) == 2
    write(tmp_path / "roster.json", ROSTER)
    text = fedpriv("verify", made.out, "--roster", tmp_path / "roster.json", "--json").output
    assert text.count(given) == 2
    with pytest.raises(SignerError):
        fedpriv("verify", made.out, "--site", f"north={public(SITE_KEYS['south'])}")
    for wrong in ("north", "=ab", "north="):
        with pytest.raises(ConfigError, match="is not NAME=KEY"):
            fedpriv("verify", made.out, "--site", wrong)
    with pytest.raises(ConfigError, match="given twice"):
        fedpriv("verify", made.out, "--site", "north=a", "--site", "north=b")


def test_the_exit_code_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nought if it holds, 3 for another key, 4 for a byte; and the reason in a line."""
    made = make_run(tmp_path)
    fedpriv("export", made.run, "--out", made.out)
    altered = tmp_path / "altered.zip"
    content = bytearray(made.out.read_bytes())
    content[len(content) // 2] ^= 1
    altered.write_bytes(content)
    for arguments, code, words in (
        ([made.out], None, ""),
        ([made.out, "--signer", OTHER], 3, "not by the expected"),
        ([altered], 4, "altered.zip: was altered"),
        ([tmp_path / "no.zip"], 4, "No such file"),
    ):
        monkeypatch.setattr(sys, "argv", ["fedpriv", "verify", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run(app)
        output, errors = capsys.readouterr()
        verdict = "NOT VERIFIED: " if words else "VERIFIED, but not who signed it: "
        assert output.splitlines()[-1].startswith(verdict)
        assert ended.value.code == code
        assert errors.count("\n") == bool(words) and words in errors
