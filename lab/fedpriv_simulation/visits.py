"""Sites that are opened for one message and closed after it, in any process that gets the message.

This is for a runtime that gives a message to the next idle process, as Flower's own simulation
does. A site's ledger is open in one process at a time, because the process that opens it locks it.
A process keeps only the model. What a site has to know from earlier messages is the job and, where
there is one, the synthetic set. They are in the context that Flower keeps for the site's node. All
of it came from the server, and no ledger is in there.
"""

from __future__ import annotations

import contextlib
from functools import cached_property
from pathlib import Path

from flwr.app import Context, Message, MessageType

from fedpriv.config.job import JobConfig
from fedpriv.errors import BusyError, LedgerInUseError
from fedpriv.methods.proposal import job_recipe
from fedpriv.private_training.pool import WorkerPool
from fedpriv.protocol import BODY, Proposal
from fedpriv_client.app import client_app, refusal
from fedpriv_client.site import Site
from fedpriv_simulation.sites import Sites
from fedpriv_simulation.whole_set import make_whole

PATIENCE = 60.0  # seconds that a message waits while its site answers another one


class Visits:
    """Answer for any site of a simulation, one message after the other.

    Args:
        run: run directory.
        insecure_seed: as for `Sites`.
        pool: the pool from which a site borrows the model. By default there is one copy, for one
            site at a time.
    """

    def __init__(
        self,
        config: JobConfig,
        run: Path,
        insecure_seed: int | None,
        pool: WorkerPool | None = None,
    ) -> None:
        self._config, self._run, self._seed = config, run, insecure_seed
        self._pool = pool or WorkerPool(1, many_sites=True)

    @cached_property
    def _sites(self) -> Sites:
        with self._pool.borrow(job_recipe(self._config)) as worker:
            trained = worker.base.digest, worker.vector.size, worker.base.begin_digest
            return Sites(self._config, self._run, self._seed, *trained)

    def answer(self, number: int, message: Message, context: Context) -> Message:
        """Return the reply of the site with that number, in the order of the file.

        Args:
            context: context of the site's node. It holds what the next message needs.
        """
        try:
            with contextlib.closing(self._open(number)) as site:
                if message.metadata.message_type == MessageType.TRAIN and BODY in context.state:
                    site.consider(Proposal.parse(context.state.config_records[BODY]["body"]))
                make_whole(message, context.state)
                reply = client_app(site)(message, context)
        except Exception as error:
            return refusal(message, error)
        if message.metadata.message_type == MessageType.QUERY:
            context.state[BODY] = message.content[BODY]
        return reply

    def _open(self, number: int) -> Site:
        section = self._config.sites[number]
        try:
            return self._sites.open(section, self._pool, patience=PATIENCE)
        except LedgerInUseError as error:
            raise BusyError(f"{section.name} is at an earlier request. {error}") from None
