"""`fedpriv ledger`, as an administrator and an auditor use it."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner, Result

from fedpriv.commands.ledger import app
from fedpriv.errors import ConfigError, FedprivError, LedgerCorruptError, LedgerError
from fedpriv.files import canonical_json
from fedpriv.privacy.config import PrivacySection
from fedpriv.privacy.ledger.chain import GENESIS, row_hash
from fedpriv.privacy.ledger.ledger import Ledger, Plan, Reservation
from fedpriv.privacy.ledger.rules import OPTIONS, RULES, PlanRule, RdpRule, SumRule
from fedpriv.privacy.usual import RuleName
from fedpriv.report.figures import upper

PLAN = Plan("job-1", "dp-lora", 0.1, 2.0, 1.0, 8, "sha256:" + "c" * 64)
DIGEST = "sha256:" + "a" * 64
TERMS = ("--size", "200", "--epsilon", "10", "--delta", "1e-5")


def ledger(*arguments: str | Path) -> Result:
    """Run the command; an error on purpose is raised here."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, FedprivError):
        raise result.exception
    return result


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hospital.db"


def used(path: Path, witness: Path | None = None) -> None:
    """A ledger with one open job: one slot released, one reserved."""
    options = ("--witness", witness) if witness else ()
    assert ledger("init", path, *TERMS, *options).exit_code == 0
    with Ledger.open(path, witness) as opened:
        opened.commit(PLAN)
        for slot in (0, 1):
            reservation = opened.reserve("job-1", slot, DIGEST)
            assert isinstance(reservation, Reservation)
            if slot == 0:
                opened.release(reservation, b"x")


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ((), RdpRule.best(10, 1e-5)),
        (("--order", "8"), RdpRule(8)),
        (("--rule", "plan"), PlanRule()),
        (("--rule", "sum", "--plans", "4"), SumRule(2.5e-6)),
    ],
)
def test_init_fixes_the_terms(path: Path, options: tuple[str, ...], rule: object) -> None:
    result = ledger("init", path, *TERMS, *options, "--unit", "patient", "--simulated")
    assert result.exit_code == 0, result.output
    with Ledger.open(path) as opened:
        assert opened.terms.rule == rule
        assert opened.terms.simulated and opened.terms.unit == "patient"
        assert opened.head.hash in result.output
    with pytest.raises(LedgerError, match="already exists"):
        ledger("init", path, *TERMS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--plans", "5"), "--plans: does not belong to the rule 'rdp'"),
        (("--rule", "sum"), "--plans: is needed by the rule 'sum'"),
        (("--rule", "renyi"), "--rule: is no rule of a new ledger .*Use one of plan, rdp, sum"),
        (("--order", "1"), "order=1"),
        (("--order", "2"), "higher order"),
    ],
)
def test_init_refuses_terms_that_make_no_rule(
    path: Path, options: tuple[str, ...], words: str
) -> None:
    with pytest.raises((ConfigError, LedgerError), match=words):
        ledger("init", path, *TERMS, *options)
    assert not path.exists()


def test_init_refuses_a_delta_that_allows_publishing_a_unit(path: Path) -> None:
    with pytest.raises(LedgerError, match="declared size 200"):
        ledger("init", path, "--size", "200", "--epsilon", "1", "--delta", "0.01")
    assert not path.exists()


def test_show_labels_each_figure_with_what_it_covers(path: Path) -> None:
    used(path)
    found = json.loads(ledger("show", path, "--json").stdout)
    assert found["epsilon_spent"] < found["epsilon_allocated"] < found["epsilon_committed"] == 10
    assert "no guarantee" in found["means"]["epsilon_spent"]
    assert "for life" in found["means"]["epsilon_committed"]
    assert [row["kind"] for row in found["rows"]] == [
        "terms", "plan", "reserve", "release", "reserve",
    ]  # fmt: skip
    [plan] = found["plans"]
    assert (plan["steps"], plan["reserved"], plan["released"], plan["closed"]) == (8, 2, 1, "")
    words = " ".join(ledger("show", path).stdout.replace("│", " ").split())
    for part in ("the claim", "allocated", "rule 'rdp' (order 3)", "job-1", "for life, however"):
        assert part in words


def test_close_says_what_it_gives_back(path: Path) -> None:
    used(path)
    before = json.loads(ledger("show", path, "--json").stdout)["epsilon_allocated"]
    assert f"{upper(before)} → " in ledger("close", path, "job-1").stdout
    after = json.loads(ledger("show", path, "--json").stdout)["epsilon_allocated"]
    assert after < before
    with pytest.raises(LedgerError, match=r"no open plan of job 'job-1'\. Open: none"):
        ledger("close", path, "job-1")


def test_verify_takes_a_ledger_or_its_export(path: Path, tmp_path: Path) -> None:
    used(path)
    with Ledger.open(path) as opened:
        head = opened.head
    out = tmp_path / "export.json"
    assert "Wrote 5 rows" in ledger("export", path, "--out", out).stdout
    assert json.loads(ledger("export", path).stdout) == json.loads(out.read_text())
    for source in (path, out):
        result = ledger("verify", source, "--head", f"{head.rows}:{head.hash}", "--json")
        found = json.loads(result.stdout)
        assert found["head"] == {"rows": 5, "hash": head.hash}
        assert any("the given head has seen row 5" in line for line in found["verified"])
        alone = ledger("verify", source).stdout
        assert "5 rows" in alone
        assert "? whether there were newer rows" in alone
        with pytest.raises(LedgerCorruptError, match="back in time"):
            ledger("verify", source, "--head", f"5:{'0' * 64}")
        with pytest.raises(LedgerCorruptError, match="back in time"):
            ledger("verify", source, "--head", f"6:{head.hash}")
    with pytest.raises(ConfigError, match="--head: is not a head"):
        ledger("verify", path, "--head", "5")


def rehash(document: dict[str, Any], **changes: dict[str, Any]) -> None:
    """Change the first row of a kind, and make all hashes anew: an export that was forged whole."""
    previous = GENESIS
    for row in document["rows"]:
        row["body"].update(changes.pop(row["kind"], {}))
        previous = row["hash"] = row_hash(previous, row["kind"], canonical_json(row["body"]))
    document["head"] = {"rows": len(document["rows"]), "hash": previous}


def test_a_key_that_is_there_twice_is_damage(path: Path, tmp_path: Path) -> None:
    used(path)
    out = tmp_path / "export.json"
    ledger("export", path, "--out", out)
    out.write_text(out.read_text().replace('"slot": 0', '"slot": 3, "slot": 0', 1))
    with pytest.raises(LedgerCorruptError, match="twice"):
        ledger("verify", out)
    out.write_text('{"rows": ' * 20_000)
    with pytest.raises(LedgerCorruptError, match="damaged"):
        ledger("verify", out)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["rows"][1]["body"].update(noise_multiplier=9.0), "row 2 was edited"),
        (lambda d: d["rows"].pop(2), "row 3 was edited, or one before it is missing"),
        (lambda d: d["rows"].pop(), "before the stated head"),
        (lambda d: d.update(rows=[]), "before the stated head|damaged"),
        (lambda d: d.update(rows=5), "damaged"),
        (lambda d: d["rows"][0].pop("kind"), "damaged"),
        (lambda d: d.update(format="other"), "format 'other'"),
        (lambda d: rehash(d, plan={"steps": 10**6, "noise_multiplier": 0.5}), "more than its rule"),
        (lambda d: rehash(d, plan={"steps": 10**400}), "does not follow"),
        (lambda d: rehash(d, reserve={"slot": 0.5}), "does not follow"),
        (lambda d: rehash(d, plan={"numerics": "super-strict"}), "does not follow"),
        (lambda d: rehash(d, terms={"declared_size": 0}), "terms can't be read"),
        (lambda d: rehash(d, terms={"relation": "anything I like"}), "terms can't be read"),
    ],
)
def test_an_export_that_was_changed_shows(
    path: Path, tmp_path: Path, change: object, words: str
) -> None:
    used(path)
    out = tmp_path / "export.json"
    ledger("export", path, "--out", out)
    document = json.loads(out.read_text())
    change(document)  # type: ignore[operator]
    out.write_text(json.dumps(document))
    with pytest.raises(LedgerError, match=words):
        ledger("verify", out)


def test_verify_checks_the_witness_and_the_outbox(path: Path, tmp_path: Path) -> None:
    witness = tmp_path / "witness.json"
    used(path, witness)
    seen = ledger("verify", path, "--witness", witness).stdout
    assert "has seen row 5" in seen
    assert "?" not in seen
    backup = tmp_path / "backup.db"
    shutil.copy(path, backup)
    ledger("close", path, "job-1", "--witness", witness)
    with pytest.raises(LedgerCorruptError, match="back in time"):
        ledger("verify", backup, "--witness", witness)
    with Ledger.open(path, witness) as opened:
        opened._chain._connection.execute("UPDATE outbox SET reply = x'00'")
    with pytest.raises(LedgerCorruptError, match="not the released one"):
        ledger("verify", path)


def test_recover_goes_on_with_what_is_certainly_left(path: Path, tmp_path: Path) -> None:
    witness, backup = tmp_path / "witness.json", tmp_path / "backup.db"
    used(path, witness)
    shutil.copy(path, backup)
    with Ledger.open(path, witness) as opened:
        opened.commit(replace(PLAN, job="job-2"))
        allocated = opened.epsilon_allocated
    shutil.copy(backup, path)
    said = ledger("recover", path, "--witness", witness).stdout
    assert "closed and counted in full" in said and "No report was given to compare with." in said
    found = json.loads(ledger("show", path, "--json").stdout)
    assert found["epsilon_allocated"] == pytest.approx(allocated)
    assert [plan["closed"] for plan in found["plans"]] == ["lost"]
    assert found["rows"][-1]["kind"] == "restored"


def test_another_witness_is_started(path: Path, tmp_path: Path) -> None:
    witness = tmp_path / "witness.json"
    used(path, witness)
    with Ledger.open(path, reading=True) as opened:
        head = f"{opened.head.rows}:{opened.head.hash}"
    witness.unlink()
    with pytest.raises(ConfigError, match="--never-restored: has to be said"):
        ledger("witness", path, witness, "--head", head)
    for wrong, error, words in (
        ("5", ConfigError, "--head: is not a head"),
        (f"6:{'0' * 64}", LedgerCorruptError, "back in time"),
    ):
        with pytest.raises(error, match=words):
            ledger("witness", path, witness, "--never-restored", "--head", wrong)
    assert not witness.exists()
    said = ledger("witness", path, witness, "--never-restored", "--head", head).stdout
    assert "every row after 5" in said
    assert "has seen row 5" in ledger("verify", path, "--witness", witness).stdout


def test_a_report_is_verified_against_its_ledger(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from fedpriv.report import budget, received

    path, file = tmp_path / "l.db", tmp_path / "budget.json"
    used(path)
    with Ledger.open(path) as opened:
        head, terms = opened.head, opened.terms
    report = budget.BudgetReport(
        site="a", dataset_id=terms.dataset_id, unit="record", max_records_per_unit=1,
        delta=1e-5, declared_size=200, rule="rdp", accountant="PRV", guarantee="all of it",
        private=True, simulated=False, epsilon_spent=1.0, epsilon_allocated=1.0,
        epsilon_committed=10.0, budget=10.0, ledger_head=head.hash, ledger_rows=head.rows,
        job="job-1",
    )  # fmt: skip
    key = Ed25519PrivateKey.generate()
    received.write(budget.sign(report, key), file)
    assert "the signed report" in ledger("verify", path, "--report", file).stdout
    for change, words in (
        ({"dataset_id": "1" * 32}, "is of population 1111"),
        ({"ledger_rows": 9}, "back in time"),
    ):
        received.write(budget.sign(report.model_copy(update=change), key), file)
        with pytest.raises(LedgerCorruptError, match=words):
            ledger("verify", path, "--report", file)
    received.write(report, file)
    with pytest.raises(LedgerCorruptError, match="not signed"):
        ledger("verify", path, "--report", file)


def test_the_commands_need_no_torch() -> None:
    import subprocess

    code = (
        "import sys, typer.testing, fedpriv.commands.ledger as c;"
        "r = typer.testing.CliRunner().invoke(c.app, ['show', '/nowhere']);"
        "assert 'no such ledger' in str(r.exception), r;"
        "assert not {'torch', 'transformers', 'flwr'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_left_out_is_what_a_federation_file_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    assert ledger("init", path, "--size", "200", "--epsilon", "1").exit_code == 0
    usual = PrivacySection()
    with Ledger.open(path, reading=True) as opened:
        terms = opened.terms
    assert (terms.delta, terms.unit) == (usual.delta, usual.unit)
    assert terms.max_records_per_unit == usual.max_records_per_unit


def test_every_rule_has_its_word() -> None:
    assert set(get_args(RuleName)) == set(RULES) == set(OPTIONS)


ALONE = ("--epsilon-alone", "30")
SHARED = replace(PLAN, max_colluding=2, shares=3)


def test_a_second_budget_is_fixed_and_shown(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    said = ledger("init", path, *TERMS, *ALONE).stdout
    assert "ε = 10, and 30 if all other sites of a secure sum worked with the server," in said
    with Ledger.open(path) as opened:
        terms = opened.terms
        assert terms.rule == RdpRule(RdpRule.best(10, 1e-5).order, RdpRule.best(30, 1e-5).order)
        opened.commit(SHARED)
        opened.commit(replace(PLAN, job="local"))
        opened.reserve("job-1", 0, DIGEST)
    found = json.loads(ledger("show", path, "--json").stdout)
    assert found["budget_alone"] == found["epsilon_alone_committed"] == 30
    assert found["epsilon_spent"] < found["epsilon_alone_spent"] < found["epsilon_alone_allocated"]
    words = " ".join(ledger("show", path).stdout.replace("│", " ").split())
    for part in ("the second claim", "alone, allocated", "may collude", "2, noise in 3", "order 3"):
        assert part in words
    out = tmp_path / "export.json"
    ledger("export", path, "--out", out)
    verified = json.loads(ledger("verify", out, "--json").stdout)
    for key in ("epsilon_alone_spent", "epsilon_alone_allocated", "epsilon_alone_committed"):
        assert verified[key] == found[key]
    closed = ledger("close", path, "job-1").stdout
    assert f"; alone, {upper(found['epsilon_alone_allocated'])} → " in closed
    grown = ledger("grow", path, "--size", "300").stdout
    assert "of 10; alone, " in grown and " of 30." in grown


def test_without_a_second_budget_nothing_is_said_of_it(path: Path) -> None:
    used(path)
    found = json.loads(ledger("show", path, "--json").stdout)
    assert found["budget_alone"] is found["epsilon_alone_committed"] is None
    assert "order_alone" not in found["rule"]
    for said in (ledger("show", path).stdout, ledger("close", path, "job-1").stdout):
        assert "alone" not in said and "collude" not in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--epsilon-alone", "9"), "at least the budget 10"),
        (("--epsilon-alone", "nan"), "at least the budget 10"),
        (("--epsilon-alone", "inf"), "finite"),
    ],
)
def test_a_second_budget_that_promises_nothing_makes_no_ledger(
    path: Path, options: tuple[str, ...], words: str
) -> None:
    with pytest.raises(LedgerError, match=words):
        ledger("init", path, *TERMS, *options)
    assert not path.exists()


def test_recover_counts_both_claims(path: Path, tmp_path: Path) -> None:
    witness, backup = tmp_path / "witness.json", tmp_path / "backup.db"
    ledger("init", path, *TERMS, *ALONE, "--witness", witness)
    shutil.copy(path, backup)
    with Ledger.open(path, witness) as opened:
        opened.commit(SHARED)
        alone = opened.epsilon_alone_allocated
    shutil.copy(backup, path)
    said = ledger("recover", path, "--witness", witness).stdout
    assert f"; alone, {upper(alone)} of 30." in said
    assert json.loads(ledger("show", path, "--json").stdout)["epsilon_alone_spent"] == alone
