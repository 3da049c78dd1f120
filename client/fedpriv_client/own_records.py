"""Read a site's records as its own file says, and check that they have something to learn."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from fedpriv.data.held_out import OwnRecords, read_own
from fedpriv.data.population import Tally, encode_population, tally_records
from fedpriv.data.store import TokenFile
from fedpriv.errors import DataError
from fedpriv.files import private_folder
from fedpriv.models.base import fetch_base, load_tokenizer
from fedpriv.models.config import ModelSection
from fedpriv_client.site_settings import SiteSettings
from fedpriv_client.ticks import SLOWER, preparation

WRITTEN = 1.2  # factor on the time if tokens are also written


def read_records(settings: SiteSettings, cache_dir: Path) -> OwnRecords:
    """Read the records of a site, with the held-out records apart.

    Raises:
        DataError: see `read_own`.
    """
    return read_own(
        settings.data,
        settings.held_out,
        settings.longest,
        cache_dir=cache_dir,
        key=_data_key(settings),
        transform=settings.transform,
    )


def check_examples(settings: SiteSettings, own: OwnRecords) -> Tally:
    """Check that the model which the site allows has something to learn from the records.

    Raises:
        DataError: too few records give an example; names rows, never what they hold. Or they take
            longer to prepare than a proposal allows.
        ModelError: the model is not there and can't be downloaded, or has no tokenizer.

    Privacy:
        For the administrator, before the site connects. The site's own file decides it, once: no
        proposal changes it, and no answer to a proposal depends on it (law 18).
    """
    assert settings.model is not None
    spec, looks = settings.longest, settings.limits.evaluation
    model = ModelSection(name=settings.model, begin=settings.begin)
    fetch_base(model)  # now: no answer may depend on disk space for a download
    tokenizer = load_tokenizer(model)
    began = time.monotonic()
    tally = tally_records(own.training, spec, tokenizer, rows=own.rows)
    refuse_empty(settings, tally)
    if looks:  # they are paid from the same budget
        refuse_empty(settings, tally_records(own.held_out, spec, tokenizer), held_out=True)
    took = time.monotonic() - began
    if settings.limits.ticks:
        began, file = time.monotonic(), TokenFile(private_folder(settings.state_dir))
        for records in (own.training, own.held_out)[: 1 + looks]:  # windows take time, too
            encode_population(records, replace(spec, max_length=2), tokenizer, file)
        file.close()
        _check_preparation(settings, SLOWER * max(WRITTEN * took, time.monotonic() - began))
    return tally


def _check_preparation(settings: SiteSettings, took: float) -> None:
    """Check that for any proposal the records are prepared before their tick (law 19)."""
    if took > (allowed := preparation(settings)):
        problem = f"the records take {took:.1f} s to prepare, and a proposal leaves {allowed:.1f} s"
        fix = f"Set it to {2 * took:.0f}: the time of an answer must not depend on the records."
        raise DataError(problem, key="site.preparation", value=settings.preparation or ..., fix=fix)


def refuse_empty(settings: SiteSettings, tally: Tally, *, held_out: bool = False) -> None:
    """Refuse records if too few of them give an example: those to train on, or those held out.

    Raises:
        DataError: see `Tally.check`.
    """
    table, _, name = _data_key(settings).rpartition(".")
    key = f"{table}.{'held_out' if held_out else name}"
    tally.check(settings.max_empty, key=key, limit="data.max_empty")


def _data_key(settings: SiteSettings) -> str:
    """Return the setting that names the records."""
    return f"sites.{settings.name}.data" if settings.terms.simulated else "data.path"
