"""`fedpriv-client evaluate`: score the models that a site has. Free, because nothing leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedpriv.adapter_facts import AdapterFacts, Kind, read_facts
from fedpriv.config.personal import OwnSiteFile
from fedpriv.errors import ConfigError, naming
from fedpriv.models.vector import Vector
from fedpriv.names import OwnKind
from fedpriv.personal.evaluation import MEANING, Evaluation, evaluate
from fedpriv.personal.held_out_checks import check_held_out
from fedpriv.personal.own_models import TRAINED
from fedpriv.personal.page import write_page
from fedpriv.personal.records import own_examples, to_test_on
from fedpriv.plain_training.adapter import read_values
from fedpriv.private_training.worker import Worker
from fedpriv.progress import shown_on
from fedpriv.report.figures import score
from fedpriv.serving import load_site_model
from fedpriv.serving.folder import read_weights, site_models
from fedpriv_client.handover import said
from fedpriv_client.own import Federated, at_work, federated, opened

PAGE = "evaluation.html"  # in the site's folder
STAYS = "Computed from this site's records without privacy: not to leave this house."


def own_view(
    file: OwnSiteFile,
    config: Path,
    adapter: Path | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> Evaluation:
    """Score the base, federated and (if any) own models on the held-out records.

    Args:
        adapter: folder of the job's adapter; by default the newest that was handed over.

    Raises:
        ConfigError, DataError, ModelError: the evaluation can't begin; names what to do.
        RunningError: another evaluation or personalisation is under way.

    Privacy:
        None: computed from raw records, so it is for the site alone (law 16).
    """
    if file.data.held_out is None:
        problem = "is missing, so there are no records that no model was trained on"
        fix = (
            "Keep a share of the units apart, such as held_out = 0.2, or name a file of"
            " further records. Jobs, and fedpriv-client personalise, leave them out from then on."
        )
        raise ConfigError(problem, file=config, key="data.held_out", fix=fix)
    chosen = federated(file, config, adapter)
    with at_work(chosen.settings.state_dir), opened(chosen, say) as (own, worker):
        records = own.held_out
        spec = chosen.spec
        with naming(config):
            tokenizer, key = worker.base.tokenizer, "data.held_out"
            examples, units = to_test_on(records, spec, tokenizer, key=key)
            (training,) = own_examples(own.training, spec, tokenizer)
            check_held_out(training, examples, tokenizer, key=key)
        folder = site_models(chosen.settings.state_dir) / chosen.facts.job
        models, facts = _models(chosen, worker, folder)
        own_now, now = str(file.data.held_out), said(file.data.held_out)
        knowing: dict[Kind, str | None] = {}  # models made with another or an unknown value
        knowing |= {kind: one.held_out for kind, one in facts.items() if one.held_out != own_now}
        if adapter is None and (when := chosen.facts.held_out) != now:
            knowing["federated"] = when
        served = read_weights(folder) if folder.exists() else {}
        return evaluate(
            worker,
            examples,
            models,
            spec,
            units=units if knowing in ({}, {"federated": None}) else None,
            site=chosen.settings.name,
            job=chosen.facts.job,
            records=len(records),
            beside=file.personal.beside,
            served=served,
            site_model=load_site_model(folder) if "single" in served else None,
            trained={kind: one.trained or "" for kind, one in facts.items()},
            notes=_notes(knowing, len(facts)),
            told=say,
        )


def _models(
    chosen: Federated, worker: Worker, own: Path
) -> tuple[dict[str, Vector], dict[OwnKind, AdapterFacts]]:
    """Return the values of each model that exists, and the facts of the site's own models."""
    values = {"base": worker.initial, "federated": read_values(chosen.folder, worker, chosen.facts)}
    facts = {kind: read_facts(own / kind) for kind in TRAINED if (own / kind).exists()}
    values |= {kind: read_values(own / kind, worker, facts[kind]) for kind in facts}
    return {name: values[name] for name in MEANING if name in values}, facts


def _notes(knowing: Mapping[Kind, str | None], own: int) -> list[str]:
    """Write notes on models that may know held-out records, and on own models that are missing."""
    again = " Train it again: fedpriv-client personalise"
    notes = [
        f"The model {kind!r} was trained when data.held_out was {when or 'not written down'},"
        f" so it may know some of these records.{again * (kind != 'federated')}"
        for kind, when in knowing.items()
    ]
    if own < len(TRAINED):
        notes.append(
            "There is more to compare: fedpriv-client personalise trains this site's own models,"
            " with the federation's adapter and without."
        )
    return notes


def run(file: OwnSiteFile, config: Path, adapter: Path | None) -> None:
    """Evaluate, write the page, and show the table."""
    console = Console(highlight=False, markup=False)
    with shown_on(console, "Starting") as say:
        found = own_view(file, config, adapter, say=say)
    page = file.site.state_dir / PAGE
    write_page(found, page)
    console.print(table(found))
    for line in filter(None, (found.verdict, *found.notes, STAYS, f"Page: {page}")):
        console.print(line, soft_wrap=True)


def table(found: Evaluation) -> Table:
    """Return a table of the models side by side."""
    title = f"{found.records} held-out records of {found.site}, job {found.job}"
    shown = Table("", *found.columns, "rate × passes", title=title, title_justify="left")
    for index, row in enumerate(found.rows):
        cells = (score(column[index]) for column in found.columns.values())
        shown.add_row(f"{row.name} (served)" if row.served else row.name, *cells, row.trained)
    return shown
