"""Make the ledger of a site's population, once."""

from __future__ import annotations

from pathlib import Path

from fedpriv.config.site_file import SiteFile
from fedpriv.errors import LedgerCorruptError, LedgerError
from fedpriv.files import private_folder
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.terms import new_dataset_id
from fedpriv_client.settings import (
    check_no_ledger_is_missing,
    ledger_path,
    ledgers,
    terms_of,
)


def init_site(file: SiteFile, config_path: Path, *, another: bool = False) -> str:
    """Make a ledger with the budget that a file states; its terms can't be changed afterwards.

    Args:
        another: the site has a ledger, and these are other people.

    Returns:
        The dataset id: a random name, from which nothing of the records can be learned.

    Raises:
        LedgerError: there is a ledger already, or the terms make none. Nothing was made.
        LedgerCorruptError: there was one, which has to be restored.
    """
    known, stated, state = ledgers(file), file.data.dataset_id, file.site.state_dir
    if known and not another:
        raise LedgerError(
            f"{state}: has the ledger of {', '.join(known)} already. A second one for the same"
            " people would be a fresh budget for them. If these are other people: --another."
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
