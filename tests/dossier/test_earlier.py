"""A later dossier goes on from an earlier one: nothing that a ledger paid is forgotten."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpriv.dossier.facts import report_file
from fedpriv.dossier.package import pack, read
from fedpriv.errors import AlteredError, ForkedError, SignerError
from fedpriv.privacy.ledger import administration
from fedpriv.privacy.ledger.chain import Chain
from fedpriv.privacy.ledger.ledger import Ledger, Terms
from fedpriv.privacy.ledger.rules import PlanRule, RdpRule, Rule, SumRule
from fedpriv.privacy.ledger.witness import Witness, seal_key
from tests.dossier.made_runs import (
    COORDINATOR,
    SITE_KEYS,
    Made,
    make_run,
    new_run,
    next_job,
    plan_of,
    proposal,
    texts,
    use,
    without_rows,
    write_run,
)


def test_a_ledger_that_goes_on_is_told_from_one_that_forked(tmp_path: Path) -> None:
    made = make_run(tmp_path / "first", rule=SumRule(1e-6))
    made.export()
    one = next_job(made, tmp_path / "one", "job-one")
    other = next_job(made, tmp_path / "other", "job-other")
    assert any("continues row" in text for text in texts(one, earlier=made.out))
    third = next_job(one, tmp_path / "third", "job-third")
    assert any("continues row" in text for text in texts(third, earlier=one.out))
    for later, earlier in ((third, other), (one, other), (made, one)):
        with pytest.raises(ForkedError, match="does not continue what") as caught:
            later.verify(earlier=earlier.out)
        assert caught.value.exit_code == 4
    another = make_run(tmp_path / "another", names=("east",))
    another.export()
    assert any(
        "none of these ledgers" in text for text in texts(third, "open", earlier=another.out)
    )


def test_a_fresh_ledger_of_a_site_that_was_there_before_is_told(tmp_path: Path) -> None:
    made = make_run(tmp_path / "first")
    made.export()
    later = make_run(tmp_path / "later")
    shutil.rmtree(later.run / "sites" / "north")
    fresh = new_run(tmp_path / "fresh", names=("north",), prefix="fresh")
    shutil.copytree(fresh.run / "sites" / "north", later.run / "sites" / "north")
    later.export()
    found = texts(later, "word", earlier=made.out)
    assert sum("where it has another ledger" in text for text in found) == 1


def test_heads_alone_show_a_fork_where_they_can(tmp_path: Path) -> None:
    made = make_run(tmp_path / "first", rule=SumRule(1e-6))
    made.export()
    one = next_job(made, tmp_path / "one", "job-one")
    other = next_job(made, tmp_path / "other", "job-other")
    for run in (made, one, other):
        without_rows(run)
        run.export()
    assert any("that the ledger continues row" in t for t in texts(one, "open", earlier=made.out))
    for later, earlier in ((one, other), (made, one)):
        with pytest.raises(ForkedError):
            later.verify(earlier=earlier.out)


def test_rows_that_an_earlier_dossier_shows_beyond_its_report_count(tmp_path: Path) -> None:
    """A job that only its newer rows show is forgotten as badly as one of the report."""
    made = make_run(tmp_path / "first", rule=SumRule(1e-6))
    one = next_job(made, tmp_path / "one", "job-one")
    other = next_job(made, tmp_path / "other", "job-other")
    for site in made.names:
        shutil.copy(one.ledger(site), made.ledger(site))
    made.export()
    assert sum("the ledger continues row" in text for text in texts(one, earlier=made.out)) == 2
    with pytest.raises(ForkedError, match="does not continue what"):
        other.verify(earlier=made.out)
    without_rows(other)
    other.export()
    assert any("that the ledger continues" in t for t in texts(other, "open", earlier=made.out))


def test_another_key_than_before_is_a_strangers(tmp_path: Path) -> None:
    """The rows are public: whoever has them could write what follows, and sign it."""
    made = make_run(tmp_path / "first", rule=SumRule(1e-6))
    made.export()
    later, stranger = next_job(made, tmp_path / "later", "job-two"), Ed25519PrivateKey.generate()
    later.sign("north", stranger)
    later.export()
    with pytest.raises(SignerError, match=r"same ledger by .* give it: --site north=KEY"):
        later.verify(earlier=made.out)
    theirs = {"north": stranger.public_key().public_bytes_raw().hex()}
    assert any("continues row" in text for text in texts(later, earlier=made.out, sites=theirs))


def test_an_earlier_dossier_is_itself_checked(tmp_path: Path) -> None:
    made = make_run(tmp_path / "first", rule=SumRule(1e-6))
    made.export()
    one = next_job(made, tmp_path / "one", "job-one")
    files = dict(read(made.out).files)
    told = made.report("north").model_copy(update={"ledger_rows": 3})
    files[report_file("north")] = told.model_dump_json().encode()
    made.out.write_bytes(pack(files, COORDINATOR))
    with pytest.raises(AlteredError, match="does not match its signature"):
        one.verify(earlier=made.out)
    made.out.write_bytes(pack(files, SITE_KEYS["north"]))
    with pytest.raises(SignerError):
        one.verify(earlier=made.out)


LASTING: dict[str, Rule] = {
    "sum": SumRule(1e-6),
    "rdp": RdpRule(8),
}


def before_it_was_lost(folder: Path, rule: Rule, slots: int = 6) -> tuple[Made, Path]:
    """A run whose ledger has a witness, and the ledger as it was before the run, elsewhere."""
    made = Made(folder / "first", proposal(), names=("north",), rounds=slots)
    path, older = made.ledger("north"), folder / "older" / "ledger.db"
    for one in (path, older):
        one.parent.mkdir(parents=True)
    terms = Terms("north-population", 200, "record", 1, 1e-5, 30.0, simulated=True, rule=rule)
    Ledger.create(path, terms, folder / "witness").close()
    for name in ("ledger.db", "witness.key"):
        shutil.copy(path.with_name(name), older.with_name(name))
    with Ledger.open(path, folder / "witness") as ledger:
        use(ledger, plan_of(made.asked), range(slots))
    made.report_on("north")
    write_run(made)
    made.export()
    return made, older


def after_it_was_lost(folder: Path, older: Path) -> Made:
    """A run of another job with a copy that was recovered from the witness."""
    later = Made(folder / "later", proposal(job_id="job-later"), names=("north",))
    shutil.copytree(older.parent, later.ledger("north").parent)
    with administration.recover(later.ledger("north"), folder / "witness") as ledger:
        if not ledger.is_full:
            use(ledger, plan_of(later.asked), range(6))
        else:
            later.rounds = 0
    later.report_on("north")
    write_run(later)
    later.export()
    return later


def forget(folder: Path, share: float = 0.0) -> None:
    """Let a witness say that less was taken, in lines that somebody with the key wrote."""
    told = Witness.read(folder / "witness")
    seen = [
        replace(one, used=tuple(share * amount for amount in one.used), open=(0.0,) * len(one.open))
        for one in told.seen
    ]
    Witness.start(told.path, told.dataset_id, seen, seal_key(folder / "older" / "ledger.db"))


@pytest.mark.parametrize("rule", LASTING)
def test_a_ledger_that_was_recovered_pays_for_what_was_lost(tmp_path: Path, rule: str) -> None:
    made, older = before_it_was_lost(tmp_path, LASTING[rule])
    later = after_it_was_lost(tmp_path, older)
    assert any("all that its plans had taken" in text for text in texts(later, earlier=made.out))
    without_rows(made)
    made.export()
    assert any("that all which a lost copy" in t for t in texts(later, "open", earlier=made.out))


@pytest.mark.parametrize("share", [0.0, 0.99])
@pytest.mark.parametrize("rule", LASTING)
def test_a_ledger_that_forgot_a_job_when_it_was_recovered_is_a_fork(
    tmp_path: Path, rule: str, share: float
) -> None:
    made, older = before_it_was_lost(tmp_path, LASTING[rule])
    forget(tmp_path, share)
    later = after_it_was_lost(tmp_path, older)
    with pytest.raises(ForkedError, match=r"there its plans had taken \(.* is paid for here"):
        later.verify(earlier=made.out)


def test_under_the_rule_plan_a_second_plan_hides_no_first_one(tmp_path: Path) -> None:
    """Both jobs were the one plan for life; each figure by itself is what its job costs."""
    made, older = before_it_was_lost(tmp_path, PlanRule())
    forget(tmp_path)
    later = after_it_was_lost(tmp_path, older)
    assert later.report("north").epsilon_spent == made.report("north").epsilon_spent
    with pytest.raises(ForkedError, match="is paid for here"):
        later.verify(earlier=made.out)


def test_what_the_copy_spent_itself_pays_for_nothing_that_was_lost(tmp_path: Path) -> None:
    made, older = before_it_was_lost(tmp_path, LASTING["sum"])
    forget(tmp_path)
    with Ledger(Chain.open(older)) as ledger:  # a branch that the witness was not told of
        use(ledger, plan_of(proposal(job_id="job-between")), range(6))
    later = after_it_was_lost(tmp_path, older)
    with pytest.raises(ForkedError, match="is paid for here"):
        later.verify(earlier=made.out)


def test_a_plan_that_was_closed_before_it_was_lost_is_no_fork(tmp_path: Path) -> None:
    """Closing gave back what it had not reserved, after the earlier dossier."""
    made, older = before_it_was_lost(tmp_path, LASTING["rdp"], slots=2)
    with Ledger.open(made.ledger("north"), tmp_path / "witness") as ledger:
        before = ledger.epsilon_allocated
        assert administration.close_job(ledger, made.asked.job_id) < before
    told = (tmp_path / "witness").read_bytes()
    later = after_it_was_lost(tmp_path, older)
    assert any("all that its plans had taken" in text for text in texts(later, earlier=made.out))
    (tmp_path / "witness").write_bytes(told)
    forget(tmp_path)
    shutil.rmtree(later.folder)
    with pytest.raises(ForkedError, match="is paid for here"):
        after_it_was_lost(tmp_path, older).verify(earlier=made.out)


def test_a_plan_that_the_copy_closed_pays_no_longer_for_what_was_lost(tmp_path: Path) -> None:
    """Both copies had it open. What the lost one reserved of it, closing the other gives back."""
    made = make_run(tmp_path / "first", rule=LASTING["rdp"], names=("north",), slots=0)
    later = Made(tmp_path / "later", proposal(job_id="job-later"), names=("north",))
    later.ledger("north").parent.mkdir(parents=True)
    shutil.copy(made.ledger("north"), later.ledger("north"))
    with Ledger.open(made.ledger("north")) as ledger:
        use(ledger, plan_of(made.asked), range(6))
        lost = [row.hash for row in ledger.rows()][2:]
    made.rounds = 6
    made.report_on("north")
    write_run(made)
    made.export()
    with Ledger.open(later.ledger("north")) as ledger:
        administration.close_job(ledger, made.asked.job_id)
        with ledger._transaction():
            body = {"rows": len(lost) + 2, "heads": lost, "lost": [0.0]}
            ledger._append("restored", body)
        use(ledger, plan_of(later.asked), range(6))
    later.report_on("north")
    write_run(later)
    later.export()
    with pytest.raises(ForkedError, match="is paid for here"):
        later.verify(earlier=made.out)


def test_rows_that_are_in_no_lost_copy_are_a_fork(tmp_path: Path) -> None:
    """Of two copies that were lost, one is said to have been all."""
    made, older = before_it_was_lost(tmp_path, LASTING["sum"])
    told = Witness.read(tmp_path / "witness")
    seen = [told.seen[0], *(replace(one, hash="d" * 64) for one in told.seen[1:-1]), told.seen[-1]]
    Witness.start(told.path, told.dataset_id, seen, seal_key(older))
    later = after_it_was_lost(tmp_path, older)
    with pytest.raises(ForkedError, match="are of no copy that is lost"):
        later.verify(earlier=made.out)


def test_without_rows_what_was_spent_only_grows(tmp_path: Path) -> None:
    made = make_run(tmp_path / "first", rule=SumRule(1e-6))
    made.export()
    one = next_job(made, tmp_path / "one", "job-one")
    without_rows(one)
    one.export()
    assert any("its rows are not in the dossier" in t for t in texts(one, "open", earlier=made.out))
    least = made.report("north").epsilon_spent
    with Ledger.open(made.ledger("north"), reading=True) as ledger:
        assert ledger.epsilon_spent == least
    made.sign("north", epsilon_spent=one.report("north").epsilon_spent * 1.1)
    files = dict(read(made.out).files)
    files[report_file("north")] = json.dumps(made.report("north").model_dump(mode="json")).encode()
    made.out.write_bytes(pack(files, COORDINATOR))
    with pytest.raises(ForkedError, match=r"there epsilon_spent is .* ledger export"):
        one.verify(earlier=made.out)


def test_an_earlier_dossier_whose_rows_are_of_another_report_is_refused(tmp_path: Path) -> None:
    made = make_run(tmp_path / "first", rule=SumRule(1e-6))
    made.export()
    one = next_job(made, tmp_path / "one", "job-one")
    made.sign("north", ledger_head="ef" * 32)
    files = dict(read(made.out).files)
    files[report_file("north")] = json.dumps(made.report("north").model_dump(mode="json")).encode()
    made.out.write_bytes(pack(files, COORDINATOR))
    with pytest.raises(ForkedError, match="other rows than its report"):
        one.verify(earlier=made.out)
