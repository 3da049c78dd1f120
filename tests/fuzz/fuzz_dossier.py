"""A dossier that a coordinator made up, and that everybody in it signed."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from pydantic import ValidationError

from fedpriv.dossier.facts import ANSWERS, PAGE
from fedpriv.dossier.package import pack, read, unpack
from fedpriv.dossier.verify import Given, verify_package
from fedpriv.errors import DossierError
from fedpriv.privacy.ledger.rules import RdpRule, SumRule
from fedpriv.report import budget
from fedpriv.report.budget import BudgetReport
from tests.dossier.made_runs import (
    COORDINATOR,
    LOOKS,
    SHARED,
    SITE_KEYS,
    chained,
    make_run,
    proposal,
    with_page,
)
from tests.fuzz.fuzz_mutate import json_bytes
from tests.fuzz.fuzz_target import Target, packed, parts, refuses

MADE = (ANSWERS, PAGE)
OPTIONS: dict[str, dict[str, Any]] = {
    "looks": {"asked": proposal(evaluation=LOOKS), "rule": SumRule(1e-6)},
    "shared": {"asked": proposal(shared=SHARED), "rule": RdpRule(8, 4), "slots": 4},
    "plan": {"slots": 5},
}


@cache
def files_of(name: str) -> bytes:
    """The files of a dossier as one JSON object, without those that are made of the others."""
    with tempfile.TemporaryDirectory() as folder:
        made = make_run(Path(folder), names=("north",), **OPTIONS[name])
        made.export()
        files = read(made.out).files
    kept = {key: json.loads(data) for key, data in files.items() if key not in MADE}
    return json.dumps(kept).encode()


def seeds() -> dict[str, bytes]:
    """Each dossier as it was made, without a change."""
    return {name: packed(of=name, changes=0, seed=0) for name in OPTIONS}


def mutate(data: bytes, random: Random) -> bytes:
    """So many changes, drawn from a seed: a whole dossier would be a large input."""
    of = random.choice(list(OPTIONS))
    return packed(of=of, changes=random.randint(1, 3), seed=random.getrandbits(32))


def changed(data: bytes) -> Any:
    """The files that an input stands for."""
    order = parts(data, of="looks", changes=0, seed=0)
    if str(order["of"]) not in OPTIONS or type(order["changes"]) is not int:
        raise DossierError("no dossier")
    made, random = files_of(str(order["of"])), Random(str(order["seed"]))
    for _ in range(min(order["changes"], 5)):
        made = json_bytes(made, random)
    try:
        return json.loads(made)
    except (ValueError, RecursionError):
        return None


def content(name: str, value: Any) -> bytes:
    """A file, with hashes and signature as if whoever has to had made it."""
    if name.endswith("ledger.json") and isinstance(value, dict):
        with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return chained(value["rows"])
    if name.endswith("budget.json") and isinstance(value, dict):
        with suppress(ValidationError, KeyError):
            told = BudgetReport.model_validate_json(json.dumps({**value, "signature": None}))
            return budget.sign(told, SITE_KEYS["north"]).model_dump_json().encode()
    return json.dumps(value).encode()


def run(data: bytes, folder: Path) -> None:
    """Check it as a stranger would: it holds, or is refused by name."""
    tree = changed(data)
    if not isinstance(tree, dict):
        raise DossierError("no files")
    files = {PAGE: b"", **{str(name): content(str(name), part) for name, part in tree.items()}}
    ordered = {name: files[name] for name in (PAGE, *list(tree)[:1])}
    ordered |= {ANSWERS: b"", **files}
    path = folder / "a.zip"
    try:
        whole = pack(with_page(ordered, path), COORDINATOR)
    except ValidationError:
        raise DossierError("a name that no file has") from None
    found = list(verify_package(unpack(whole, path), path, Given(third=None)))
    refuses(any("every byte" in finding.text for finding in found), "nothing was checked")


TARGETS = (Target("dossier", run, seeds, mutate, weight=0.1),)
