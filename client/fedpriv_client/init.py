"""Make the ledger of a site's population, once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fedpriv.config.site_file import SiteFile
from fedpriv.config.sources import where
from fedpriv.errors import (
    AccountingError,
    ConfigError,
    LedgerCorruptError,
    LedgerError,
    ModelError,
)
from fedpriv.files import private_folder
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv.privacy.ledger.claims import ALONE
from fedpriv.privacy.ledger.ledger import Ledger, Plan, Terms
from fedpriv.privacy.ledger.life import life_with
from fedpriv.privacy.ledger.rules import Amounts
from fedpriv.privacy.ledger.terms import new_dataset_id
from fedpriv.privacy.life import Life
from fedpriv.report.lifetime import for_one, in_words
from fedpriv.report.page_parts import RULES
from fedpriv.terminal import confirm, is_asked
from fedpriv_client.settings import (
    check_no_ledger_is_missing,
    ledger_path,
    ledgers,
    settings_of,
    terms_of,
)
from fedpriv_client.site_settings import cache_folder
from fedpriv_client.undo_init import undo, unspent

RATE, STEPS = 0.05, 100  # of a usual job, if the site's own limits allow them


def make_ledger(file: SiteFile, config_path: Path, *, another: bool, yes: bool) -> None:
    """Show the terms of a ledger, ask for a yes if there is a terminal, and make the ledger.

    If there is a ledger with other terms and nothing was spent from it, it is undone first. This
    leaves a trace.

    Args:
        another: these are other people than in the first ledger.
        yes: don't ask.

    Raises:
        LedgerError: as `init_site`. Nothing was made.
        DataError: as `_left_out`. Nothing was made.
    """
    terms = terms_of(file, new_dataset_id())
    left_out = _left_out(file)
    print("This makes the ledger of these people. Its terms hold for their lives:")
    for name, text in in_words_of(file, terms):
        print(f"  {name}: {text}")
    if left_out:
        print(left_out)
    old = None if another else _mistyped(file, terms)
    if old is not None:
        print(f"The ledger {old} has other terms; nothing was spent from it. It is undone first.")
    confirm("Make this ledger?", yes=yes or not is_asked())
    if old is not None:
        print(undo(file, old))
    dataset_id = init_site(file, config_path, another=another)
    elsewhere = "" if file.budget.witness is None else ", and the witness elsewhere"
    print(
        f"Made the ledger of data set {dataset_id}. Keep {file.site.state_dir} in your"
        f" backups{elsewhere}.\nIf a term is wrong: fedpriv-client undo-init, within a day and"
        " before the client is started."
    )


def in_words_of(file: SiteFile, terms: Terms) -> Iterator[tuple[str, str]]:
    """Yield the name of each term that a ledger fixes, with its value and meaning."""
    whose = "each by itself" if terms.unit == "record" else "all records of one together"
    alone = terms.budget_alone
    yield "data", str(where(file.data.records))
    yield "unit", f"{terms.unit}, {whose}, at most {terms.max_records_per_unit} used of each"
    yield "declared size", f"{terms.declared_size:,} units"
    yield "ε for life", f"{terms.budget:g}" + ("" if alone is None else f"; {alone:g} {ALONE}")
    yield "δ", f"{terms.delta:g}"
    yield "rule", f"{terms.rule.name}: {RULES[terms.rule.name]}"
    none = "none, so nothing outside the backup can tell that an older copy was restored"
    yield "witness", none if file.budget.witness is None else str(file.budget.witness)
    used = (0.0,) * sum(len(claim.limit) for claim in terms.claims)
    with suppress(AccountingError):
        life = usual_job(file, terms, used)
        rate, steps = pace(file)
        basis = f" This is for {steps} steps of rate {rate:g}; another job may take more."
        name = f"a usual job of budget.per_job, ε = {file.budget.per_job:g}"
        yield name, in_words(life, asks=True) + basis
    whole = {"by all of it": alone or terms.budget}
    yield "what that means", for_one(terms.unit, terms.delta, whole)
    yield "later", "only the size can grow and δ shrink: fedpriv ledger grow"


def _left_out(file: SiteFile) -> str:
    """Read the records as the client will. If their file is not there yet, only say so.

    Returns:
        In words, which of them would be left out; nothing if all are used.

    Raises:
        DataError: they can't be used as the file says.
        ConfigError: their transform can't be used.
    """
    from fedpriv_client.own_records import check_examples, read_records

    settings, source = settings_of(file, ""), file.data.records
    if isinstance(source, Path) and not source.exists():
        return f"The records were not read: {source} is not there."
    kept = private_folder(cache_folder(private_folder(file.site.state_dir)))
    with tempfile.TemporaryDirectory(dir=kept, prefix="init-") as cache:
        own = read_records(settings, Path(cache))
        try:
            tally = check_examples(settings, own)
        except ModelError as error:
            return f"It was not checked whether the texts fit: {error}"
    return "" if tally.is_whole else f"Left out for life: {tally.told}."


def _mistyped(file: SiteFile, terms: Terms) -> str | None:
    """Return the only ledger of the site, if it has other terms and may be undone."""
    known = [*ledgers(file)]
    if len(known) == 1 and file.data.dataset_id is None:
        with suppress(LedgerError, ConfigError), unspent(file, known[0]) as ledger:
            if replace(ledger.terms, dataset_id=terms.dataset_id) != terms:
                return known[0]
    return None


def init_site(file: SiteFile, config_path: Path, *, another: bool = False) -> str:
    """Make a ledger with the budget that a file states. Its terms can't be changed afterwards.

    Args:
        another: the site has a ledger already, and these are other people.

    Returns:
        The dataset id: a random name, from which nothing about the records can be learned.

    Raises:
        LedgerError: there is a ledger already, or none can be made with these terms. Nothing was
            made.
        LedgerCorruptError: there was a ledger, which has to be restored.
    """
    known, stated, state = ledgers(file), file.data.dataset_id, file.site.state_dir
    if known and not another:
        raise LedgerError(
            f"{state}: has the ledger of {', '.join(known)} already. A second one for the same"
            " people would be a fresh budget for them. If a term of it is wrong and nothing was"
            " spent: fedpriv-client undo-init. If these are other people: --another."
        )
    if stated is not None and stated not in known:
        raise LedgerCorruptError(
            f"{config_path}: data.dataset_id names the ledger {ledger_path(file, stated)}, which is"
            " not there. Restore its newest copy; or leave the key out, if it was for other people."
        )
    if not known:
        check_no_ledger_is_missing(file)
    terms = terms_of(file, new_dataset_id())
    path = ledger_path(file, terms.dataset_id)
    private_folder(state)
    private_folder(path.parent)
    Ledger.create(path, terms, file.budget.witness).close()
    return terms.dataset_id


def usual_job(file: SiteFile, terms: Terms, used: Amounts) -> Life:
    """Return what a usual job of ε = `budget.per_job` takes of the budget, or that it doesn't fit.

    Args:
        used: what the accepted jobs use, as `History.used`.
    """
    rate, steps = pace(file)
    noise = calibrate_noise(file.budget.per_job, terms.plan_delta, rate, steps)
    noise = max(noise, file.allow.min_noise)
    return life_with(terms, used, Plan("usual", "dp-lora", rate, noise, 1.0, steps, ""))


def pace(file: SiteFile) -> tuple[float, int]:
    """Return the sample rate and steps of a usual job, within the site's own limits."""
    allow, stated = file.allow, file.allow.model_fields_set
    rate = allow.max_rate if "max_rate" in stated else min(RATE, allow.max_rate)
    return rate, min(STEPS, allow.max_steps)
