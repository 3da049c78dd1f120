"""`fedpriv-client personalise`: own models of a site, which answer with the federation's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from fedpriv.adapter_facts import read_facts
from fedpriv.config.personal import OwnSiteFile
from fedpriv.errors import DataError, naming
from fedpriv.files import private_folder
from fedpriv.models.vector import Vector
from fedpriv.names import OwnKind
from fedpriv.personal.own_adapter import WARNING, write_own_adapter
from fedpriv.personal.own_models import OwnModels, train_own
from fedpriv.personal.records import OwnParts, to_train_on
from fedpriv.personal.single import distil, wider
from fedpriv.personal.training import Epoch, Personal
from fedpriv.plain_training.adapter import read_values
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import Worker
from fedpriv.progress import shown_on
from fedpriv.serving.folder import site_models
from fedpriv.serving.write import write_site_model
from fedpriv_client import evaluate
from fedpriv_client.own import Federated, at_work, federated, opened
from fedpriv_client.site_job import recipe_of


@dataclass(frozen=True)
class Made:
    """Hold what `personalise` made.

    Attributes:
        folder: the site model, with all adapters.
        training: the number of examples that were learned from.
        parts: how many parts of them were left out in turn, to choose by; 0 if none were.
        models: passes, losses and weights. They are private, as all of this is.
    """

    folder: Path
    training: int
    parts: int
    models: OwnModels


def personalise(
    file: OwnSiteFile,
    config: Path,
    adapter: Path | None = None,
    *,
    single: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Made:
    """Train a site's own models, and make the folder in which they answer with the federation's.

    What an earlier call made of the same job is replaced once the new folder is complete.

    Args:
        adapter: folder of the job's adapter; by default the newest that was handed over.
        single: let one adapter answer by itself. It learns what the models answer together; for
            labels it is the job's adapter, trained further.
        say: told what is done next.

    Raises:
        ConfigError, DataError, ModelError: it can't begin; names what to do.
        RunningError: another one is under way.
        KeyboardInterrupt: nothing was changed.

    Privacy:
        None: it is trained on raw records, and so stays in the site's folder (law 16).
    """
    chosen = federated(file, config, adapter)
    settings, facts = chosen.settings, chosen.facts
    recipe = recipe_of(facts.proposal, settings)
    with at_work(settings.state_dir) as folder:
        training, models = _train(chosen, file, config, folder, single, say)
        say("Writing the site model")
        adapters = {"federated": chosen.folder}
        adapters |= {kind.name: kind / facts.job for kind in folder.iterdir()}
        weights = models.answer.weights
        if "single" in weights:
            recipe = replace(recipe, lora=read_facts(adapters["single"]).proposal.lora)
        site, job = settings.name, facts.job
        place = private_folder(site_models(settings.state_dir)) / job
        made = write_site_model(place, recipe, adapters, weights, site=site, job=job)
    return Made(made, len(training.everything), training.left_out, models)


def _train(
    chosen: Federated,
    file: OwnSiteFile,
    config: Path,
    folder: Path,
    single: bool,
    say: Callable[[str], None],
) -> tuple[OwnParts, OwnModels]:
    """Train the models and write their adapters into a folder. Only results stay in memory."""
    settings, facts = chosen.settings, chosen.facts
    recipe = recipe_of(facts.proposal, settings)
    labels = bool(recipe.model.labels)
    with opened(chosen, say) as (own, worker):
        with naming(config):
            records = to_train_on(own, chosen.spec, worker.base.tokenizer, file.personal)
        parts = records.left_out
        how = f", leaving out each of {parts} parts in turn to choose settings" if parts > 1 else ""
        say(f"Training on {len(records.everything)} examples{how}")
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
            begun=lambda kind: say(f"Training: {kind}"),
            told=lambda epoch: say(_pass(epoch)),
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
            say("Training: single")
            there = {"federated": start} | {k: made.values for k, made in models.trained.items()}
            teachers = [(there[name], weight) for name, weight in weights.items()]
            with WorkerPool().borrow(wider(recipe, len(teachers))) as wide:
                values = distil(wide, worker, teachers, records.everything)
                write("single", wide, values, "of what the others answer together")
            models = replace(models, answer=replace(models.answer, weights={"single": 1.0}))
    return records, models


def run(file: OwnSiteFile, config: Path, adapter: Path | None, *, single: bool) -> None:
    """Personalise with progress on the screen, and evaluate if records are held out."""
    console = Console(highlight=False, markup=False)
    with shown_on(console, "Starting") as say:
        made = personalise(file, config, adapter, single=single, say=say)
    console.print(summary(made), soft_wrap=True)
    if file.data.held_out is not None:
        try:
            evaluate.run(file, config, adapter)
        except DataError as error:  # the site model is complete
            console.print(f"The site model can't be evaluated: {error}")


def _pass(epoch: Epoch) -> str:
    """Describe a pass over the records."""
    name = f"rate {epoch.rate:g}, pass {epoch.number}" if epoch.number else "before"
    return name + (", all records" if epoch.loss is None else f": loss {epoch.loss:.3f}")


def summary(made: Made) -> str:
    """Describe what was made, for a person."""
    answer = made.models.answer
    shares = ", ".join(f"{name} {share:.2f}" for name, share in answer.weights.items())
    lines = [f"{kind}: {_how(one)}" for kind, one in made.models.trained.items()]
    lines.append(f"Shares of their answers in the site model: {shares}.")
    if answer.losses:
        losses = ", ".join(f"{name} {loss:.3f}" for name, loss in answer.losses.items())
        lines.append(
            f"Loss on records that were left out: {losses}. The smallest set within"
            f" {answer.spread:.3f} of the best was kept, because seeds differ by that much."
        )
    lines.append(f"The site model is in {made.folder}: {WARNING}.")
    lines.append("Let it write or answer: fedpriv-client generate, classify or serve-model")
    return "\n".join(lines)


def _how(made: Personal) -> str:
    """Say how a model was trained."""
    best = made.best
    if not best.number:
        return "no pass lowered the loss on the records left out, so it is as it began"
    if best.loss is None:
        return f"{best.number} passes over all records at rate {best.rate:g}"
    return (
        f"{best.number} passes at rate {best.rate:g}, with a loss of {best.loss:.3f} on the"
        f" records left out, {made.epochs[0].loss:.3f} before"
    )
