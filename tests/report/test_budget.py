"""The budget report: signed as a whole, and read back as written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedpriv.errors import ConfigError, LedgerCorruptError
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.report import budget, received
from fedpriv.report.budget import BudgetEvent, BudgetReport, events_of

KEY = Ed25519PrivateKey.generate()
REPORT = budget.sign(
    BudgetReport(
        site="cardiology",
        dataset_id="5d17ef8a4dacc7ae",
        unit="patient_nbr",
        max_records_per_unit=4,
        delta=1e-5,
        declared_size=250,
        accountant="PRV, upper bound, both directions",
        assumptions=("Sampling is secret.",),
        private=True,
        simulated=False,
        epsilon_spent=2.1718281828,
        guarantee="the one plan of this ledger in full",
        epsilon_allocated=3.9,
        epsilon_committed=3.9,
        budget=10.0,
        events=(
            BudgetEvent(
                job="four-hospitals", round=1, sample_rate=0.05, noise_multiplier=1.2, count=60
            ),
        ),
        ledger_head="ab" * 32,
        ledger_rows=123,
        job="four-hospitals",
    ),
    KEY,
)
KEYS = {
    *("format", "site", "dataset_id", "unit", "max_records_per_unit", "relation", "delta"),
    *("declared_size", "rule", "accountant", "timing", "numerics", "trust_model", "assumptions"),
    *("private", "simulated", "epsilon_spent", "epsilon_committed", "budget", "events"),
    *("guarantee", "epsilon_allocated"),
    *("ledger_head", "ledger_rows", "job", "signature"),
}


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found = []
    for key, value in items:
        nested = isinstance(value, (dict, list))
        found += leaves(value, (*path, key)) if nested else [(*path, key)]
    return found


def another(value: Any) -> st.SearchStrategy[Any]:
    """Values of the same type that are not `value`."""
    if isinstance(value, bool):
        return st.just(not value)
    if isinstance(value, str) and len(value) >= 64 and set(value) <= set("0123456789abcdef"):
        return st.binary(min_size=len(value) // 2, max_size=len(value) // 2).map(bytes.hex)
    kinds = {
        int: st.integers(0, 10**9),
        float: st.floats(0, 1, allow_nan=False),
        str: st.text('aZ09 -_.ßε\n"', min_size=1, max_size=40),
    }
    return kinds[type(value)].filter(lambda other: other != value)


def test_file_has_exactly_the_documented_keys_and_reads_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "budget.json"
    received.write(REPORT, path)
    assert set(json.loads(path.read_text())) == KEYS
    assert budget.read(path) == REPORT
    received.verify(budget.read(path))


@given(st.data())
def test_changing_any_value_breaks_the_signature(data: st.DataObject) -> None:
    tree = REPORT.model_dump(mode="json")
    *parents, last = data.draw(st.sampled_from(leaves(tree)))
    node = tree
    for key in parents:
        node = node[key]
    node[last] = data.draw(another(node[last]).filter(lambda value: value != node[last]))
    unchecked = BudgetReport.model_construct(
        **{
            **tree,
            "events": tuple(BudgetEvent.model_construct(**event) for event in tree["events"]),
            "assumptions": tuple(tree["assumptions"]),
            "signature": budget.Signature.model_construct(**tree["signature"]),
        }
    )
    if [*parents, last] == ["signature", "algorithm"]:  # not signed, but there is only one
        with pytest.raises(ValueError, match="ed25519"):
            BudgetReport.model_validate(tree)
        return
    with pytest.raises(LedgerCorruptError, match="does not match its signature"):
        received.verify(unchecked)


@pytest.mark.parametrize("field", ["events", "assumptions"])
def test_dropping_a_list_breaks_the_signature(field: str) -> None:
    with pytest.raises(LedgerCorruptError):
        received.verify(REPORT.model_copy(update={field: ()}))


def test_of_too_many_runs_equal_steps_are_counted_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that asks for every other slot can't make a report too large to be written."""
    plan = Plan("job", "dp-lora", 0.1, 1.5, 1.0, 20, proposal="")
    slots = [0, 2, 4, 5, 8]
    found = [(one.round, one.count) for one in events_of(plan, slots)]
    assert found == [(1, 1), (3, 1), (5, 2), (9, 1)]
    monkeypatch.setattr(budget, "MOST_EVENTS", 3)
    [only] = events_of(plan, slots)
    assert (only.round, only.count) == (1, 5)
    assert (only.job, only.sample_rate, only.noise_multiplier) == ("job", 0.1, 1.5)


def test_an_unsigned_report_does_not_verify() -> None:
    with pytest.raises(LedgerCorruptError, match="is not signed"):
        received.verify(REPORT.model_copy(update={"signature": None}))


def test_a_report_signed_anew_is_told_by_its_key() -> None:
    forged = budget.sign(
        REPORT.model_copy(update={"epsilon_committed": 0.1}), Ed25519PrivateKey.generate()
    )
    received.verify(forged)
    with pytest.raises(LedgerCorruptError, match="not by the expected"):
        received.verify(forged, KEY.public_key().public_bytes_raw().hex())
    received.verify(REPORT, KEY.public_key().public_bytes_raw().hex().upper())


ALONE: dict[str, Any] = {
    "epsilon_alone_spent": 5.5,
    "epsilon_alone_allocated": 9.25,
    "epsilon_alone_committed": 9.25,
    "budget_alone": 25.0,
    "max_colluding": 2,
}


def test_a_report_with_one_claim_is_signed_as_it_always_was() -> None:
    """Key, fields and signature of one that was written before there were two claims."""
    old = BudgetReport(
        site="cardiology", dataset_id="0" * 32, unit="record", max_records_per_unit=4, delta=1e-5,
        declared_size=250, accountant="PRV", private=True, simulated=False,
        guarantee="the one plan", epsilon_spent=2.5, epsilon_allocated=3.9, epsilon_committed=3.9,
        budget=10.0, ledger_head="ab" * 32, ledger_rows=123, job="four",
        events=(
            BudgetEvent(job="four", round=1, sample_rate=0.05, noise_multiplier=1.2, count=60),
        ),
    )  # fmt: skip
    value = (
        "20a1ca761487782695859797edd3d2d293fb00d060d8f3bb4c42193fa9a1427b"
        "788e8cb2d0af30d29a76dc462ee4d71817bf798df2d7b51d0ec87c1bb804e705"
    )
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    signed = budget.sign(old, key)
    assert signed.signature is not None and signed.signature.value == value
    read = BudgetReport.model_validate_json(signed.model_dump_json())
    received.verify(read)
    assert set(ALONE).isdisjoint(json.loads(signed.model_dump_json()))
    assert read.budget_alone is read.max_colluding is read.epsilon_alone_committed is None


def test_the_second_claim_is_signed_with_the_first(tmp_path: Path) -> None:
    both = budget.sign(REPORT.model_copy(update=ALONE), KEY)
    path = tmp_path / "budget.json"
    received.write(both, path)
    assert set(json.loads(path.read_text())) == KEYS | set(ALONE)
    assert budget.read(path) == both
    received.verify(budget.read(path))
    for key in ALONE:
        for changed in (None, 1):
            with pytest.raises(LedgerCorruptError, match="does not match"):
                received.verify(both.model_copy(update={key: changed}))
    with pytest.raises(LedgerCorruptError, match="does not match"):
        received.verify(REPORT.model_copy(update=ALONE))


@pytest.mark.parametrize("missing", [*list(ALONE)[:4], "all"])
def test_the_figures_of_the_second_claim_belong_together(missing: str) -> None:
    fields = REPORT.model_dump() | ALONE
    gone = list(ALONE)[:4] if missing == "all" else [missing]
    with pytest.raises(ValueError, match="belong together"):
        BudgetReport.model_validate(fields | dict.fromkeys(gone))
    without_sums = BudgetReport.model_validate(fields | {"max_colluding": None})
    assert without_sums.budget_alone == 25.0


@pytest.mark.parametrize("changes", [{"count": 10**4300}, {"round": 10**4300}])
def test_a_figure_that_no_ledger_has_is_refused(changes: dict[str, Any]) -> None:
    """A site signs what it likes, and who reads it computes with it."""
    with pytest.raises(ValidationError, match=next(iter(changes))):
        BudgetEvent(**{**REPORT.events[0].model_dump(), **changes})


def test_whom_a_claim_trusts_is_said_in_words() -> None:
    assert budget.trust_model(None) == REPORT.trust_model
    for most in (0, 3):
        said = budget.trust_model(most)
        assert said.startswith("secure sum: ") and f"at most {most} of them" in said


def test_totals_add_up_what_rests_on_each_sites_own_noise() -> None:
    """The noise of a secure sum is common to its sites: of two of them, it covers neither twice."""
    both = REPORT.model_copy(update=ALONE)
    assert both.max_colluding is not None
    total = received.totals([REPORT, both])
    assert total["epsilon"] == pytest.approx(3.9 + 9.25)
    assert total["epsilon_spent"] == pytest.approx(REPORT.epsilon_spent + 5.5)
    never = both.model_copy(update={"max_colluding": None})  # it may, and nobody knows that it did
    assert received.totals([REPORT, never])["epsilon"] == pytest.approx(3.9 + 9.25)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"epsilon_alone_spent": -1}, "epsilon_alone_spent"),
        ({"budget_alone": "25"}, "budget_alone"),
        ({"max_colluding": -1}, "max_colluding"),
        ({"delta": 1.5}, "delta"),
        ({"epsilon_spent": "2"}, "epsilon_spent"),
        ({"epsilon_spent": None}, "epsilon_spent"),
        ({"surprise": 1}, "surprise"),
        ({"site": "../../etc"}, "site"),
        ({"ledger_head": "not hex"}, "ledger_head"),
        ({"events": [{"job": "x"}]}, "events.0.round"),
        ({"relation": "replace-one"}, "relation"),
    ],
)
def test_a_malformed_report_names_file_and_key(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    path = tmp_path / "budget.json"
    path.write_text(json.dumps(REPORT.model_dump(mode="json") | change))
    with pytest.raises(ConfigError) as caught:
        budget.read(path)
    assert (caught.value.file, caught.value.key) == (path, named)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"epsilon_spent": NaN}'])
def test_what_is_no_report_names_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "budget.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"budget\.json"):
        budget.read(path)
    with pytest.raises(ConfigError, match="no such file"):
        budget.read(tmp_path / "elsewhere.json")


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(1e-9, 1e-3)), max_size=20))
def test_totals_are_the_sums_of_the_claims(claims: list[tuple[float, float]]) -> None:
    reports = [
        REPORT.model_copy(update={"epsilon_committed": epsilon, "delta": delta})
        for epsilon, delta in claims
    ]
    total = received.totals(reports)
    assert total["sites"] == len(claims)
    assert total["epsilon"] == pytest.approx(sum(epsilon for epsilon, _ in claims))
    assert total["delta"] == pytest.approx(sum(delta for _, delta in claims))
