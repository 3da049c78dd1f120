"""The rounds of a federation file as a Flower Strategy, for a ServerApp of your own."""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedpriv.config.duration import seconds
from fedpriv.config.job import JobConfig
from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError, RoundError
from fedpriv.methods.proposal import job_recipe, propose
from fedpriv.methods.server_half import ServerContext
from fedpriv.models.vector import Vector
from fedpriv.plugins import SERVER_HALVES, load
from fedpriv.privacy.mechanism.privatised import Privatised, public
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import Worker
from fedpriv.protocol import Proposal
from fedpriv.public_update.config import DenoiseSection, ServerOptimizerSection
from fedpriv.public_update.update import denoise_of
from fedpriv.synthetic.evolution import Evolution
from fedpriv_strategies.averaged import AveragedUpdate
from fedpriv_strategies.rounds import Rounds

log = logging.getLogger(__name__)
PAUSE = 0.2  # seconds between two checks of how many sites are connected


def proposal_of(config: JobConfig, worker: Worker, job_id: str, **others: Any) -> Proposal:
    """Make the proposal of a job for the model that a worker holds."""
    base, vector = worker.base, worker.vector.digest
    return propose(
        config, job_id=job_id, base=base.digest, begin=base.begin_digest, vector=vector, **others
    )


def update_of(
    config: JobConfig, initial: Privatised[Vector], shapes: Sequence[tuple[int, ...]]
) -> AveragedUpdate:
    """Make the server's update: along gradients, or along moves that sites made of gradients."""
    mover, denoise, job = config.optimizer, config.denoise, config.job
    if config.job.sync > 1:  # sites have optimised and denoised by themselves
        mover, denoise = config.server_optimizer or ServerOptimizerSection(), DenoiseSection()
    averaged = math.ceil(round(job.rounds * job.average, 9))  # else 0.9 of 10 would be 10
    after = job.rounds - averaged if averaged else None
    return AveragedUpdate(mover, initial, denoise_of(denoise, shapes), after)


def rounds_of(
    config: JobConfig,
    proposal: Proposal,
    update: AveragedUpdate,
    pool: WorkerPool,
    public_set: Evolution | None = None,
    kind: Callable[..., Rounds] = Rounds,
    **others: Any,
) -> Rounds:
    """Make the rounds that ask the sites, with the server half of the job's method.

    Args:
        pool: lends a model.
        public_set: the synthetic set of the job.
        others: further arguments of `kind`.
    """
    context = ServerContext(
        proposal=proposal,
        trained=update.size,
        parameters=lambda: update.vector,
        lend=lambda: pool.borrow(job_recipe(config)),
        public_set=public_set,
    )
    half = load(SERVER_HALVES, config.job.method, key="job.method")(context)
    others |= {"min_sites": config.job.min_sites, "sites": len(config.sites)}
    return kind(proposal, update, half, timeout=seconds(config.job.round_timeout), **others)


class PrivateRounds(Strategy):
    """Runs rounds of private steps at sites that run `fedpriv_client.app.client_app`.

    The app itself decides what to evaluate, keep and hand on. A round that too few sites answer
    raises a RoundError and changes nothing. `start` may then be called again with `left` rounds,
    and asks under the same slots.

    Args:
        job: a federation file, or what `load_job` made of it.

    Attributes:
        arrays: the present adapter, with the names that peft saves. Give it to `start` as
            `initial_arrays`.
        rounds: which sites take part, and the outcome of the last round.

    Raises:
        ConfigError: the job asks for something that this class does not do.
        FedprivError: the model can't be used.
    """

    def __init__(self, job: JobConfig | Path | str) -> None:
        config = job if isinstance(job, JobConfig) else load_job(job)
        for key, stated in (
            ("evaluation.sites", config.evaluation.sites),
            ("privacy.trust", config.max_colluding),
            ("synthetic", config.synthetic),
        ):
            if stated is not None:
                fix = "Leave it out, or run the job with fedpriv-server."
                raise ConfigError("is not supported by PrivateRounds", key=key, fix=fix)
        self._recipe, self._pool = job_recipe(config), WorkerPool(1)
        with self._pool.borrow(self._recipe) as worker:
            update = update_of(config, public(worker.initial), worker.vector.shapes)
            job_id = f"{config.job.name}-{secrets.token_hex(4)}"
            proposal = proposal_of(config, worker, job_id)
        self.rounds = rounds_of(config, proposal, update, self._pool)
        self._taken, self.arrays = 0, self._adapter()

    @property
    def left(self) -> int:
        """How many rounds of the job are left."""
        return self.rounds.proposal.rounds - self._taken

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask each site that accepts the job for its steps, once enough sites are connected.

        Raises:
            ConfigError: the arrays are not those of the job.
            RoundError: all rounds are done, or too few sites accept.
        """
        if arrays != self.arrays:
            raise ConfigError(
                "are not the adapter that this job has now",
                key="initial_arrays",
                fix="Give start() the arrays of this strategy: a site begins at no others.",
            )
        if not self.left:
            raise RoundError(f"All {self._taken} rounds of the job are done.")
        rounds = self.rounds
        until = time.monotonic() + rounds.timeout
        while len(list(grid.get_node_ids())) < rounds.min_sites and time.monotonic() < until:
            time.sleep(PAUSE)
        rounds.propose(grid)
        return rounds.requests(self._taken + 1, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Move along the weighted mean of what the sites released.

        Returns:
            The adapter, and for each site that answered what its steps have cost so far.

        Raises:
            RoundError: there are too few usable replies; nothing was changed.
        """
        self.rounds.take(self._taken + 1, replies)
        self._taken += 1
        self.arrays = self._adapter()
        sites = self.rounds.outcome.sites.items()
        spent = {name: site.epsilon_spent for name, site in sites}
        told = {f"{name}.epsilon_spent": x for name, x in spent.items() if x is not None}
        return self.arrays, MetricRecord({**told})

    def _adapter(self) -> ArrayRecord:
        from peft import get_peft_model_state_dict

        with self._pool.borrow(self._recipe) as worker:
            worker.vector.write(self.rounds.update.adapter.value)
            state = get_peft_model_state_dict(worker.model, save_embedding_layers=False)
            return ArrayRecord({name: tensor.cpu().clone() for name, tensor in state.items()})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nothing, as a score on private records is a release. Give `start` `evaluate_fn`."""
        return ()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Do nothing, because there is nothing to aggregate."""

    def summary(self) -> None:
        """Log what the job asks of the sites."""
        told = self.rounds.proposal
        log.info("Job %s: %d steps by %s.", told.job_id, told.steps, told.method)
