"""Run a job over a Flower grid: rounds, evaluation, checkpoints, and in the end the adapter."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from fedpriv import __version__
from fedpriv.base_model import BEGIN, CONFIG, EMBEDDED, WEIGHTS
from fedpriv.config.job import JobConfig
from fedpriv.config.looks import MAX_RANGE
from fedpriv.errors import FedprivError, RoundError
from fedpriv.files import write_atomic
from fedpriv.methods.proposal import job_recipe, method_settings
from fedpriv.methods.registry import find_method
from fedpriv.plain_training.adapter import write_facts
from fedpriv.plain_training.scores import Scores
from fedpriv.plain_training.warm_start import warm_start
from fedpriv.privacy.ledger.ledger import Head
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.private_training.pool import WorkerPool
from fedpriv.protocol import Centres, Proposal
from fedpriv.report.figures import worse_by_now
from fedpriv.report.live import LiveReport
from fedpriv.secure_sum.roster import Roster
from fedpriv.stored_adapter import find_adapter
from fedpriv.synthetic.evolution import Evolution
from fedpriv_server.checkpoint import Checkpoint
from fedpriv_server.evaluation import (
    evaluation_records,
    scores,
)
from fedpriv_server.run_directory import RunDirectory
from fedpriv_server.synthetic import evolution_of
from fedpriv_server.tracking.tracking import track
from fedpriv_strategies.looks import look
from fedpriv_strategies.messages import Nodes
from fedpriv_strategies.rounds import Rounds
from fedpriv_strategies.secure_rounds import SecureRounds
from fedpriv_strategies.strategy import proposal_of, rounds_of, update_of

log = logging.getLogger(__name__)
Listener = Callable[[dict[str, Any]], None]
Gather = Callable[[RoundError | None], None]


def _raise(error: RoundError | None) -> None:
    """Raise the error, and so ask only once: what is missing in one process stays missing."""
    if error is not None:
        raise error


def _persist(ask: Callable[[], None], gather: Gather) -> None:
    """Ask the sites until enough have answered, or until `gather` raises an error."""
    gather(None)
    while True:
        try:
            ask()
            return
        except RoundError as error:
            gather(error)


class Job:
    """A job that is ready to be proposed to sites.

    Args:
        run: an open run directory, new or resumed.
        pool: lends the server a model for evaluation.
        site_of: returns a node's name, None if it may not take part; by default nodes say it.
        roster: the sites that a secure sum may have.

    Attributes:
        proposal: what the sites are asked.
        rounds: metrics of the rounds done so far.
        baseline: scores of the model before the first round.

    Raises:
        FedprivError: the model, the adapter or the evaluation data can't be used.
    """

    def __init__(
        self,
        config: JobConfig,
        run: RunDirectory,
        pool: WorkerPool,
        site_of: Callable[[int], str | None] | None = None,
        roster: Roster | None = None,
    ) -> None:
        self.config, self.run, self._pool = config, run, pool
        self.recipe = job_recipe(config)
        method_settings(config)  # refuses settings that the method has no use for
        with pool.borrow(self.recipe) as worker:
            initial, shapes = public(worker.initial), worker.vector.shapes
            tokenizer = worker.base.tokenizer
            base, begin = config.model.name, config.model.begin
            self.model_facts = {
                "name": base,
                # Relative to the run directory, so that both can be moved together.
                "folder": os.path.relpath(base, run.path) if Path(base).is_absolute() else None,
                "begin": worker.base.begin_digest,
                "task": config.model.task,
                "digest": worker.base.digest,
                "trainable": worker.vector.size,
            }
            job_id = run.info["job_id"]
            self.proposal = proposal_of(config, worker, job_id, roster=roster)
            self.examples, self.tuning = evaluation_records(config, tokenizer, run.path)
        measured = " or ".join(config.evaluation.files())
        self._records = run.same_records({measured: [self.examples, self.tuning]})
        if begin is not None and config.model.begin_as == "merged":  # a part of this job's model
            (run.path / BEGIN).mkdir(exist_ok=True)
            folder = find_adapter(begin).weights.parent
            for name in (CONFIG, WEIGHTS):
                shutil.copyfile(folder / name, run.path / BEGIN / name)
        # Refuses a synthetic set that is of no use for this model.
        find_method(config.job.method).at_site(self.proposal).held_bytes(initial.value.size)
        self.update = update = update_of(config, initial, shapes)
        kept = run.checkpoint()
        begun = kept or Checkpoint(job_id, 0, update.state(), {})
        self._done, self._looks, self._warned = begun.round, begun.looks, False
        self.rounds = run.rounds(self._done)
        if kept is not None:
            update.restore(kept.tensors)
        self.evolution = evolution = evolution_of(
            config, tokenizer, pool, lambda: update.vector, run.path, begun.synthetic
        )
        if evolution is not None and kept is None:
            self._begin(evolution)
        about: dict[str, Any] = {"site_of": site_of, "heads": begun.heads}
        self.strategy = self._strategy(roster, about)
        with pool.borrow(self.recipe) as worker:
            found = run.info.get("baseline") or scores(worker, initial, self.examples, ())
            self.baseline = Scores(**found)

    def _strategy(self, roster: Roster | None, about: dict[str, Any]) -> Rounds:
        """Make the rounds that ask the sites. The run directory keeps the state of a secure sum."""
        kind: type[Rounds] = Rounds
        if roster is not None and self.proposal.shared is not None:
            kind, told = SecureRounds, self.run.sum_file
            about |= {"roster": roster, "state": told.read(), "keep": told.write}
        parts = (self.config, self.proposal, self.update, self._pool, self.evolution)
        return rounds_of(*parts, kind, **about)

    def _begin(self, evolution: Evolution) -> None:
        """Start warm, and keep the values. Sites refuse a slot asked again with other values."""
        if evolution.settings.warm_start:
            with self._pool.borrow(self.recipe) as worker:
                self.update.start_at(warm_start(worker, evolution, self.update.vector))
        self.run.begin(self._checkpoint(0, {}))

    def _checkpoint(self, number: int, heads: Mapping[str, Head]) -> Checkpoint:
        job, state, looks = self.run.info["job_id"], self.update.state(), self._looks
        synthetic = None if self.evolution is None else self.evolution.records
        return Checkpoint(job, number, state, dict(heads), synthetic, looks)

    def execute(self, grid: Nodes, listener: Listener, gather: Gather = _raise) -> None:
        """Run the rounds that are left. Each of them ends in a checkpoint.

        A round that has too few replies changes nothing. It is asked for again, under the same
        slots, as long as `gather` returns. Sites that answered give the same reply at no cost.

        Args:
            listener: called with the metrics of each round, once they are kept.
            gather: called before every round, and with the error of a round that failed. It
                returns when it is worth asking (again), or raises the error.

        Raises:
            RoundError: too few sites accept the job, or answer a round. What is spent stays spent,
                and the run can be resumed.
        """
        run = self.run
        _persist(lambda: self.strategy.propose(grid), gather)
        is_new = run.info["status"] == "preparing"
        facts = {"model": self.model_facts, "records": self._records}
        run.ready(**facts | {"baseline": self.baseline.as_dict()} if is_new else {})
        live = LiveReport(run.path)
        live.update()
        try:
            self._look(grid)  # the last look, if an interruption left its outcome unknown
            for number in range(self._done + 1, self.config.job.rounds + 1):
                if "ended_early" in run.info:
                    break
                started = time.monotonic()
                _persist(partial(self.strategy.run, number, grid), gather)
                metrics = self._metrics(number, started)
                run.save(metrics, self._checkpoint(number, self.strategy.heads))
                self.rounds.append(metrics)
                self._look(grid)
                self._warn()
                listener(self.rounds[-1])
                live.update()
        except BaseException:
            with suppress(Exception):  # a full disk, say: the error that ended the job is raised
                self.save()
            with suppress(OSError, FedprivError):
                run.stop("interrupted")
            with suppress(Exception):
                track(self.config, run, self.rounds, finished=False)
            raise
        self.save()
        if self.config.job.engine == "network":  # until the sites have answered
            run.info["owed"] = {key: sorted(self.strategy.heads) for key in ("reports", "adapters")}
        run.stop("finished")
        track(self.config, run, self.rounds, finished=True)

    def _look(self, grid: Nodes) -> None:
        """Look at the sites' held-out records, if a look is due after the last round and not done.

        The round is kept before anything is asked. So an interrupted look can be asked for again
        with exactly the same request, and sites send the same answer.
        """
        due = self._looks_due(self.rounds[-1]["round"]) if self.rounds else 0
        if due <= self._looks:
            return
        self._looks, row = due, self.rounds[-1]
        loss, accuracy = row["eval_loss"], row["eval_accuracy"]
        if 0 <= loss <= MAX_RANGE:
            found = look(self.strategy, due, Centres(loss=loss, accuracy=accuracy), grid)
            self.rounds[-1] = {**row, "held_out": found.model_dump()}
        else:
            log.warning("A look is left out: the loss on the server's own records is %s.", loss)
        self.run.amend(self.rounds, self._checkpoint(row["round"], self.strategy.heads))

    def _warn(self) -> None:
        """Warn once that the model has become worse, and end the run if the settings say so."""
        number, said = self.rounds[-1]["round"], worse_by_now(self.baseline.eval_loss, self.rounds)
        if not said or number == self.config.job.rounds:
            return
        if not self._warned:
            log.warning("%s", said)
        self._warned = True
        if self.config.evaluation.stop_when_worse:
            ended = f"Ended after round {number} (evaluation.stop_when_worse)."
            self.run.info["ended_early"] = f"{ended} {said.partition(' Stop')[0]}"

    def _looks_due(self, number: int) -> int:
        """Return how many looks there are up to a round."""
        looks = self.config.evaluation.sites
        return 0 if looks is None else looks.due(number, self.config.job.rounds)

    def _metrics(self, number: int, started: float) -> dict[str, Any]:
        """Score the model, and return the metrics to write for a round."""
        outcome, adapter = self.strategy.outcome, self.update.adapter
        shown: dict[str, Any] = {"eval_loss": None, "eval_accuracy": None}
        is_last, every = number == self.config.job.rounds, self.config.evaluation.every
        is_looked_at = self._looks_due(number) > self._looks  # a look needs the scores as centres
        if is_last or is_looked_at or number % every == 0:
            with self._pool.borrow(self.recipe) as worker:
                shown = dict(scores(worker, adapter, self.examples, self.tuning))
        public = self.config.job.data_is_public
        return {
            "round": number,
            **shown,
            "bytes_up": outcome.bytes_up,
            "bytes_down": outcome.bytes_down,
            "denoised": None if outcome.denoised is None else asdict(outcome.denoised),
            "synthetic": None if outcome.evolved is None else asdict(outcome.evolved),
            "held_out": None,
            # How long a round takes depends on who was sampled (law 19).
            "seconds": round(time.monotonic() - started, 3) if public else None,
            "sites": {name: site.model_dump() for name, site in outcome.sites.items()},
        }

    def save(self) -> None:
        """Write the adapter in PEFT's format, and the synthetic set as a file of records.

        The embedded base goes beside the adapter. If the adapter named "embedded" as its base, peft
        would look for that on a hub. The set is post-processing of released values, as is the
        adapter.
        """
        folder, config = self.run.path / "adapter", self.config
        with self._pool.borrow(self.recipe) as worker:
            worker.vector.write(self.update.adapter.value)
            settings = worker.model.peft_config["default"]
            if config.model.name == "embedded":
                settings.base_model_name_or_path = "base"
                shutil.copytree(EMBEDDED, self.run.path / "base", dirs_exist_ok=True)
            worker.model.save_pretrained(folder, save_embedding_layers=False)
        said = card(self.proposal, private=self.run.info["private"])
        write_atomic(folder / "README.md", said)  # the one that peft writes says nothing
        write_facts(folder, self.proposal, kind="federated")
        if self.evolution is not None:
            self.run.write_synthetic(self.evolution.records.value)


def card(proposal: Proposal, *, private: bool) -> str:
    """Return a note on a run's adapter, in Markdown. `fedpriv adapter` writes a whole card.

    Args:
        private: false if the noise came from a seed.
    """
    begun, claim = "", "What each site has paid is in its signed budget report."
    if proposal.begin_digest is not None:
        begun = f" It began at another adapter, {proposal.begin_digest}."
    if not private:
        claim = "**NOT PRIVATE**: samples and noise were drawn from a seed that others may know."
    return (
        f"# {proposal.job_id}\n\nA LoRA adapter of {proposal.model.name}, trained by fedpriv"
        f" {__version__} with {proposal.method}.{begun}\n\n{claim} `fedpriv adapter` writes a whole"
        " card.\n"
    )
