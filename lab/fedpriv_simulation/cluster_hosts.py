"""Sites in processes on the machines of a cluster, and what becomes of them if one is lost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flwr.app import Context, Message

from fedpriv.protocol import Proposal
from fedpriv_simulation.cluster import Cluster
from fedpriv_simulation.hosts import BACK, LEAVE, Answer, Host, kept_open, shared_out
from fedpriv_simulation.ledgers import AT_ONCE, LedgerKeeper, Lending
from fedpriv_simulation.placing import places
from fedpriv_simulation.sites import Sites

log = logging.getLogger(__name__)
PAUSE = 0.5  # seconds between two looks at a process that does not answer


class ClusterHosts:
    """As many processes as the cluster has room for, and one that has the ledgers.

    Every site has its process. A process that ends on a machine that is there is started again by
    Ray; the sites of a machine that is lost go to the processes that are left. Each time a site's
    process may be another one, it is given its ledger in a newer turn, so that the earlier one can
    no longer pay or release, should it still be there. Use it as a context manager.

    Args:
        claimed: of each site, as for `Site`.

    Raises:
        ConfigError: the cluster has too little room.
    """

    def __init__(
        self,
        sites: Sites,
        proposal: Proposal,
        cluster: Cluster,
        claimed: Sequence[list[tuple[str, str]]],
    ) -> None:
        ray, sites = cluster.ray, replace(sites, run=sites.run.absolute())
        self._ray, self._cluster = ray, cluster
        self._errors = (
            ray.exceptions.RayActorError,
            ray.exceptions.ActorUnschedulableError,
        )
        self._closing = False
        self._lock = threading.Lock()  # of what follows
        self._sizes = [section.size or 0 for section in sites.config.sites]
        self._turns = [1 for _ in self._sizes]
        compute, model = sites.config.compute, sites.config.model.name
        self._places = places(compute, model, len(self._sizes), cluster.nodes)
        self._left = list(range(len(self._places)))
        self._of = shared_out(self._sizes, len(self._places))
        here = cluster.pinned(cluster.here)
        kept = ray.remote(num_cpus=0, max_concurrency=AT_ONCE)(LedgerKeeper)
        self._keeper = kept.options(scheduling_strategy=here).remote(sites)
        lending = Lending(self._keeper, claimed)
        kind = ray.remote(num_cpus=1, max_restarts=-1)(Host)
        most = kept_open(proposal, len(self._sizes))
        self._hosts = [
            kind.options(
                scheduling_strategy=cluster.pinned(place.node), num_gpus=place.gpus
            ).remote(sites, proposal, place.threads, most, lending)
            for place in self._places
        ]

    def __enter__(self) -> ClusterHosts:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the sites' ledgers back. A process amid a step is killed, as a power cut would."""
        if self._closing:
            return
        self._closing = True
        asked = [(host, host.close.remote()) for host in self._hosts]
        for number, (host, closing) in enumerate(asked):
            self._end(host, closing if number in self._left else None)
        self._end(self._keeper, self._keeper.close.remote())

    def _end(self, actor: Any, closing: Any) -> None:
        try:
            if closing is not None:
                self._ray.get(closing, timeout=LEAVE)
        except Exception as error:
            log.info("A process of the simulation is ended: %s.", type(error).__name__)
        self._ray.kill(actor, no_restart=True)

    def answers(self, first: int) -> dict[int, Answer]:
        """How each site is asked, by node id, from `first` on."""
        return {first + number: self._asking(number) for number in range(len(self._of))}

    def _asking(self, number: int) -> Answer:
        def answer(message: Message, context: Context) -> Message:
            """What is asked twice is paid once."""
            until: float | None = None  # it has to be back, once it is known to be away
            while True:
                with self._lock:
                    host, turn = self._of[number], self._turns[number]
                try:
                    asked = self._hosts[host].answer.remote(number, message, turn)
                    reply: Message = self._ray.get(asked)
                    return reply
                except self._errors:
                    now = time.monotonic()
                    until = until or now + BACK
                    if self._closing or not self._go_on(number, host, late=now >= until):
                        raise
                    until = None if now >= until else until
                time.sleep(PAUSE)

        return answer

    def _go_on(self, number: int, host: int, *, late: bool) -> bool:
        """Give a site's ledger a new turn, and move the sites of a machine that is lost.

        Args:
            host: that did not answer.
            late: it had its time to come back.

        Returns:
            Whether there is anybody left to ask.
        """
        with self._lock:
            self._turns[number] += 1
            if host in self._left and (late or not self._cluster.is_alive(self._places[host].node)):
                self._left.remove(host)
                self._move(host)
            return bool(self._left)

    def _move(self, lost: int) -> None:
        """Deal the sites of a process to those that are left, each to the emptiest."""
        moving = [number for number, host in enumerate(self._of) if host == lost]
        log.warning(
            "A process on node %s is lost; %d sites of it go on in others.",
            self._places[lost].node[:8],
            len(moving) if self._left else 0,
        )
        for number in moving if self._left else []:
            held = dict.fromkeys(self._left, 0)
            for other, host in enumerate(self._of):
                if host in held:
                    held[host] += self._sizes[other]
            self._of[number] = min(self._left, key=lambda host: (held[host], host))
            self._turns[number] += 1
