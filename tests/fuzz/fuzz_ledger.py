"""A site's ledger and what is made of it: the file, its rows, an export, a witness, a report."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpriv.errors import BudgetError, FedprivError, OverlapError
from fedpriv.privacy.accounting.accountant import ACCOUNTANT
from fedpriv.privacy.ledger import administration
from fedpriv.privacy.ledger.chain import APPLICATION, FORMAT, GENESIS, row_hash
from fedpriv.privacy.ledger.ledger import Ledger, Plan, Terms
from fedpriv.privacy.ledger.rules import PlanRule, RdpRule, Rule, SumRule
from fedpriv.privacy.ledger.unit_index import ID, KEY_BYTES, Identity, UnitIndex
from fedpriv.privacy.ledger.witness import Witness, seal_key
from fedpriv.report import budget, received
from fedpriv.report.budget import BudgetEvent, BudgetReport
from fedpriv.report.ledger_export import export_ledger, verify_ledger
from fedpriv_server.owed import _report as received_report
from tests.fuzz.fuzz_mutate import json_bytes, mutate_bytes
from tests.fuzz.fuzz_target import Target, packed, parts, raw, refuses

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)  # guards nothing
RULES: dict[str, Rule] = {
    "plan": PlanRule(),
    "rdp": RdpRule(8),
    "sum": SumRule(1e-6),
}
SEEN = [
    [Identity(ID, b"jones"), Identity("text", b"note 1")],
    [Identity(ID, b"smith"), Identity("text", b"note 2")],
]
NEXT = Plan("next", "dp-lora", 0.1, 4.0, 1.0, 2, "p")


def make(path: Path, rule: Rule, witness: Path | None = None) -> None:
    """A ledger with a plan that is half used, and one that is closed where the rule has two."""
    terms = Terms("0" * 32, 100, "record", 1, 1e-5, 30.0, simulated=False, rule=rule)
    with Ledger.create(path, terms, witness) as ledger:
        jobs = ("one",) if isinstance(rule, PlanRule) else ("one", "two")
        for job in jobs:
            ledger.commit(Plan(job, "dp-lora", 0.1, 2.0, 0.5, 5, "p"))
            for slot in (0, 1):
                paid = ledger.reserve(job, slot, f"request {slot}")
                if not isinstance(paid, bytes) and slot == 0:
                    ledger.release(paid, b"reply")
        if len(jobs) > 1:
            administration.close_job(ledger, "two")
            administration.grow(ledger, 200, 5e-6)
            administration.state_distinct(ledger, "1" * 32, "Dr Jones")


@cache
def made(name: str, small: bool = False) -> bytes:
    """The file of a ledger of this rule; `small`, in pages of 512 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        make(path, RULES[name])
        if small:
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA page_size = 512")
                connection.execute("VACUUM")
        return path.read_bytes()


def use(path: Path) -> None:
    """Whatever a ledger is opened for. One that is read in full can be gone on with."""
    with Ledger.open(path, reading=True) as ledger:
        ledger.check_outbox()
        figures = ledger.figures()
        epsilons = (ledger.epsilon_spent, ledger.epsilon_allocated, ledger.epsilon_committed)
        refuses(all(epsilon >= 0 for epsilon in epsilons), "ε below 0")
        refuses(epsilons[2] >= epsilons[1], "more is allocated than is committed")
        exported = export_ledger(ledger)
    other = path.with_suffix(".json")
    other.write_text(json.dumps(exported))
    for one in (path, other):
        try:
            refuses(verify_ledger(one)[0] == figures, "other figures when it is verified")
        except FedprivError as error:
            # An export is in the one form of a JSON text; `rows` writes others too.
            refuses(one == other or "taken more" in str(error), f"is not verified: {error}")
    rows, witnessed = len(exported["rows"]), figures["witnessed"]
    with Ledger.open(path) as ledger:
        refuses(not witnessed, "opened without its witness")
        refuses(len(ledger.rows()) == rows, "other rows when it is opened")
        _go_on(ledger)


def _go_on(ledger: Ledger) -> None:
    for job in [plan["job"] for plan in ledger.figures()["plans"]]:
        plan = ledger.plan(job)
        refuses(plan is not None, "no plan")
        try:
            paid = ledger.reserve(job, 1, "request 1")
            if not isinstance(paid, bytes):
                ledger.release(paid, b"another")
        except FedprivError:
            pass
    try:
        before = ledger.epsilon_allocated
        after = ledger.commit(NEXT)
        refuses(before <= after <= ledger.terms.budget * 1.01, "over the budget")
    except BudgetError:
        pass


def file(data: bytes, folder: Path) -> None:
    path = folder / "ledger.db"
    path.write_bytes(data)
    use(path)


def rows(data: bytes, folder: Path) -> None:
    """Rows whose hashes are right, whatever they hold."""
    try:
        listed = json.loads(data)
        pairs = [(kind, body) for kind, body in listed]
    except (ValueError, TypeError, RecursionError):
        pairs = [("terms", data.decode("latin-1"))]
    path = folder / "ledger.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, kind, body, hash)")
        connection.execute("CREATE TABLE outbox (job, slot, reply)")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", list(_chained(pairs)))
        connection.execute("COMMIT")
    use(path)


def _chained(pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[int, object, str, str]]:
    """Rows of the file. A kind may be a number or NULL; what is no text becomes JSON."""
    previous = GENESIS
    for number, (kind, body) in enumerate(pairs, 1):
        text = _text(body if isinstance(body, str) else json.dumps(body))
        name = _text(kind if isinstance(kind, str) else json.dumps(kind))
        previous = row_hash(previous, name, text.encode())
        yield number, kind if isinstance(kind, float | None) else name, text, previous


def _text(text: str) -> str:
    """Without halves of characters, which SQLite does not take."""
    return text.encode("utf-8", "replace").decode()


def all_rows() -> dict[str, bytes]:
    found = {}
    for name in RULES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ledger.db"
            path.write_bytes(made(name))
            with Ledger.open(path, reading=True) as ledger:
                listed = [[row.kind, row.body] for row in ledger.rows()]
        found[name] = json.dumps(listed, indent=1).encode()
    restored = {"rows": 40, "heads": ["c" * 64], "lost": [0.5]}
    listed = [*json.loads(found["rdp"]), ["restored", restored]]
    found["restored"] = json.dumps(listed).encode()
    return found


def export(data: bytes, folder: Path) -> None:
    """An export, and a head of it that was seen."""
    path = folder / "export.json"
    path.write_bytes(data)
    figures, head, _ = verify_ledger(path)
    refuses(head.rows >= 1 and figures["epsilon_spent"] >= 0, "no figures")
    refuses(verify_ledger(path, head=f"{head.rows}:{head.hash}")[1] == head, "another head")


def exports() -> dict[str, bytes]:
    found = {}
    for name in ("plan", "rdp"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ledger.db"
            path.write_bytes(made(name))
            with Ledger.open(path, reading=True) as ledger:
                found[name] = json.dumps(export_ledger(ledger), indent=1).encode()
    return found


def mutate_export(data: bytes, random: Random) -> bytes:
    """Mostly with hashes that are right."""
    changed = json_bytes(data, random)
    if random.random() < 0.7:
        try:
            tree, previous = json.loads(changed), GENESIS
            for row in tree["rows"]:
                text = json.dumps(row["body"], sort_keys=True, separators=(",", ":"))
                row["hash"] = previous = row_hash(previous, row["kind"], text.encode())
            tree["head"] = {"rows": len(tree["rows"]), "hash": previous}
            return json.dumps(tree).encode()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
    return changed


def head(data: bytes, folder: Path) -> None:
    """A head that somebody typed; ``<hash>`` is the right one's."""
    path = folder / "export.json"
    path.write_bytes(_usual_export())
    newest = json.loads(_usual_export())["head"]["hash"]
    typed = data.decode("utf-8", "surrogateescape").replace("<hash>", newest)
    verify_ledger(path, head=typed)


@cache
def _usual_export() -> bytes:
    return exports()["plan"]


def mutate_head(data: bytes, random: Random) -> bytes:
    rows_, _, digest = data.partition(b":")
    numbers = ("0", "1", "4", "5", "6", "05", "-1", "9" * 5000, "²", "٣", "1.0", "")
    typed = random.choice(numbers).encode() + b":" + digest
    return random.choice((typed, typed, mutate_bytes(data, random), rows_ + b":" + b"0" * 64))


@cache
def witnessed() -> tuple[bytes, bytes, bytes]:
    """A ledger as it was at first, as it is now, and its witness."""
    with tempfile.TemporaryDirectory() as folder:
        path, seen, old = (Path(folder) / name for name in ("ledger.db", "witness", "old.db"))
        rule = RULES["rdp"]
        terms = Terms("0" * 32, 100, "record", 1, 1e-5, 30.0, simulated=False, rule=rule)
        with Ledger.create(path, terms, seen) as ledger:
            ledger.commit(Plan("one", "dp-lora", 0.1, 2.0, 0.5, 5, "p"))
            shutil.copy(path, old)
            ledger.commit(Plan("two", "dp-lora", 0.1, 2.0, 0.5, 5, "p"))
            ledger.reserve("two", 0, "request")
        return old.read_bytes(), path.read_bytes(), seen.read_bytes()


def witness(data: bytes, folder: Path) -> None:
    """A witness of a ledger, or of an older copy of it that is to be recovered.

    ``<2>`` stands for the hash of row 2. Nothing is recovered from it before it is sealed.
    """
    old, new, usual = witnessed()
    for number, line in enumerate(usual.splitlines()[1:], 1):
        data = data.replace(b"<%d>" % number, json.loads(line)["hash"].encode())
    path, seen = folder / "ledger.db", folder / "witness"
    seen.write_bytes(data)
    found = Witness.read(seen)
    key = seal_key(path)
    copy = Witness.start(folder / "copy", found.dataset_id, found.seen, key)
    refuses(Witness.read(copy.path).seen == found.seen, "another witness when it is read again")
    problem: FedprivError | None = None
    sealed = copy.path.read_bytes()
    path.write_bytes(old)
    with suppress(FedprivError), administration.recover(path, seen):
        refuses(False, "recovered what nobody sealed")
    for content, opened, told in ((new, Ledger.open, data), (old, administration.recover, sealed)):
        path.write_bytes(content)
        seen.write_bytes(told)
        try:
            with opened(path, seen) as ledger:
                ledger.figures()
                _go_on(ledger)
        except FedprivError as error:
            problem = error
        refuses(path.exists(), "the ledger is gone")
    if problem is not None:
        raise problem


def witnesses() -> dict[str, bytes]:
    """The usual one, and one that has seen a branch of its own."""
    first, *rows = witnessed()[2].splitlines(keepends=True)
    seen = [{**json.loads(line), "hash": f"<{number}>"} for number, line in enumerate(rows, 1)]
    lines = [first, *(json.dumps(row).encode() + b"\n" for row in seen)]
    branch = json.dumps({**seen[-1], "hash": "d" * 64}).encode() + b"\n"
    return {"newest": b"".join(lines), "branch": b"".join([*lines[:-1], branch])}


def mutate_witness(data: bytes, random: Random) -> bytes:
    """A line of it."""
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    match random.randrange(6):
        case 0:
            return mutate_bytes(data, random)
        case 1:
            del lines[at]
        case 2:
            lines.insert(at, random.choice(lines))
        case _:
            lines[at] = json_bytes(lines[at], random).replace(b"\n", b" ")
    return b"\n".join(lines)


def report(data: bytes, folder: Path) -> None:
    """A report that a site sent, and one in a run directory; `signed` after it was changed."""
    found = parts(data, report="", signed=False)
    path = folder / "budget.json"
    path.write_bytes(raw(found["report"]) if isinstance(found["report"], str) else b"")
    read = budget.read(path)
    if found["signed"]:
        read = budget.sign(read, KEY)
    received.write(read, path)
    again = budget.read(path)
    refuses(again == read, "another report when it is read again")
    received.verify(again)
    received.totals([again, again])
    received_report(path.read_text(), again.site, again.job)


@cache
def reported() -> str:
    return BudgetReport(
        site="cardiology",
        dataset_id="0" * 32,
        unit="record",
        max_records_per_unit=1,
        delta=1e-5,
        declared_size=100,
        accountant=ACCOUNTANT,
        private=True,
        simulated=False,
        guarantee="all",
        epsilon_spent=1.0,
        epsilon_allocated=2.0,
        epsilon_committed=2.0,
        budget=3.0,
        events=(BudgetEvent(job="j", round=1, sample_rate=0.1, noise_multiplier=2.0, count=3),),
        ledger_head="e" * 64,
        ledger_rows=7,
        job="j",
    ).model_dump_json()


def mutate_report(data: bytes, random: Random) -> bytes:
    found = parts(data, report="", signed=False)
    text = json_bytes(raw(found["report"]), random)
    return packed(report=text, signed=random.random() < 0.8)


def reports() -> dict[str, bytes]:
    return {"signed": packed(report=reported(), signed=True)}


def units(data: bytes, folder: Path) -> None:
    """The index of a site's units, and at its end the key."""
    index = UnitIndex(folder)
    index.key_path.touch(mode=0o600)
    index.key_path.write_bytes(data[-KEY_BYTES:])
    index.path.write_bytes(data[:-KEY_BYTES])
    index.claim("0" * 32, SEEN)


def indexes() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        index = UnitIndex(Path(folder))
        index.claim("0" * 32, SEEN[:1])
        with suppress(OverlapError):  # and a refusal
            index.claim("1" * 32, SEEN[:1])
        with closing(sqlite3.connect(index.path)) as connection:
            connection.execute("PRAGMA page_size = 512")
            connection.execute("VACUUM")
        return {"one": index.path.read_bytes() + index.key_path.read_bytes()}


def mutate_index(data: bytes, random: Random) -> bytes:
    """Seldom its key, without which nothing of it counts."""
    if random.random() < 0.05:
        return mutate_bytes(data, random)
    return mutate_bytes(data[:-KEY_BYTES], random) + data[-KEY_BYTES:]


TARGETS = (
    Target("ledger", file, lambda: {"rdp": made("rdp", small=True)}, mutate_bytes, 0.5),
    Target("rows", rows, all_rows, json_bytes, 0.5),
    Target("export", export, exports, mutate_export),
    Target("head", head, lambda: {"newest": b"5:<hash>"}, mutate_head, 0.2),
    Target("witness", witness, witnesses, mutate_witness, 0.5),
    Target("report", report, reports, mutate_report),
    Target("units", units, indexes, mutate_index, 0.3),
)
