"""Run directories with real ledgers and real signatures, without a model: made in milliseconds."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpriv.config.looks import LooksSection
from fedpriv.dossier.answers import answers_of
from fedpriv.dossier.export import export_run
from fedpriv.dossier.facts import ANSWERS, PAGE, contents_of
from fedpriv.dossier.findings import Finding
from fedpriv.dossier.page import page_of
from fedpriv.dossier.verify import Given, verify_file
from fedpriv.files import canonical_json, sha256, write_json
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.privacy.config import PrivacySection
from fedpriv.privacy.ledger.chain import GENESIS, row_hash
from fedpriv.privacy.ledger.history import UNKNOWN
from fedpriv.privacy.ledger.ledger import Ledger, Plan, Reservation, Terms
from fedpriv.privacy.ledger.life import life_with
from fedpriv.privacy.ledger.rules import PlanRule, Rule
from fedpriv.protocol import Proposal, SharedNoise
from fedpriv.report import budget, received
from fedpriv.report.budget import BudgetReport, events_of
from fedpriv.report.words import Basis, words
from fedpriv.secure_sum.roster import Roster, RosterEntry
from fedpriv.software import software

JOB = "hearts-1a2b3c4d"
COORDINATOR = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SITE_KEYS = {
    name: Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
    for number, name in enumerate(("north", "south", "east"), 1)
}
HASH = "sha256:" + "a" * 64


def public(key: Ed25519PrivateKey) -> str:
    """In hex."""
    return key.public_key().public_bytes_raw().hex()


ROSTER = Roster.of(
    RosterEntry(name=name, public_key=public(key)) for name, key in SITE_KEYS.items()
)
SHARED = SharedNoise(max_colluding=1, sites=3, roster=ROSTER.digest, noise_multiplier=2.0)


def proposal(**changes: Any) -> Proposal:
    """A job of six steps."""
    fields: dict[str, Any] = {
        "job_id": JOB,
        "method": "dp-lora",
        "steps": 6,
        "seed": 0,
        "fields": ("text",),
        "model": ModelSection(),
        "lora": LoraSection(),
        "privacy": PrivacySection(sample_rate=0.1, clip_norm=1.0, max_records_per_unit=1),
        "base_digest": HASH,
        "vector_digest": HASH,
    }
    return Proposal(**(fields | changes))


def plan_of(asked: Proposal) -> Plan:
    """The plan of a site for it."""
    shared = asked.shared
    return Plan(
        job=asked.job_id,
        method=asked.method,
        sample_rate=asked.privacy.sample_rate,
        noise_multiplier=2.0,
        clip_norm=asked.privacy.clip_norm,
        numerics=asked.privacy.numerics,
        steps=asked.steps,
        proposal=asked.digest(),
        max_colluding=None if shared is None else shared.max_colluding,
        shares=1 if shared is None else shared.shares,
    )


def use(ledger: Ledger, plan: Plan, slots: Iterable[int]) -> None:
    """Commit to a plan where there is none of its job, and reserve and release so many slots."""
    if ledger.plan(plan.job) is None:
        ledger.commit(plan)
    for slot in slots:
        reserved = ledger.reserve(plan.job, slot, HASH)
        assert isinstance(reserved, Reservation)
        ledger.release(reserved, b"reply", tag=HASH if plan.is_shared else None)


def report_of(ledger: Ledger, site: str, job: str = JOB) -> BudgetReport:
    """What a site reports, unsigned."""
    terms, head = ledger.terms, ledger.head
    plan, taken = ledger.plan(job), ledger.history.used
    life = None
    if plan is not None and not ledger.is_full:
        life = life_with(terms, taken, plan, ledger.history.used_by([job]))
    lost = ledger.terms.budget_alone is not None and UNKNOWN in ledger.numerics
    colluding = 0 if lost else ledger.max_colluding
    basis = Basis(
        rule=terms.rule.name,
        strict=ledger.numerics == {"strict"},
        max_colluding=colluding,
        lost_sums=lost,
        distinct=tuple(ledger.distinct),
        grown=ledger.grown,
        one_run=terms.simulated,
    )
    return BudgetReport(
        **words(basis),
        site=site,
        dataset_id=terms.dataset_id,
        unit=terms.unit,
        max_records_per_unit=terms.max_records_per_unit,
        delta=terms.delta,
        declared_size=terms.declared_size,
        rule=terms.rule.name,
        private=terms.private,
        simulated=terms.simulated,
        epsilon_spent=ledger.epsilon_spent,
        epsilon_allocated=ledger.epsilon_allocated,
        epsilon_committed=ledger.epsilon_committed,
        budget=terms.budget,
        epsilon_alone_spent=ledger.epsilon_alone_spent,
        epsilon_alone_allocated=ledger.epsilon_alone_allocated,
        epsilon_alone_committed=ledger.epsilon_alone_committed,
        budget_alone=terms.budget_alone,
        max_colluding=colluding,
        events=() if plan is None else events_of(plan, [slot for slot, _ in ledger.slots(job)]),
        life=life,
        ledger_head=head.hash,
        ledger_rows=head.rows,
        job=job,
    )


@dataclass
class Made:
    """A finished run, in a folder.

    Attributes:
        asked: what was proposed.
        rounds: in which each site answered.
    """

    folder: Path
    asked: Proposal = field(default_factory=proposal)
    names: tuple[str, ...] = ("north", "south")
    rounds: int = 6

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def out(self) -> Path:
        return self.folder / "run.zip"

    def ledger(self, site: str) -> Path:
        return self.run / "sites" / site / "ledger.db"

    def report(self, site: str) -> BudgetReport:
        return budget.read(self.run / "sites" / site / "budget.json")

    def sign(self, site: str, /, key: Ed25519PrivateKey | None = None, **changes: Any) -> None:
        """Let a site sign its report again, with other figures."""
        path = self.run / "sites" / site / "budget.json"
        told = self.report(site).model_copy(update={"signature": None, **changes})
        received.write(budget.sign(told, key or SITE_KEYS[site]), path)

    def report_on(self, site: str) -> None:
        """Write what the ledger says now."""
        with Ledger.open(self.ledger(site), reading=True) as ledger:
            told = report_of(ledger, site, self.asked.job_id)
        path = self.run / "sites" / site / "budget.json"
        received.write(budget.sign(told, SITE_KEYS[site]), path)

    def export(self, out: Path | None = None, **options: Any) -> list[Finding]:
        return export_run(self.run, out or self.out, COORDINATOR, **options)

    def verify(self, **given: Any) -> list[Finding]:
        return list(verify_file(self.out, Given(**{"third": None, **given})))


_MADE: dict[tuple[object, ...], Made] = {}  # is copied, as ledgers are slow to write
ONE_PLAN = PlanRule()


def make_run(folder: Path, **options: Any) -> Made:
    """A run as `new_run` makes it, in a folder."""
    asked = options.get("asked")
    kept = {key: value for key, value in options.items() if key != "asked"}
    key = (*sorted(kept.items()), None if asked is None else asked.digest())
    if key not in _MADE:
        _MADE[key] = new_run(Path(tempfile.mkdtemp(prefix="made-runs-")), **options)
        atexit.register(shutil.rmtree, _MADE[key].folder, ignore_errors=True)
    shutil.copytree(_MADE[key].folder, folder, dirs_exist_ok=True)
    return replace(_MADE[key], folder=folder)


def new_run(
    folder: Path,
    *,
    rule: Rule = ONE_PLAN,
    asked: Proposal | None = None,
    slots: int | None = None,
    names: tuple[str, ...] = ("north", "south"),
    engine: str = "inline",
    prefix: str = "",
) -> Made:
    """A run in which each site answered all rounds, or as many slots as are given."""
    asked = asked or proposal()
    slots = asked.steps if slots is None else slots
    made = Made(folder, asked, names, min(slots, asked.rounds))
    for name in names:
        made.ledger(name).parent.mkdir(parents=True)
        terms = Terms(
            dataset_id=f"{prefix}{name}-population",
            declared_size=200,
            unit="record",
            max_records_per_unit=1,
            delta=1e-5,
            budget=30.0,
            simulated=engine != "network",
            rule=rule,
            budget_alone=None if asked.shared is None else 60.0,
        )
        with Ledger.create(made.ledger(name), terms) as ledger:
            use(ledger, plan_of(asked), range(slots))
        made.report_on(name)
    write_run(made, engine)
    return made


def write_run(made: Made, engine: str = "inline") -> None:
    """The coordinator's own files of a run."""
    asked, run = made.asked, made.run
    info = {
        "format": 1,
        "job": {
            "name": "hearts",
            "method": asked.method,
            "rounds": asked.rounds,
            "engine": engine,
        },
        "job_id": asked.job_id,
        "status": "finished",
        "started": "2026-11-01T08:00:00+00:00",
        "finished": "2026-11-01",
        "config_digest": HASH,
        "versions": {"fedpriv": "0.1.0"},
        "software": {"fedpriv": software()["fedpriv"].model_dump()},
        "model": {"name": "embedded", "task": "causal-lm", "digest": asked.base_digest},
        "private": True,
        "baseline": {"eval_loss": 5.5, "eval_accuracy": 0.13},
    }
    write_json(run / "run.json", info)
    rounds = (
        {
            "round": number,
            "eval_loss": 5.5 - number / 10,
            "eval_accuracy": 0.13,
            "bytes_up": 1,
            "bytes_down": 1,
            "seconds": None,
            "sites": {name: {"status": "ok"} for name in made.names},
        }
        for number in range(1, made.rounds + 1)
    )
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rounds))
    adapter = run / "adapter"
    adapter.mkdir(exist_ok=True)
    weights = b"weights of an adapter"
    (adapter / "adapter_model.safetensors").write_bytes(weights)
    (adapter / "adapter_config.json").write_text("{}\n")
    (adapter / "README.md").write_text("A card.\n")
    facts = {
        "kind": "federated",
        "proposal": asked.model_dump(mode="json"),
        "weights_digest": sha256(weights),
    }
    write_json(adapter / "fedpriv.json", facts)


LOOKS = LooksSection(looks=2, slots=1)


def with_page(files: Mapping[str, bytes], path: Path) -> dict[str, bytes]:
    """Files of a dossier, with the answers and the page that belong to them."""
    contents = contents_of(files, path)
    return {**files, ANSWERS: answers_of(contents), PAGE: page_of(contents)}


def chained(rows: list[dict[str, Any]]) -> bytes:
    """Rows with the hashes that they would have: a ledger that somebody forged as a whole."""
    previous, listed = GENESIS, []
    for row in rows:
        previous = row_hash(previous, row["kind"], canonical_json(row["body"]))
        listed.append({**row, "hash": previous})
    head = {"rows": len(listed), "hash": previous}
    return canonical_json({"format": "fedpriv-ledger-2", "head": head, "rows": listed})


def texts(made: Made, kind: str = "holds", **given: Any) -> list[str]:
    return [found.text for found in made.verify(**given) if found.kind == kind]


def without_rows(made: Made) -> None:
    """As of a job over the network, of which nobody sent rows."""
    for name in made.names:
        made.ledger(name).unlink()


def next_job(made: Made, folder: Path, name: str) -> Made:
    """A run of another job with copies of the same ledgers, which go on in it."""
    asked = proposal(job_id=name)
    later = Made(folder, asked, names=made.names)
    for site in made.names:
        later.ledger(site).parent.mkdir(parents=True)
        shutil.copy(made.ledger(site), later.ledger(site))
        with Ledger.open(later.ledger(site)) as ledger:
            use(ledger, plan_of(asked), range(asked.steps))
        later.report_on(site)
    write_run(later)
    later.export()
    return later
