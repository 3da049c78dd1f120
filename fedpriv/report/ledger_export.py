"""Export a ledger as a document that somebody else can check: every row, and what they add up to.

Rows hold public fields only, so an export holds nothing of the records. The hash chain shows
that no row was changed or left out between the first and the head. That the head is the newest
can only be shown by something that has seen it: a report that the site signed, or the server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedpriv.errors import ConfigError, LedgerCorruptError, LedgerError
from fedpriv.files import canonical_json, each_once
from fedpriv.privacy.ledger.chain import GENESIS, Head, Row, check_seen, corrupt, row_hash
from fedpriv.privacy.ledger.history import History
from fedpriv.privacy.ledger.ledger import Ledger, read_history
from fedpriv.privacy.ledger.witness import Witness

FORMAT = "fedpriv-ledger-2"


def export_ledger(ledger: Ledger) -> dict[str, Any]:
    """Export every row of a ledger. The reader adds them up."""
    return export_of(ledger.rows())


def export_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the export of these rows, the newest of which is the head."""
    return {
        "format": FORMAT,
        "head": asdict(Head(rows[-1].number, rows[-1].hash)),
        "rows": [{"kind": row.kind, "body": row.body, "hash": row.hash} for row in rows],
    }


def verify_ledger(
    path: Path, *, head: str = "", witness: Path | None = None, report: Path | None = None
) -> tuple[dict[str, Any], Head, list[str]]:
    """Check a ledger, or an export of one, and compare it with what was seen of it elsewhere.

    Args:
        head: a head that was seen before, as ``ROWS:HASH``.
        witness: the ledger's witness file.
        report: a budget report that is said to be of this ledger.

    Returns:
        The figures, the newest head, and in words what was checked.

    Raises:
        LedgerError: the ledger can't be opened.
        LedgerCorruptError: something does not add up; the error says what.
        ConfigError: `head` or the report is malformed.
    """
    checked = []
    if is_export(path):
        rows = exported_rows(path.read_bytes(), path)
    else:
        with Ledger.open(path, reading=True) as ledger:
            ledger.check_outbox()
            rows = ledger.rows()
        checked.append("every stored reply is the one that was released")
    history = read_history(rows, path)
    check_within(history, path)
    newest = Head(rows[-1].number, rows[-1].hash)
    checked.insert(0, f"{newest.rows} rows, each with the hash of the one before")

    hashes = [GENESIS, *(row.hash for row in rows)]

    def was_seen(seen: Head, who: str) -> None:
        if seen in history.lost:
            checked.append(f"{who} has seen row {seen.rows} of a copy that is lost and paid for")
            return
        check_seen(path, hashes, seen, who)
        checked.append(f"{who} has seen row {seen.rows}, and it is here")

    if head:
        was_seen(parse_head(head), "the given head")
    if witness is not None:
        was_seen(Witness.read(witness).seen[-1].head, f"the witness {witness}")
    if report is not None:
        was_seen(reported_head(report, history.terms.dataset_id), f"the signed report {report}")
    return history.figures(), newest, checked


def check_within(history: History, path: Path) -> None:
    """Check that plans have taken no more than their ledger's rule allows.

    Raises:
        LedgerCorruptError: they have, and not because copies were lost.
    """
    if history.is_over and not history.lost:
        raise LedgerCorruptError(
            f"{path}: its plans have taken more than its rule {history.terms.rule.name!r} allows:"
            f" {history.used} of {history.limit}. No fedpriv accepts that; it was edited."
        )


def reported_head(report: Path, dataset_id: str) -> Head:
    """Return the head in a signed budget report.

    Raises:
        ConfigError: the report can't be read.
        LedgerCorruptError: it was changed after it was signed, or is of another population.
    """
    from fedpriv.report import budget, received

    stated = budget.read(report)
    received.verify(stated)
    if stated.dataset_id != dataset_id:
        raise LedgerCorruptError(
            f"{report}: is of population {stated.dataset_id}, and the ledger of {dataset_id}."
        )
    return Head(stated.ledger_rows, stated.ledger_head)


def is_export(path: Path) -> bool:
    """Tell whether a file looks like an export of `export_ledger`, and not like a ledger.

    Raises:
        LedgerError: the file can't be read.
    """
    try:
        with path.open("rb") as stream:
            return stream.read(64).lstrip().startswith(b"{")
    except OSError as error:
        raise LedgerError(f"{path}: can't be read ({error.strerror}).") from None


def exported_rows(content: bytes, path: Path) -> list[Row]:
    """Check the hashes of an export, and return its rows.

    Args:
        path: the export's path, for messages.

    Raises:
        LedgerError: it has another format.
        LedgerCorruptError: it is damaged, or was edited.
    """
    rows: list[Row] = []
    previous = GENESIS
    try:
        document = json.loads(content, object_pairs_hook=each_once)
        if document.get("format") != FORMAT:
            raise LedgerError(
                f"{path}: is no export that this fedpriv reads (format"
                f" {document.get('format')!r}, not {FORMAT!r})."
            )
        for number, row in enumerate(document["rows"], 1):
            kind, body, stated = str(row["kind"]), dict(row["body"]), str(row["hash"])
            if stated != row_hash(previous, kind, canonical_json(body)):
                raise corrupt(path, f"row {number} was edited, or one before it is missing")
            rows.append(Row(number, kind, body, stated))
            previous = stated
        if asdict(Head(len(rows), previous)) != document["head"]:
            raise corrupt(path, f"the rows end at {len(rows)}, before the stated head")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LedgerCorruptError(f"{path}: is damaged ({type(error).__name__}: {error}).") from None
    return rows


def canonical_export(rows: Sequence[Row]) -> bytes:
    """Return the canonical bytes of an export with exactly these rows."""
    return canonical_json(export_of(rows))


def parse_head(text: str) -> Head:
    """Parse a head that somebody wrote as ``ROWS:HASH``.

    Raises:
        ConfigError: the text is no head.
    """
    rows, _, digest = text.partition(":")
    if not re.fullmatch(r"[1-9][0-9]{0,17}", rows) or len(digest) != 64:
        fix = "Give ROWS:HASH, as `fedpriv ledger show` prints them."
        raise ConfigError("is not a head", key="--head", value=text, fix=fix)
    return Head(int(rows), digest)
