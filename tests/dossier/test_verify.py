"""What a dossier states is so, or it is refused with the reason."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from fedpriv import __version__
from fedpriv.auditing.result import Audit, Part, World
from fedpriv.dossier.export import files_of
from fedpriv.dossier.facts import ANSWERS, FACTS, PAGE, ledger_file, report_file
from fedpriv.dossier.package import pack, read
from fedpriv.dossier.sums import Term, epsilon_of
from fedpriv.dossier.third import third_accountant
from fedpriv.dossier.verify import own_page
from fedpriv.errors import (
    AccountingError,
    AlteredError,
    ConfigError,
    DossierError,
    FedprivError,
    ForkedError,
    LedgerCorruptError,
    OtherAdapterError,
    SignerError,
    UnderstatedError,
)
from fedpriv.files import canonical_json, sha256
from fedpriv.models.config import ModelSection
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.rules import PlanRule, RdpRule, Rule, SumRule
from fedpriv.report import budget, received
from fedpriv.secure_sum.roster import Roster, RosterEntry
from tests.dossier import made_runs
from tests.dossier.made_runs import (
    COORDINATOR,
    HASH,
    JOB,
    LOOKS,
    ROSTER,
    SHARED,
    SITE_KEYS,
    Made,
    chained,
    make_run,
    plan_of,
    proposal,
    public,
    texts,
    use,
    with_page,
    without_rows,
    write_run,
)
from tests.test_signed_proposal import STATEMENT

FIGURES = [f"epsilon{alone}_{key}" for alone in ("", "_alone") for key in ("spent", "allocated")]
ENDS = ("spent", "allocated", "committed")
COMMITTED = ["epsilon_committed", "epsilon_alone_committed"]
RULES: list[Rule] = [PlanRule(), RdpRule(8), SumRule(1e-6)]


def repack(made: Made, *, without: str = "", **changed: bytes) -> None:
    """Sign other files, as a coordinator who lies."""
    files = {name: data for name, data in read(made.out).files.items() if name != without}
    made.out.write_bytes(pack({**files, **changed}, COORDINATOR))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_under_every_rule_it_holds_by_both_accountants(tmp_path: Path, rule: Rule) -> None:
    made = make_run(tmp_path, rule=rule, slots=4)
    made.export()
    third = third_accountant()
    assert third is not None  # it is among what the tests need
    found = texts(made, third=third)
    assert any(f"by the rule '{rule.name}'" in text for text in found)
    assert sum(text.startswith("dp-accounting agrees: spent") for text in found) == 2
    assert sum(text.startswith("our accountant comes to the same") for text in found) == 2


def test_a_jobs_share_of_a_budget_for_life_is_what_the_rows_come_to(tmp_path: Path) -> None:
    made = make_run(tmp_path, rule=RdpRule(8))
    life = made.report("north").life
    assert life is not None and life.job == life.taken > 0
    made.export()
    for changed in ({"job": life.job / 2}, {"taken": 0.9}, {"more": life.more + 2}):
        made.sign("north", life=life.model_copy(update=changed))
        with pytest.raises(UnderstatedError, match="says of its budget for life: It takes"):
            made.export()
    made.sign("north", life=None)  # as an older version reports
    made.export()


@pytest.mark.parametrize("rule", [PlanRule(), RdpRule(8, 4), SumRule(1e-6)], ids=lambda r: r.name)
def test_both_claims_of_a_secure_sum_hold(tmp_path: Path, rule: Rule) -> None:
    names = ("north", "south", "east")
    made = make_run(tmp_path, rule=rule, asked=proposal(shared=SHARED), slots=4, names=names)
    made.export()
    found = texts(made, third=third_accountant())
    assert sum("alone, spent" in text for text in found) == 3
    assert sum("alone committed" in text for text in found) == 3
    claims = json.loads(read(made.out).files[ANSWERS])["claims"]
    assert [claim["name"] for claim in claims] == ["secure sum", "alone"]
    with_trust, alone = (claim["sites"][0]["epsilon"] for claim in claims)
    assert with_trust < alone or rule.name != "plan"


@pytest.mark.parametrize("rows", [True, False], ids=["rows", "report-alone"])
@pytest.mark.parametrize("figure", FIGURES)
def test_an_epsilon_that_its_site_understates_is_caught(
    tmp_path: Path, figure: str, rows: bool
) -> None:
    made = make_run(tmp_path, asked=proposal(shared=SHARED), slots=6)
    prefix = figure.rpartition("_")[0]
    lower = getattr(made.report("south"), figure) * 0.9
    smaller = dict.fromkeys((f"{prefix}_spent", figure), lower)
    made.sign("south", **smaller)
    if not rows:
        without_rows(made)
    with pytest.raises(UnderstatedError, match="site 'south' states epsilon") as caught:
        made.export()
    assert caught.value.exit_code == 4
    assert not made.out.exists()


@pytest.mark.parametrize("figure", COMMITTED)
def test_a_claim_that_is_understated_is_caught(tmp_path: Path, figure: str) -> None:
    made = make_run(tmp_path, rule=RdpRule(8, 4), asked=proposal(shared=SHARED), slots=2)
    made.sign("south", **{figure: getattr(made.report("south"), figure) * 0.99})
    with pytest.raises(UnderstatedError, match=figure):
        made.export()
    without_rows(made)
    made.sign("south", **{figure: 0.0})
    with pytest.raises(UnderstatedError, match="each has to be within the next"):
        made.export()


def test_what_our_accountant_would_miss_the_other_one_catches(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    made.export()

    def stricter(term: Term) -> float:
        return 1.05 * epsilon_of(term)

    with pytest.raises(UnderstatedError, match="dp-accounting comes to"):
        made.verify(third=stricter)

    def unable(term: Term) -> float:
        raise AccountingError("There is no room.")

    left = texts(made, "open", third=unable)
    assert sum("was not asked of epsilon_committed: There is no room" in text for text in left) == 2
    assert texts(made, "open", third=None)[0].startswith("that dp-accounting comes to the same")


@pytest.mark.parametrize("rows", [True, False], ids=["rows", "report-alone"])
def test_a_missing_event_is_noticed(tmp_path: Path, rows: bool) -> None:
    """A site leaves out a step, and states the ε of the others."""
    made = make_run(tmp_path, rule=RdpRule(8))
    shorter = make_run(tmp_path / "shorter", rule=RdpRule(8), slots=5)
    told = shorter.report("south")
    keep = ("ledger_head", "ledger_rows", "job", "site", "dataset_id")
    changes = {k: getattr(told, k) for k in type(told).model_fields if k not in keep}
    made.sign("south", **{k: v for k, v in changes.items() if k != "signature"})
    if not rows:
        without_rows(made)
    with pytest.raises(UnderstatedError, match=r"events are missing"):
        made.export()


def test_rows_that_show_more_steps_of_the_job_than_an_older_report_are_noticed(
    tmp_path: Path,
) -> None:
    made = make_run(tmp_path, rule=RdpRule(8), slots=4)
    with Ledger.open(made.ledger("north")) as ledger:
        use(ledger, plan_of(made.asked), range(4, 6))
    with pytest.raises(UnderstatedError, match=r"have 6 steps of job .* where it has 4"):
        made.export()


def test_a_reply_that_no_step_was_paid_for_is_noticed(tmp_path: Path) -> None:
    made = make_run(tmp_path, slots=5)
    made.export()
    made.rounds = 6
    write_run(made)
    with pytest.raises(UnderstatedError, match=r"counts 5 steps .* replies of 6"):
        made.export()


def test_looks_are_counted_and_priced(tmp_path: Path) -> None:
    made = make_run(tmp_path, asked=proposal(evaluation=LOOKS))
    made.export()
    [north, _] = json.loads(read(made.out).files[FACTS])["evaluation"]["prices"]
    assert north["epsilon"] == pytest.approx(made.report("north").epsilon_committed)
    assert north["without"] < north["epsilon"]
    facts = json.loads(read(made.out).files[FACTS])
    facts["evaluation"]["prices"][0]["without"] *= 1.1
    with pytest.raises(FedprivError, match="another ε than it states"):
        signed_anew(made, facts)


def signed_anew(made: Made, facts: dict[str, Any], **files: bytes) -> None:
    """Verify a dossier in which a coordinator changed facts, with the page that belongs to them."""
    changed = {**read(made.out).files, FACTS: json.dumps(facts).encode(), **files}
    made.out.write_bytes(pack(with_page(changed, made.out), COORDINATOR))
    made.verify()


@pytest.mark.parametrize("name", [PAGE, ANSWERS])
def test_a_page_that_shows_something_else_is_refused(tmp_path: Path, name: str) -> None:
    made = make_run(tmp_path)
    made.export()
    assert "dossier.html and answers.json are what the other files give" in texts(made)
    repack(made, **{name: read(made.out).files[name].replace(b"30.0", b"10.0")})
    with pytest.raises(AlteredError, match=f"{name} is not what the other files give"):
        made.verify()


def test_a_page_that_is_said_to_be_of_another_version_is_not_to_be_read(tmp_path: Path) -> None:
    """Whoever lies about the version may show anything there, and be believed by who opens it."""
    made = make_run(tmp_path)
    made.export()
    honest = read(made.out).files[PAGE]
    facts = json.loads(read(made.out).files[FACTS])
    facts["written_by"]["version"] = "0.0.9"
    repack(made, **{FACTS: json.dumps(facts).encode(), PAGE: b"<script>lies()</script>"})
    [warned] = [text for text in texts(made, "open") if "Don't read them" in text]
    assert "dossier.html" in warned and "0.0.9" in warned
    assert not any("dossier.html" in text for text in texts(made))
    assert own_page(made.out) == honest.replace(
        f"<dd>fedpriv {__version__}".encode(), b"<dd>fedpriv 0.0.9"
    )


def test_nothing_from_a_file_looks_like_a_line_of_its_own(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    made.export()
    facts = json.loads(read(made.out).files[FACTS])
    facts["written_by"]["version"] = "0.0.9.\n  ✓ all is well\x1b[8m\u202e"
    repack(made, **{FACTS: json.dumps(facts).encode()})
    found = [finding.text for finding in made.verify()]
    assert any(r"0.0.9.\n ✓ all is well\x1b[8m" in text for text in found)
    assert all(text.isprintable() for text in found)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_dossier_that_is_about_no_weights_is_refused(tmp_path: Path, name: str) -> None:
    made = make_run(tmp_path)
    made.export()
    facts = json.loads(read(made.out).files[FACTS])
    del facts["adapter"][name]
    with pytest.raises(DossierError, match=f"no digest of {name}"):
        signed_anew(made, facts)


def test_looks_that_are_said_to_cost_nothing_are_refused(tmp_path: Path) -> None:
    made = make_run(tmp_path, asked=proposal(evaluation=LOOKS))
    made.export()
    facts = json.loads(read(made.out).files[FACTS])
    facts["evaluation"]["steps"] = 0
    with pytest.raises(UnderstatedError, match="counts 0 steps of looks"):
        signed_anew(made, facts)


def test_events_without_noise_have_no_epsilon_that_is_enough(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    without_rows(made)
    [event] = made.report("north").events
    made.sign("north", events=(event.model_copy(update={"noise_multiplier": 0.0}),))
    with pytest.raises(UnderstatedError, match=r"its own events cost inf"):
        made.export()


def test_a_delta_at_which_anything_goes_is_refused(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    without_rows(made)
    made.sign("north", delta=1 / 200)
    with pytest.raises(DossierError, match=r"states δ = 0\.005 for 200 units"):
        made.export()


def test_a_file_that_two_readers_read_differently_is_refused(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    (made.run / "audit.json").write_bytes(audit())
    made.export()
    files = read(made.out).files
    for name in (FACTS, report_file("north"), "audit.json"):
        key = b'"epsilon_committed": 0.01,' if "sites" in name else b'"format": 1,'
        with pytest.raises(DossierError, match=f"{name} can be read in two ways"):
            signed_anew(made, json.loads(files[FACTS]), **{name: b"{" + key + files[name][1:]})
        made.export()
    name = ledger_file("north")
    more = canonical_json({**json.loads(files[name]), "epsilon": 0.01})
    with pytest.raises(DossierError, match="something beside the rows"):
        signed_anew(made, json.loads(files[FACTS]), **{name: more})


def test_that_nothing_is_newer_and_nobody_else_took_part_is_the_coordinators_word(
    tmp_path: Path,
) -> None:
    """An older report, with fewer rounds counted and a site left out, holds as well as any."""
    made = make_run(tmp_path, rule=RdpRule(8), slots=2, names=("north",))
    made.export()
    found = texts(made, "word")
    assert any("newest report is this one, up to row 6" in text for text in found)
    assert any("answered in 2 rounds and no more" in text for text in found)
    assert "that no site took part but those that are named here" in found
    assert not any("began at" in text for text in found)


@pytest.mark.parametrize("how", ["continued", "merged"])
def test_where_a_job_began_is_the_coordinators_word(
    tmp_path: Path, how: Literal["continued", "merged"]
) -> None:
    digest = "sha256:" + "b" * 64
    begun = proposal(model=ModelSection(begin="adapter", begin_as=how), begin_digest=digest)
    made = make_run(tmp_path, asked=begun)
    made.export()
    found = texts(made, "word")
    assert any(f"began at, {digest}, was made of public data" in one for one in found)
    merged = any(f"the adapter {digest} merged into it, of which" in one for one in found)
    assert merged is (how == "merged")


def test_a_proposal_that_no_site_accepted_is_refused(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    made.export()
    facts = json.loads(read(made.out).files[FACTS])
    facts["proposal"]["seed"] = 7
    with pytest.raises(DossierError, match="not the one that the site accepted"):
        signed_anew(made, facts)
    facts["proposal"]["base_digest"] = "sha256:" + "b" * 64
    with pytest.raises(DossierError, match="its base model is"):
        signed_anew(made, facts)


def test_without_rows_a_proposal_is_compared_with_the_events(tmp_path: Path) -> None:
    made = make_run(tmp_path, slots=4)
    without_rows(made)
    made.export()
    facts = json.loads(read(made.out).files[FACTS])
    facts["proposal"]["privacy"]["sample_rate"] = 0.01
    with pytest.raises(DossierError, match=r"4 steps at rates \[0\.1\].* 6 at 0\.01"):
        signed_anew(made, facts)
    facts["proposal"]["privacy"]["sample_rate"] = 0.1
    facts["proposal"]["steps"] = 3
    with pytest.raises(DossierError, match=r"has 3 at 0\.1"):
        signed_anew(made, facts)


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_without_rows_the_events_have_the_rate_of_the_proposal(tmp_path: Path, rate: float) -> None:
    made = make_run(tmp_path, slots=4)
    without_rows(made)
    [event] = made.report("north").events
    made.sign("north", events=(event.model_copy(update={"sample_rate": rate}),))
    with pytest.raises(DossierError, match=rf"4 steps at rates \[{rate}\].* 6 at 0\.1"):
        made.export()


def test_without_rows_all_events_have_the_same_noise(tmp_path: Path) -> None:
    made = make_run(tmp_path, slots=4)
    without_rows(made)
    [event] = made.report("north").events
    first, more = event.model_copy(update={"count": 2}), {"round": 3, "noise_multiplier": 9.0}
    made.sign("north", events=(first, first.model_copy(update=more)))
    with pytest.raises(DossierError, match=r"noise .*\[2\.0, 9\.0\].*all with the same noise"):
        made.export()


def test_another_job_or_site_is_refused(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    made.export()
    files = read(made.out).files
    swapped = {
        report_file("north"): files[report_file("south")],
        ledger_file("north"): files[ledger_file("south")],
    }
    with pytest.raises(DossierError, match=r"of 'south' and of job"):
        signed_anew(made, json.loads(files[FACTS]), **swapped)


def test_rows_that_were_edited_or_left_out_are_refused(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    made.export()
    files = read(made.out).files
    facts, name = json.loads(files[FACTS]), ledger_file("north")
    document = json.loads(files[name])
    document["rows"][1]["body"]["noise_multiplier"] = 3.0
    with pytest.raises(LedgerCorruptError, match="row 2 was edited"):
        signed_anew(made, facts, **{name: canonical_json(document)})
    document = json.loads(files[name])
    del document["rows"][5]
    with pytest.raises(LedgerCorruptError, match="one before it is missing"):
        signed_anew(made, facts, **{name: canonical_json(document)})


def test_a_ledger_that_its_site_did_not_sign_is_refused(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    made.export()
    files = read(made.out).files
    facts, name = json.loads(files[FACTS]), ledger_file("north")
    rows = json.loads(files[name])["rows"]
    rows[1]["body"]["noise_multiplier"] = 3.0
    with pytest.raises(ForkedError, match="of another branch"):
        signed_anew(made, facts, **{name: chained(rows)})
    with pytest.raises(ForkedError, match="some are missing"):
        signed_anew(made, facts, **{name: chained(json.loads(files[name])["rows"][:-2])})


def test_more_than_a_rule_has_is_refused_whoever_signed_it(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    made.export()
    files = read(made.out).files
    facts, name = json.loads(files[FACTS]), ledger_file("north")
    rows = json.loads(files[name])["rows"]
    rows[0]["body"]["budget"] = 0.5
    forged = chained(rows)
    last = json.loads(forged)["rows"][-1]["hash"]
    made.sign("north", ledger_head=last, budget=0.5)
    report = (made.run / "sites" / "north" / "budget.json").read_bytes()
    with pytest.raises(LedgerCorruptError, match="taken more than its rule"):
        signed_anew(made, facts, **{name: forged, report_file("north"): report})


@pytest.mark.parametrize(
    ("field", "value"),
    [("delta", 1e-6), ("declared_size", 2000), ("budget", 60.0), ("unit", "patient")],
)
def test_terms_that_are_not_the_ledgers_are_refused(
    tmp_path: Path, field: str, value: object
) -> None:
    made = make_run(tmp_path)
    made.sign("north", **{field: value})
    with pytest.raises(DossierError, match=f"states {field} = "):
        made.export()


def test_strict_numerics_that_its_plans_do_not_have_are_refused(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    made.sign("north", numerics=budget.STRICT_NUMERICS)
    with pytest.raises(
        DossierError, match="its numerics are strict, and its ledger has plans of other ones"
    ):
        made.export()


def test_a_trust_that_its_sums_do_not_have_is_refused(tmp_path: Path) -> None:
    made = make_run(tmp_path, asked=proposal(shared=SHARED))
    made.sign("north", max_colluding=2)
    with pytest.raises(UnderstatedError, match="if 2 sites collude"):
        made.export()


def test_keys_are_compared_with_those_that_are_given(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    made.export()
    keys = {name: public(SITE_KEYS[name]) for name in made.names}
    found = texts(made, signer=public(COORDINATOR), sites=keys)
    assert "that is the key that was given for the coordinator" in found
    assert found.count("that is the key that was given for the site") == 2
    assert not any("'s key: give" in text for text in texts(made, "word", sites=keys)[1:])
    with pytest.raises(SignerError, match="site 'south' is signed by key") as caught:
        made.verify(sites={"south": keys["north"]})
    assert caught.value.exit_code == 3
    with pytest.raises(SignerError):
        made.verify(signer=keys["north"])
    with pytest.raises(ConfigError, match="is of no site"):
        made.verify(sites={"west": keys["north"]})


def test_a_secure_sum_is_of_the_roster_that_is_given(tmp_path: Path) -> None:
    made = make_run(tmp_path, asked=proposal(shared=SHARED))
    made.export()
    assert any("which sites may be in its sums" in text for text in texts(made, "open"))
    found = texts(made, roster=ROSTER)
    assert any(f"the roster that was given, {ROSTER.digest}" in text for text in found)
    assert found.count("that is the key that was given for the site") == 2
    assert any(
        "that east of the roster took no part" in t for t in texts(made, "word", roster=ROSTER)
    )
    other = Roster.of(ROSTER.entries[:2])
    with pytest.raises(SignerError, match="Sites of another roster"):
        made.verify(roster=other)


def test_a_site_that_is_in_no_roster_of_a_secure_sum_is_refused(tmp_path: Path) -> None:
    others = Roster.of(
        RosterEntry(name=name, public_key=public(SITE_KEYS[key]))
        for name, key in (("north", "north"), ("south-clinic", "south"))
    )
    shared = SHARED.model_copy(update={"sites": 2, "roster": others.digest})
    made = make_run(tmp_path, asked=proposal(shared=shared))
    made.export()
    with pytest.raises(SignerError, match="south is not in the roster"):
        made.verify(roster=others)


def test_a_report_that_was_changed_after_it_was_signed_is_refused(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    path = made.run / "sites" / "north" / "budget.json"
    received.write(made.report("north").model_copy(update={"accountant": "none"}), path)
    with pytest.raises(AlteredError, match="does not match its signature"):
        made.export()
    received.write(made.report("north").model_copy(update={"signature": None}), path)
    with pytest.raises(AlteredError, match="is not signed"):
        made.export()


def test_what_is_not_private_is_refused_by_both(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    made.export()
    made.sign("north", private=False)
    with pytest.raises(FedprivError, match="NOT PRIVATE"):
        made.export()
    facts = json.loads(read(made.out).files[FACTS])
    report = (made.run / "sites" / "north" / "budget.json").read_bytes()
    with pytest.raises(DossierError, match="NOT PRIVATE: it claims nothing"):
        signed_anew(made, facts, **{report_file("north"): report})


def test_another_adapter_is_refused(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    made.export()
    own = tmp_path / "adapter"
    shutil.copytree(made.run / "adapter", own)
    (own / "README.md").write_text("Another card.")
    assert any("is the adapter that it is about" in text for text in texts(made, adapter=own))
    (own / "extra.bin").write_bytes(b"")
    assert any("extra.bin" in text for text in texts(made, "word", adapter=own))
    (own / "adapter_model.safetensors").write_bytes(b"weights of another adapter")
    with pytest.raises(OtherAdapterError, match=r"adapter_model\.safetensors: is not the file"):
        made.verify(adapter=own)
    (own / "adapter_model.safetensors").unlink()
    with pytest.raises(OtherAdapterError, match="no such file"):
        made.verify(adapter=own)
    with pytest.raises(ConfigError, match="can't be read"):
        made.verify(adapter=tmp_path / "nowhere")


def test_rows_without_a_report_are_refused(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    made.export()
    files = dict(read(made.out).files)
    facts = json.loads(files[FACTS])
    facts["sites"][0]["report"] = False
    del files[report_file("north")]
    made.out.write_bytes(pack({**files, FACTS: json.dumps(facts).encode()}, COORDINATOR))
    with pytest.raises(DossierError, match="no report on them"):
        made.verify()


def test_one_ledger_at_two_sites_is_refused(tmp_path: Path) -> None:
    made = make_run(tmp_path, names=("north",))
    shutil.copytree(made.run / "sites" / "north", made.run / "sites" / "south")
    made.sign("south", site="south")
    with pytest.raises(ForkedError, match="north and south report of one ledger"):
        made.export()


def test_of_a_site_without_a_report_nothing_is_claimed(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    shutil.rmtree(made.run / "sites" / "south")
    made.export()
    assert any("nothing is claimed for its people" in text for text in texts(made, "open"))
    assert b"No budget report from south" in read(made.out).files[PAGE]


def test_a_ledger_that_lost_a_copy_is_told(tmp_path: Path) -> None:
    """What the lost copy took counts, and is the site's word."""
    made = make_run(tmp_path, rule=SumRule(1e-6), slots=4)
    for site in made.names:
        with Ledger.open(made.ledger(site)) as ledger:
            fields = {"rows": 99, "heads": ["f" * 64], "lost": [2.0, 1e-6]}
            with ledger._transaction():
                ledger._append("restored", fields)
        made.report_on(site)
    made.export()
    assert sum("what a lost copy" in text for text in texts(made, "word")) == 2
    lower = made.report("north").epsilon_allocated - 1
    made.sign("north", epsilon_allocated=lower, epsilon_spent=lower)
    with pytest.raises(UnderstatedError):
        made.export()


def audit(found: bool = True, claimed: float = 4.0, **changes: Any) -> bytes:
    """What an audit left; `found` says whether it saw a fault that was made on purpose."""
    claim = World(
        name="as-claimed",
        private=True,
        epsilon=4.0,
        epsilon_lower=0.7,
        found=False,
        wanted=False,
        trials={"jobs": 9},
    )
    twin = claim.model_copy(
        update={
            "name": "half-noise",
            "epsilon": 9.0,
            "epsilon_lower": 5.0,
            "found": found,
            "wanted": True,
        }
    )
    part = Part(
        name="pipeline",
        epsilon=claimed,
        delta=1e-5,
        confidence=0.95,
        settings={},
        worlds=(claim, twin),
        seconds=1.0,
    )
    told = Audit(
        command="fedpriv audit",
        started=datetime(2026, 1, 2, tzinfo=UTC),
        seconds=1.0,
        versions={},
        job="made-up",
        job_id=JOB,
        method="dp-lora",
        base_digest=HASH,
        config_digest=HASH,
        data_is_public=True,
        not_private=True,
        charged={},
        seeds={},
        parts=(part, part.model_copy(update={"name": "exposure", "worlds": ()})),
        refused=(),
    )
    return told.model_copy(update=changes).model_dump_json().encode()


def test_an_audit_is_in_it_and_says_what_attacks_proved(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    (made.run / "audit.json").write_bytes(audit())
    made.export()
    files = read(made.out).files
    assert files["audit.json"] == audit()
    assert b"not audited" not in files[PAGE] and b"<td>0.7</td>" in files[PAGE]
    assert b"missed, so" not in files[PAGE]
    assert any(text.endswith("than it says is claimed: pipeline 0.7 of 4") for text in texts(made))
    (made.run / "audit.json").write_bytes(audit(job_id=None))
    made.export()
    assert any("it names none" in text for text in texts(made, "word"))
    (made.run / "audit.json").write_bytes(audit(found=False))
    made.export()
    assert any("it missed one that was made on purpose" in text for text in texts(made, "word"))
    assert b"missed, so it says nothing" in read(made.out).files[PAGE]


def test_an_audit_that_breaks_the_claim_or_is_of_another_job_is_refused(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    for content, error, words in (
        (audit(claimed=0.6), UnderstatedError, "proves that ε is at least 0.7"),
        (audit(job_id="another"), DossierError, "its audit is of job 'another'"),
        (audit(base_digest="sha256:" + "b" * 64), DossierError, "its audit is of job"),
        (b"{", ConfigError, "audit.json"),
        (b"{}", ConfigError, "audit.json"),
    ):
        (made.run / "audit.json").write_bytes(content)
        with pytest.raises(error, match=words):
            made.export()


def test_files_that_belong_to_nothing_or_are_missing_are_refused(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    made.export()
    for name in (FACTS, ANSWERS, PAGE, report_file("north"), ledger_file("south")):
        made.export()
        repack(made, without=name)
        with pytest.raises(FedprivError, match=name):
            made.verify()
    made.export()
    repack(made, **{"more.json": b"{}"})
    with pytest.raises(DossierError, match=r"more\.json"):
        made.verify()


def test_it_is_checked_where_there_is_no_run_and_no_torch(tmp_path: Path) -> None:
    made = make_run(tmp_path / "made")
    made.export()
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.move(made.out, alone / "it.zip")
    shutil.rmtree(made.folder)
    code = (
        "import sys; sys.modules['dp_accounting'] = None; sys.argv[1:] = ['verify', 'it.zip']\n"
        "from fedpriv.cli import app\n"
        "app(standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'peft', 'flwr'} & {m for m in sys.modules}\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=alone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "as its rows come to" in done.stdout


def test_the_private_folder_is_not_read(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    (made.run / "private" / "north").mkdir(parents=True)
    (made.run / "private" / "north" / "report.key").write_text("a secret")
    assert not any(b"a secret" in data for data in files_of(made.run).values())
    assert JOB in files_of(made.run)[FACTS].decode()
    assert sha256(files_of(made.run)[PAGE]) == sha256(files_of(made.run)[PAGE])


def test_where_an_adapter_has_its_base_is_no_part_of_it(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    config = made.run / "adapter" / "adapter_config.json"
    config.write_text('{"r": 4, "base_model_name_or_path": "base"}')
    made.export()
    config.write_text('{\n "base_model_name_or_path": "/models/base", "r": 4}\n')
    made.verify(adapter=made.run / "adapter")
    for other in ('{"r": 8}', "[]", "{"):
        config.write_text(other)
        with pytest.raises(OtherAdapterError, match=r"adapter_config\.json"):
            made.verify(adapter=made.run / "adapter")


def test_with_rows_too_a_claim_is_within_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that no ledger would have: their plan costs a little more than the budget."""
    plan = made_runs.plan_of(proposal())
    noise = calibrate_noise(30.2, 1e-5, plan.sample_rate, plan.steps)
    loud = replace(plan, noise_multiplier=noise)
    assert loud.epsilon(1e-5) > 30.01
    monkeypatch.setattr(made_runs, "plan_of", lambda *_: loud)
    with monkeypatch.context() as patched:
        patched.setattr("fedpriv.privacy.ledger.history.History.allocated_with", lambda *_: (0, 0))
        made = made_runs.new_run(tmp_path / "run", slots=6, names=("north",))
    with pytest.raises(UnderstatedError, match="each has to be within the next"):
        made.export()


def test_who_approved_and_what_for_goes_with_the_rows(tmp_path: Path) -> None:
    """By a keyed digest, and by name where the person agreed; whose word that is, is said."""
    made = make_run(tmp_path, asked=proposal(statement=STATEMENT))
    given = [
        {"person": "a" * 64, "reason": "ethics"},
        {"person": "b" * 64, "reason": "usual", "name": "Bea <Ito>", "text": "as in spring"},
    ]
    with Ledger.open(made.ledger("north")) as ledger:
        ledger.order([("approved", {"job": JOB, "approvals": given})], lambda history: None)
    made.report_on("north")
    found = [finding for finding in made.export() if "approved the job" in finding.text]
    assert [(finding.kind, finding.site) for finding in found] == 2 * [("word", "north")]
    assert "a" * 64 in found[0].text and "'ethics'" in found[0].text
    assert "Bea <Ito>" in found[1].text
    page = own_page(made.out).decode()
    for words in (
        "a person who stays unnamed, reason ethics",
        "Bea &lt;Ito&gt;, reason usual: as in spring",
        "What it was for",
        "Shorter discharge letters",
    ):
        assert words in page
    assert "NOT" not in page.split("What it was for")[0]
