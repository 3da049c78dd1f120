"""Keep the adapter of a finished job at a site. The adapter is public by now."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from fedpriv.adapter_facts import read_facts
from fedpriv.errors import ConfigError, DataError, ProtocolError
from fedpriv.files import private_folder
from fedpriv.models.vector import Vector, check_vector
from fedpriv.plain_training.adapter import read_values, saved_bytes, write_adapter
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.private_training.pool import WorkerPool
from fedpriv.protocol import Handover, Proposal, values_digest
from fedpriv_client.disk_space import disk_space_needed
from fedpriv_client.site_job import check_loaded, recipe_of
from fedpriv_client.site_settings import SiteSettings, adapters_folder
from fedpriv_client.ticks import until_tick

MOST = 32  # adapters that are kept, so that no server fills the disk with them
WRITING = 1.0, 20e6  # seconds until a reply about an adapter, and bytes for each further second
ASK = "ask the coordinator for the folder `adapter` of the run."
SLACK = 1 << 20  # bytes of an adapter's folder beside its values


def keep_adapter(
    settings: SiteSettings,
    ledger: Ledger,
    pool: WorkerPool,
    handover: Handover,
    vector: Vector,
    held: int,
) -> Path:
    """Check the adapter that a server hands over, and write it as a folder that peft reads.

    Args:
        ledger: the site's ledger, with a plan of every job that the site took part in.
        held: bytes of the disk that the open site holds; see `fedpriv_client.held_space`.

    Raises:
        ProtocolError: the adapter is of no job of this site, or of another job than was proposed;
            it is more than the site allows now; or its values did not arrive whole.
        ConfigError: another adapter of the job is here already.
        DataError: there is no room for it.
        OSError: the disk fails.
    """
    proposal = handover.proposal
    job, plan = proposal.job_id, ledger.plan(proposal.job_id)
    if plan is None:
        raise ProtocolError(f"This site has taken no step of job {job!r}.")
    if plan.proposal != proposal.digest():
        raise ProtocolError(f"Job {job!r} is not the one that this site took part in.")
    digest = handover.values_digest
    if values_digest(vector) != digest:
        raise ProtocolError(f"The adapter of job {job!r} has another digest than announced.")
    for refusal in settings.limits.refusals(proposal, ledger.terms):
        raise refusal
    folder = private_folder(adapters_folder(settings.state_dir))
    look = partial(check_loaded, proposal=proposal, limits=settings.limits)
    with pool.borrow(recipe_of(proposal, settings), look) as worker:
        check_loaded(worker.base, worker.vector, proposal, settings.limits)
        check_vector(vector, worker.vector.size)
        path = folder / job
        # Whether there is room depends on what else is on the disk, and so on the records (law 18).
        seconds = WRITING[0] + saved_bytes(worker) / WRITING[1]
        with until_tick(seconds) if settings.limits.ticks else nullcontext():
            if not path.exists():
                _check_room(settings, folder, saved_bytes(worker) + SLACK, held)
                card, own = _card(proposal), said(settings.held_out)
                write_adapter(path, worker, vector, proposal, card, kind="federated", held_out=own)
            elif values_digest(read_values(path, worker, read_facts(path))) != digest:
                fix = f"If you want the new one, move this one away; then {ASK}"
                raise ConfigError("is another adapter of the same job", file=path, fix=fix)
    return path


def said(held_out: Path | float | None) -> str:
    """Describe a site's `data.held_out` without its path, because an adapter may be handed on."""
    return "a file" if isinstance(held_out, Path) else str(held_out or "not set")


def _check_room(settings: SiteSettings, folder: Path, needed: int, held: int) -> None:
    """Check that an adapter leaves the disk space that the site may need after its next start."""
    kept = sum(1 for path in folder.iterdir() if not path.name.startswith("."))
    if kept >= MOST:
        fix = f"Move away those that you no longer need, then {ASK}"
        raise DataError(f"holds {kept} adapters, and no more are kept", file=folder, fix=fix)
    _, reserved = disk_space_needed(settings, 0)
    if shutil.disk_usage(folder).free + held < needed + reserved:
        problem = "has no room for an adapter beside what is reserved for the ledger"
        raise DataError(problem, file=folder, fix=f"Free some of the disk, then {ASK}")


def _card(proposal: Proposal) -> str:
    use = 'To let it write, with the whole package: `fedpriv generate FOLDER "The patient has"`.'
    return (
        "---\nlibrary_name: peft\ntags: [lora, fedpriv]\n---\n\n"
        f"# {proposal.job_id}\n\n"
        f"The LoRA adapter that job `{proposal.job_id}` came to, as its server handed it over:"
        f" method {proposal.method}, {proposal.rounds} rounds. It was made of what the sites"
        " released and paid for, so it may be handed on."
        + (f"\n\n{use}\n" if proposal.model.task == "causal-lm" else "\n")
    )
