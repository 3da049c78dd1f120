"""An adapter that a site trained for itself, as a folder that says that it has to stay."""

from __future__ import annotations

from pathlib import Path

from fedpriv.adapter_facts import AdapterFacts
from fedpriv.files import private_folder
from fedpriv.models.vector import Vector
from fedpriv.names import OwnKind
from fedpriv.plain_training.adapter import write_adapter
from fedpriv.private_training.worker import Worker

WARNING = "trained on this site's records without privacy: not to leave this house"


def write_own_adapter(
    folder: Path,
    worker: Worker,
    values: Vector,
    federated: AdapterFacts,
    *,
    site: str,
    kind: OwnKind,
    held_out: Path | float | None,
    trained: str,
) -> Path:
    """Write the adapter into a folder for its owner alone, in place of an earlier one of the job.

    Args:
        folder: folder of all adapters of that kind at the site.
        values: values (P,), trained on the site's own records.
        federated: facts about the job's adapter.
        held_out: the value of `data.held_out` at the time.
        trained: rate and passes of the training.

    Returns:
        The adapter's own folder.

    Raises:
        OSError: there is no room, or the disk fails. What was there before is still there.

    Privacy:
        None: the adapter is as confidential as the records (law 16).
    """
    path, card = private_folder(folder) / federated.job, _card(federated.job, site, kind)
    said = {"held_out": None if held_out is None else str(held_out), "trained": trained}
    write_adapter(path, worker, values, federated.proposal, card, kind=kind, **said)
    return path


def _card(job: str, site: str, kind: OwnKind) -> str:
    begun = "the base model" if kind in ("alone", "again") else f"the adapter of job `{job}`"
    return (
        "---\nlibrary_name: peft\ntags: [lora, fedpriv]\n---\n\n"
        f"# {site}, {kind}\n\n"
        f"**{WARNING[0].upper()}{WARNING[1:]}.** Records can be read out of a model that was"
        " trained on them.\n\n"
        f"A LoRA adapter, begun at {begun} and trained on this site's own records. It costs no"
        " budget, as nothing of it is handed on.\n"
    )
