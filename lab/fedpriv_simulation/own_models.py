"""What each site would make of the adapter for itself after the last round, as at a real site.

All of it goes to the place where a simulation keeps what would be on a site's own machine.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from fedpriv.adapter_facts import read_facts
from fedpriv.config.job import JobConfig
from fedpriv.config.sites import SiteSection
from fedpriv.files import private_folder
from fedpriv.methods.proposal import job_recipe
from fedpriv.models.vector import Vector
from fedpriv.personal.evaluation import MEANING, Evaluation, evaluate
from fedpriv.personal.held_out_checks import check_held_out
from fedpriv.personal.own_adapter import write_own_adapter
from fedpriv.personal.own_models import train_own
from fedpriv.personal.page import write_page
from fedpriv.personal.records import to_test_on, to_train_on
from fedpriv.plain_training.adapter import read_values
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import Worker
from fedpriv_server.own_records import read_site, spec_of
from fedpriv_server.run_directory import private_site_folder
from fedpriv_simulation.shared_base import SharedBasePool
from fedpriv_simulation.workers import as_own_threads, own_threads, workers_of

PAGE = "evaluation.html"


def spread(config: JobConfig, count: int | None = None) -> tuple[SiteSection, ...]:
    """Choose `count` or all of the sites that hold records out, evenly from first to last."""
    able = [site for site in config.sites if site.held_out is not None]
    if count is None or count >= len(able):
        return tuple(able)
    return tuple(able[(2 * i + 1) * len(able) // (2 * count)] for i in range(count))


def own_models(
    config: JobConfig,
    run: Path,
    sites: Sequence[SiteSection],
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Evaluation]:
    """Train at each of these sites from the run's adapter and from the base model, and compare.

    As many sites train at once as in a round with threads.

    Args:
        run: directory of a run that has finished.
        sites: the sites of the job that hold records out, or some of them.
        say: called with a text about what is being done.

    Raises:
        ConfigError: the adapter was changed meanwhile.
        DataError: a site has too few records for what `personal.validation` asks.

    Privacy:
        None: trained and computed on raw records. Written to the site's private folder alone. What
        is returned is for a person who holds the records of all sites.
    """
    at_once = min(len(sites), workers_of(config)) if config.job.engine == "inline" else 1
    recipe, stopping = job_recipe(config), threading.Event()
    with WorkerPool().borrow(replace(recipe, seed=recipe.seed + 1)) as other:
        training = _Training(config, run, other.initial, say, stopping)

    def made_at(site: SiteSection) -> Evaluation:
        with pool.borrow(recipe) as worker:
            return training.at(worker, site)

    begin = own_threads(at_once)
    with (
        closing(SharedBasePool(at_once)) as pool,
        as_own_threads(at_once),
        ThreadPoolExecutor(at_once, initializer=begin) as threads,
    ):
        futures = [threads.submit(made_at, site) for site in sites]
        try:
            found = [future.result() for future in futures]
        finally:  # after a failure, or Ctrl-C, running work ends with its pass
            stopping.set()
            threads.shutdown(cancel_futures=True)
    return dict(zip((site.name for site in sites), found, strict=True))


@dataclass(frozen=True)
class _Training:
    """Hold what each site trains from, besides the run's adapter.

    Attributes:
        another: initial values (P,) made from another seed.
        stopping: set when no more is to be trained.
    """

    config: JobConfig
    run: Path
    another: Vector
    say: Callable[[str], None]
    stopping: threading.Event

    def at(self, worker: Worker, site: SiteSection) -> Evaluation:
        """Train and score at a site, and write its own adapters and the page."""
        config, run = self.config, self.run
        folder = private_folder(private_site_folder(run, site.name))
        facts, spec, tokenizer = read_facts(run / "adapter"), spec_of(config), worker.base.tokenizer
        adapter = read_values(run / "adapter", worker, facts)
        with tempfile.TemporaryDirectory(dir=folder, prefix="personal-") as cache:
            own = read_site(site, spec, Path(cache))
            training = to_train_on(own, spec, tokenizer, config.personal)
            key = f"sites.{site.name}.held_out"
            examples, units = to_test_on(own.held_out, spec, tokenizer, key=key)
            check_held_out(training.everything, examples, tokenizer, key=key)
            records = len(own.held_out)

        made = train_own(
            worker,
            adapter,
            self.another,
            training,
            config.personal,
            begun=lambda kind: self.say(f"{site.name}: training by itself, {kind}"),
            told=self._go_on,
        )
        said: dict[str, str] = {kind: one.best.said for kind, one in made.trained.items()}
        for kind, one in made.trained.items():
            write_own_adapter(
                folder / kind,
                worker,
                one.values,
                facts,
                site=site.name,
                kind=kind,
                held_out=site.held_out,
                trained=said[kind],
            )
        models = {"base": worker.initial, "federated": adapter}
        models |= {kind: one.values for kind, one in made.trained.items()}
        evaluation = evaluate(
            worker,
            examples,
            {name: models[name] for name in MEANING if name in models},
            spec,
            units=units,
            site=site.name,
            job=facts.job,
            records=records,
            beside=config.personal.beside,
            served=made.answer.weights,
            trained=said,
        )
        write_page(evaluation, folder / PAGE)
        return evaluation

    def _go_on(self, _: object) -> None:
        if self.stopping.is_set():
            raise CancelledError
