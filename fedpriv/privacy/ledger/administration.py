"""Carry out what only an administrator orders of a ledger. The serving process has none of it.

Such an order changes how much is left, or whose word a claim rests on: closing a job, raising
the size, stating that people are different ones, and going on from an older copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from fedpriv.errors import LedgerCorruptError, LedgerError, SlotError, shown
from fedpriv.privacy.ledger.chain import Chain, Head, on_error
from fedpriv.privacy.ledger.history import History, budgets, limit_of
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.rules import PlanRule
from fedpriv.privacy.ledger.witness import Sighting, Witness, seal_key

LEAST_DELTA = 1e-3  # share of a ledger's first δ: the time of late answers is allowed for so far


def close_job(ledger: Ledger, job: str) -> float:
    """Close a job, so that no further slot of it is reserved. Give back what the rule allows.

    Returns:
        ε allocated afterwards.

    Raises:
        SlotError: there is no plan of that job, or it is closed already.
    """

    def check(history: History) -> None:
        account = history.accounts.get(job)
        if account is None or account.closed:
            known = ", ".join(j for j, a in history.accounts.items() if not a.closed)
            raise SlotError(f"{ledger.path}: no open plan of job {job!r}. Open: {known or 'none'}.")

    ledger.order([("close", {"job": job})], check)
    return ledger.epsilon_allocated


def state_distinct(ledger: Ledger, other: str, by: str) -> None:
    """Keep an administrator's statement that units which look alike are different people.

    The claims of this ledger and of the other one then rest on it; see `UnitIndex.accept`.

    Args:
        other: the dataset id of the other ledger.
        by: the name of who states it.

    Raises:
        LedgerError: no name, or no other data set.

    Privacy:
        A person's word, public from then on. That somebody found it necessary says that some
        records looked alike; which ones, or how many, is not in it.
    """

    def check(history: History) -> None:
        if other == history.terms.dataset_id or not (other.strip() and by.strip()):
            raise LedgerError(
                f"{ledger.path}: expected the data set of another ledger and the name of who states"
                f" that its people are others, got {shown(other)} and {shown(by)}."
            )

    ledger.order([("distinct", {"other": other.strip(), "by": by.strip()})], check)


def grow(ledger: Ledger, declared_size: int, delta: float) -> None:
    """Raise the declared size, lower δ, or both, for a population that grew.

    The budget stays. From then on the claim is (ε, δ) with the smaller δ for all that the
    ledger ever paid, so what was taken has to be within the budget at that δ; the server
    divides by the larger size in later jobs.

    Raises:
        LedgerError: the size is smaller or δ larger than before, δ is not below 1 / size, or
            what was taken so far is more than the budget at that δ; or δ is below a thousandth of
            the first one, and jobs had public ticks. Nothing was written.

    Formal guarantees:
        ========  ====================================================================
        rule      why the claim holds at the smaller δ
        ========  ====================================================================
        plan      nothing was taken yet, or it is refused
        rdp       the Rényi ε of everything is within the capacity at that δ, and stays so
        sum       Σδ of everything is within that δ, and stays so
        ========  ====================================================================

        For plans that are chosen by what was released, that holds if the population's growth, and
        with it this call, is not chosen by it.
    """
    row = {"declared_size": declared_size, "delta": delta}
    ledger.order([("grown", row)], lambda history: check_grown(history, declared_size, delta))


def check_grown(history: History, declared_size: int, delta: float) -> None:
    """Check that what was taken so far is within the budget at a smaller δ, too.

    Raises:
        LedgerError: it is not, or the ledger is not one that can grow.
    """
    terms, rule = history.terms, history.terms.rule
    if declared_size < terms.declared_size or delta > terms.delta:
        raise LedgerError(
            f"Expected a size >= {terms.declared_size} and a delta <= {terms.delta:g}: what was"
            " promised to the people of a ledger is not taken back."
        )
    least = LEAST_DELTA * history.snapshot(1).delta
    if delta < least and any(account.plan.ticks for account in history.accounts.values()):
        raise LedgerError(
            f"Expected a delta >= {least:g}: the public ticks of earlier jobs allow for a"
            " thousandth of the first one. Nothing was changed."
        )
    if (declared_size, delta) == (terms.declared_size, terms.delta):
        raise LedgerError("Size and delta are these already. Nothing was changed.")
    if isinstance(rule, PlanRule) and history.used[0]:
        raise LedgerError(
            "Under the rule 'plan' the ledger holds its one plan already, calibrated for its"
            " delta; a larger population gets no other. Nothing was changed."
        )
    limit = limit_of(replace(terms, declared_size=declared_size, delta=delta))
    if not all(used <= most for used, most in zip(history.used, limit, strict=True)):
        raise LedgerError(
            f"At delta={delta:g} the plans so far would cost more than the budget"
            f" {budgets(terms)}: they took {shown(history.used)} of {shown(limit)} under the rule"
            f" {rule.name!r}. Close plans that will not go on, or state a larger delta."
        )


def recover(path: Path, witness: Path, known: Sequence[Head] = ()) -> Ledger:
    """Open an older copy that was restored, and count as spent whatever it can't know of.

    Every open plan is spent in full and takes no further slot. What the witness saw taken since the
    newest row that both have is spent, too. If the copy went its own way after that row, a plan
    that was open then may have been used up twice, and is counted twice.

    Anybody who can write to the witness's disk could write one that saw nothing taken. So every
    line of it has to be sealed with the key that lies in the ledger's folder.

    Args:
        known: heads of this ledger that are known outside, from a report or a server. Nothing else
            shows that lines were cut off the end of a witness.

    Raises:
        LedgerError: the witness is of another ledger, has seen nothing newer, or has lines that
            nobody with the ledger's key wrote.
        LedgerCorruptError: one of `known` is not in the witness: its last lines are missing.
    """
    held = Witness.read(witness)
    held.hold()  # else the newest ledger may go on while this reads
    with closing(held):
        ledger = Ledger(Chain.open(path))
        with on_error(ledger.close):
            _count_what_was_lost(ledger, path, witness, known)
    return ledger


def _count_what_was_lost(ledger: Ledger, path: Path, witness: Path, known: Sequence[Head]) -> None:
    """Count what the witness, if it is to be believed, saw taken and this copy can't know of."""
    seen, rows = Witness.read(witness, seal_key(path, new=False)), ledger.rows()
    common = [s for s, row in zip(seen.seen, rows, strict=False) if s.hash == row.hash]
    if seen.dataset_id != ledger.terms.dataset_id or not common:
        raise LedgerError(
            f"{witness}: is of population {seen.dataset_id}, {path} of {ledger.terms.dataset_id}."
            " Nothing was changed."
        )
    if seen.sealed < len(seen.seen):
        raise LedgerError(
            f"{witness}: line {seen.sealed + 2} is not sealed with the key that lies beside"
            f" {path}, so nobody vouches for what it says was taken. Nothing was changed."
            " Put back the witness that the ledger left, and witness.key from the newest"
            " backup of the ledger's folder. If there are none, this ledger must not be used."
        )
    missing = set(known) - {sighting.head for sighting in seen.seen} - ledger.history.lost
    if missing:
        raise LedgerCorruptError(
            f"{witness}: has not seen row {max(head.rows for head in missing)}, which somebody"
            " outside has. Its last lines are missing, and nobody knows what they saw taken."
            " Nothing was changed. Put back the witness that the ledger left. If there is none,"
            " this ledger must not be used."
        )
    if any(len(s.used) != len(ledger.history.limit) for s in seen.seen):
        raise LedgerError(
            f"{witness}: is not of the rule {ledger.terms.rule.name!r}, or is damaged."
            " Nothing was changed."
        )
    newest, fork = seen.seen[-1], common[-1]
    if newest == fork:
        raise LedgerError(f"{path}: is as new as {witness}. There is nothing to recover.")
    if newest.head not in ledger.history.lost:  # else only the witness was not told
        _restore(ledger, seen.seen, fork, forked=fork.rows < len(rows))
    ledger.start_witness(witness)


def _restore(ledger: Ledger, seen: Sequence[Sighting], fork: Sighting, *, forked: bool) -> None:
    """Write what was taken between a row that both copies have and the newest that was seen.

    What this accountant makes of the plans at the fork may differ from what the witness was
    told then; the dearer reading counts.
    """
    newest, snapshot, lost = seen[-1], ledger.history.snapshot(fork.rows), []
    for index, after in enumerate(newest.used):
        before = min(fork.used[index], snapshot.used[index])
        again = max(fork.open[index], snapshot.open[index]) if forked else 0.0
        exact = Fraction(after) - Fraction(before) + Fraction(again)
        lost.append(_rounded_up(max(exact, Fraction(0))))
    if not all(map(math.isfinite, lost)):
        raise LedgerError(f"{ledger.path}: the witness states more spending than any rule allows.")
    rows: list[tuple[str, dict[str, Any]]] = []
    if (newest.declared_size, newest.delta) != snapshot[3:]:
        grown = {"declared_size": newest.declared_size, "delta": newest.delta}
        rows.append(("grown", grown))  # what the lost copy promised is promised still
    heads = [sighting.hash for sighting in seen[fork.rows :]]
    rows.append(("restored", {"rows": newest.rows, "heads": heads, "lost": lost}))
    ledger.order(rows, lambda history: None)


def _rounded_up(exact: Fraction) -> float:
    """Return the nearest float64 that is no less; infinite beyond the largest."""
    try:
        found = float(exact)
    except OverflowError:
        return math.inf
    return found if found >= exact else math.nextafter(found, math.inf)


def witness_anew(path: Path, witness: Path, seen: Sequence[Head] = ()) -> Ledger:
    """Open a ledger whose witness is lost, and start another.

    This is for a file that was never restored from a backup: only the old witness knew what a newer
    copy had taken, so nobody could count it. The old one must not be used again, as it has not seen
    what follows.

    Args:
        seen: heads of this ledger that are known outside, from a report or a server.

    Raises:
        LedgerError: there is such a file, it can't be written, or the ledger has no witness.
        LedgerCorruptError: one of `seen` is not in this ledger: it is an older copy.
    """
    if witness.exists():
        raise LedgerError(
            f"{witness}: is there. If it is the witness of {path}, it is not lost; nothing was"
            " changed."
        )
    ledger = Ledger(Chain.open(path))
    with on_error(ledger.close):
        if not ledger.terms.witnessed:
            raise LedgerError(f"{path}: was made without a witness. Leave it out.")
        for head in seen:
            ledger.check_witness(head)
        ledger.start_witness(witness)
    return ledger
