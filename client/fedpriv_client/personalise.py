"""`fedpriv-client personalise`: a site's own models, which answer with the federation's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fedpriv.config.personal import OwnSiteFile
from fedpriv.errors import DataError, naming
from fedpriv.files import finite_json, private_folder
from fedpriv.models.vector import Vector
from fedpriv.names import OwnKind
from fedpriv.personal.own_adapter import WARNING, write_own_adapter
from fedpriv.personal.own_models import OwnModels, train_own
from fedpriv.personal.records import OwnParts, to_train_on
from fedpriv.personal.single import distil, wider
from fedpriv.personal.training import Epoch, Personal
from fedpriv.plain_training.adapter import read_facts, read_values
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import Worker
from fedpriv.serving.folder import site_models
from fedpriv.serving.write import write_site_model
from fedpriv_client import evaluate
from fedpriv_client.own import Federated, at_work, federated, opened
from fedpriv_client.site_job import recipe_of


@dataclass(frozen=True)
class Made:
    """What was made.

    Attributes:
        folder: the site model, with all adapters.
        training: examples that were learned from.
        parts: of them that were left out in turn, to choose by; 0 if none were.
        models: passes, losses and weights. Private, as all of it.
    """

    folder: Path
    job: str
    training: int
    parts: int
    models: OwnModels

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON, for the site's own administrator."""
        answer = self.models.answer
        return {
            "folder": str(self.folder),
            "weights": dict(answer.weights),
            "left_out_losses": dict(answer.losses),
            "seeds_differ_by": answer.spread,
            "job": self.job,
            "training": self.training,
            "parts": self.parts,
            "models": {
                kind: {
                    "best": made.best.as_dict(),
                    "passes": [epoch.as_dict() for epoch in made.epochs],
                }
                for kind, made in self.models.trained.items()
            },
        }


def personalise(
    file: OwnSiteFile,
    config: Path,
    adapter: Path | None = None,
    *,
    single: bool = False,
    say: Callable[[str], None] = lambda text: None,
    begun: Callable[[OwnKind], None] = lambda kind: None,
    told: Callable[[Epoch], None] = lambda epoch: None,
    learned: Callable[[int, int], None] = lambda step, steps: None,
) -> Made:
    """Train a site's own models, and make the folder in which they answer with the federation's.

    What an earlier call made of the same job is replaced when this is whole.

    Args:
        adapter: folder of the job's adapter; the newest that was handed over without it.
        single: let one adapter answer by itself. It learns what the models answer together; for
            labels it is the job's, trained further.
        say, begun, told, learned: what is done, each model before it is trained, every pass over
            the records, and every step of how many of the single adapter; for the administrator's
            screen.

    Raises:
        ConfigError, DataError, ModelError: it can't be begun; names what to do.
        RunningError: another one is under way.
        KeyboardInterrupt: nothing was changed.

    Privacy:
        None: it is trained on raw records, and so stays in the site's folder (law 16).
    """
    chosen = federated(file, config, adapter)
    settings, facts = chosen.settings, chosen.facts
    recipe = recipe_of(facts.proposal, settings)
    with at_work(settings.state_dir) as folder:
        steps = _Steps(say, begun, told, learned)
        training, models = _train(chosen, file, config, folder, single, steps)
        say("Writing the site model")
        adapters = {"federated": chosen.folder}
        adapters |= {kind.name: kind / facts.job for kind in folder.iterdir()}
        if "single" in models.answer.weights:
            recipe = replace(recipe, lora=read_facts(adapters["single"]).proposal.lora)
        made = write_site_model(
            private_folder(site_models(settings.state_dir)) / facts.job,
            recipe,
            adapters,
            models.answer.weights,
            site=settings.name,
            job=facts.job,
        )
    return Made(made, facts.job, len(training.everything), training.left_out, models)


@dataclass(frozen=True)
class _Steps:
    """Whom `personalise` tells of what is done."""

    say: Callable[[str], None]
    begun: Callable[[OwnKind], None]
    told: Callable[[Epoch], None]
    learned: Callable[[int, int], None]


def _train(
    chosen: Federated,
    file: OwnSiteFile,
    config: Path,
    folder: Path,
    single: bool,
    steps: _Steps,
) -> tuple[OwnParts, OwnModels]:
    """Train the models, and put their adapters into a folder; no more is in memory afterwards."""
    settings, facts = chosen.settings, chosen.facts
    recipe = recipe_of(facts.proposal, settings)
    labels = bool(recipe.model.labels)
    with opened(chosen, steps.say) as own:
        worker = own.worker
        with naming(config):
            records = to_train_on(own.records, chosen.spec, worker.base.tokenizer, file.personal)
        parts = records.left_out
        how = f", leaving out each of {parts} parts in turn to choose" if parts > 1 else ""
        steps.say(f"Training on {len(records.everything)} examples{how}")
        start, another = read_values(chosen.folder, worker, facts), worker.initial
        if not (single and labels):
            with WorkerPool().borrow(replace(recipe, seed=recipe.seed + 1)) as other:
                another = other.initial
        models = train_own(
            worker,
            start,
            another,
            records,
            file.personal,
            only_personal=single and labels,
            begun=steps.begun,
            told=steps.told,
        )

        def write(kind: OwnKind, worker: Worker, values: Vector, trained: str) -> None:
            lora, digest = worker.recipe.lora, worker.vector.digest
            shape = facts.proposal.model_copy(update={"lora": lora, "vector_digest": digest})
            write_own_adapter(
                folder / kind,
                worker,
                values,
                facts.model_copy(update={"proposal": shape}),
                site=settings.name,
                kind=kind,
                held_out=file.data.held_out,
                trained=trained,
            )

        for kind, made in models.trained.items():
            write(kind, worker, made.values, made.best.said)
        weights = models.answer.weights
        if single and len(weights) > 1:
            steps.begun("single")
            there = {"federated": start} | {k: made.values for k, made in models.trained.items()}
            teachers = [(there[name], weight) for name, weight in weights.items()]
            with WorkerPool().borrow(wider(recipe, len(teachers))) as wide:
                values = distil(wide, worker, teachers, records.everything, told=steps.learned)
                write("single", wide, values, "of what the others answer together")
            models = replace(models, answer=replace(models.answer, weights={"single": 1.0}))
    return records, models


def run(
    file: OwnSiteFile, config: Path, adapter: Path | None, *, single: bool, as_json: bool
) -> dict[str, Any]:
    """Personalise with progress on the screen, and evaluate where records are held out.

    Returns:
        What was made, as JSON.
    """
    console = Console(stderr=as_json)
    lowest: float | None = None
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    task = bar.add_task("Starting", total=None, note="")

    def say(text: str) -> None:
        bar.update(task, description=text)
        if not console.is_terminal:
            console.print(text, highlight=False, soft_wrap=True)

    def begun(kind: OwnKind) -> None:
        nonlocal lowest
        lowest = None
        say(f"Training: {kind}")
        bar.update(task, completed=0, total=file.personal.beginning(kind).epochs, note="")

    def learned(step: int, steps: int) -> None:
        bar.update(task, completed=step, total=steps)

    def told(epoch: Epoch) -> None:
        nonlocal lowest
        if epoch.loss is not None:
            lowest = epoch.loss if lowest is None else min(lowest, epoch.loss)
        if epoch.number:
            note = "" if lowest is None else f"at best {lowest:.3f}"
            bar.update(task, completed=epoch.number, note=f"rate {epoch.rate:g} {note}")
        if not console.is_terminal:
            console.print(_line(epoch), highlight=False)

    with bar:
        made = personalise(
            file, config, adapter, single=single, say=say, begun=begun, told=told, learned=learned
        )
    if not as_json:
        console.print(summary(made), highlight=False, soft_wrap=True, markup=False)
    found = dict(finite_json(made.as_dict()))
    if file.data.held_out is not None:
        try:
            found["evaluation"] = evaluate.run(file, config, adapter, limit=None, as_json=as_json)
        except DataError as error:  # the site model is whole
            console.print(f"It can't be evaluated: {error}", highlight=False, markup=False)
    return found


def _line(epoch: Epoch) -> str:
    name = f"rate {epoch.rate:g}, pass {epoch.number}" if epoch.number else "before"
    return f"{name}, all records" if epoch.loss is None else f"{name}: loss {epoch.loss:.3f}"


def summary(made: Made) -> str:
    """Describe what was made, for a person."""
    answer = made.models.answer
    shares = ", ".join(f"{name} {share:.2f}" for name, share in answer.weights.items())
    lines = [f"{kind}: {_how(one)}" for kind, one in made.models.trained.items()]
    lines.append(f"Of their answers the site model has: {shares}.")
    if answer.losses:
        losses = ", ".join(f"{name} {loss:.3f}" for name, loss in answer.losses.items())
        lines.append(
            f"Loss on records that were left out: {losses}. The smallest set was kept that is"
            f" within {answer.spread:.3f} of the best, which is what seeds differ by."
        )
    lines += [
        f"The site model is in {made.folder}: {WARNING}.",
        "Let it write or answer: fedpriv-client generate, classify or serve-model",
    ]
    return "\n".join(lines)


def _how(made: Personal) -> str:
    """Say how a model was trained."""
    best = made.best
    if not best.number:
        return "no pass lowered the loss on what was left out, so it is what it began with"
    if best.loss is None:
        return f"{best.number} passes over all records at rate {best.rate:g}"
    return (
        f"{best.number} passes at rate {best.rate:g}, with a loss of {best.loss:.3f} on what was"
        f" left out, {made.epochs[0].loss:.3f} before"
    )
