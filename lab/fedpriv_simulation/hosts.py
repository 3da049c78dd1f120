"""Sites in processes of their own, several to a process, with Ray.

A process loads the model once and keeps some of its sites open. The others are opened when they are
asked. So a simulation's memory does not grow with the number of its sites.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from flwr.app import Context, Message, RecordDict

from fedpriv.environment import set_environment
from fedpriv.errors import BusyError
from fedpriv.private_training.pool import WorkerPool
from fedpriv.protocol import Proposal
from fedpriv_client.app import client_app, refusal
from fedpriv_client.site import Site
from fedpriv_simulation.cluster import Cluster
from fedpriv_simulation.handles import open_at_once
from fedpriv_simulation.inline import context_of, set_identity
from fedpriv_simulation.ledgers import AT_ONCE as LENT_AT_ONCE
from fedpriv_simulation.ledgers import LedgerKeeper, Lending
from fedpriv_simulation.placing import Place
from fedpriv_simulation.sites import Sites
from fedpriv_simulation.whole_set import make_whole

log = logging.getLogger(__name__)
LEAVE = 10.0  # seconds that a process has to close its sites
BACK, PAUSE = 60.0, 0.5  # seconds that a process has to come back, and between two tries
AT_ONCE = 2  # messages of a process at once: the next is there when one is answered
NOWHERE = -1  # the process of a site that has none yet
OPEN = 128  # sites that a process keeps open; all its sites where they hold shares of a sum
Answer = Callable[[Message, Context], Message]


class Host:
    """A process that answers for its sites, one message after the other.

    Args:
        proposal: the proposal that a newly opened site answers with an offer.
        threads: torch's threads.
        most: how many sites are open at once.
        lending: lends the ledgers, where another process has them.
    """

    def __init__(
        self,
        sites: Sites,
        proposal: Proposal,
        threads: int,
        most: int,
        lending: Lending | None = None,
    ) -> None:
        import torch

        set_environment()
        set_identity()
        logging.getLogger("fedpriv_client").setLevel(logging.WARNING)
        torch.set_num_threads(threads)
        self._sites, self._proposal, self._lending = sites, proposal, lending
        self._pool = WorkerPool(1, many_sites=True)
        self._most = open_at_once(most)
        self._open: OrderedDict[int, Site] = OrderedDict()
        self._turns: dict[int, int] = {}  # the newest turn of each site; an open site is open in it
        self._states: defaultdict[int, RecordDict] = defaultdict(RecordDict)
        self._closed = False

    def answer(self, number: int, message: Message, turn: int = 0) -> Message:
        """Return the reply of the site with that number, in the order of the file.

        Args:
            turn: this process's turn with the site's ledger, where ledgers are lent.

        Raises:
            BusyError: this process was closed.
        """
        if self._closed:
            raise BusyError("The simulation has ended.")
        state = self._states[number]
        try:
            make_whole(message, state)
            return client_app(self._site(number, turn))(message, context_of(0, state))
        except Exception as error:
            return refusal(message, error)

    def close(self) -> None:
        """Give the ledgers back for good."""
        self._closed = True
        while self._open:
            self._open.popitem()[1].close()

    def _site(self, number: int, turn: int) -> Site:
        before = self._turns.get(number, turn)
        if turn < before:
            raise BusyError("This was asked before the site's process may have changed.")
        self._turns[number] = turn
        if turn != before and number in self._open:
            self._open.pop(number).close()
        if number not in self._open:
            while len(self._open) >= self._most:
                self._open.popitem(last=False)[1].close()
            lent = {} if self._lending is None else self._lending.of(number, turn)
            site = self._sites.open(self._sites.config.sites[number], self._pool, **lent)
            try:
                site.consider(self._proposal)
            except BaseException:
                site.close()
                raise
            self._open[number] = site
        self._open.move_to_end(number)
        return self._open[number]


class Hosts:
    """Run a process at each place, and on several machines one more that has the ledgers.

    Every site has one process, so that none is open in two. The processes get about the same number
    of records each. Ray restarts a process that ends on a machine that is still there. If a machine
    is lost, its sites go to the processes that are left. Whenever a site's process may be another
    one, the site gets its ledger in a newer turn. The earlier process, should it still be there,
    can then no longer pay or release. The caller has to close the object.

    Args:
        claimed: `claimed` of each site, as for `Site`, where one process has all ledgers. None
            where each process opens the ledgers of its own sites, as on one machine.
    """

    def __init__(
        self,
        sites: Sites,
        proposal: Proposal,
        cluster: Cluster,
        places: Sequence[Place],
        claimed: Sequence[list[tuple[str, str]]] | None = None,
    ) -> None:
        ray, sites = cluster.ray, replace(sites, run=sites.run.absolute())
        self._ray, self._cluster = ray, cluster
        self._errors = ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError
        self._closing = False
        self._lock = threading.Lock()  # guards the attributes below
        self._sizes = [section.size or 0 for section in sites.config.sites]
        self._turns = [1 for _ in self._sizes]
        self._places = places
        self._left = list(range(len(places)))
        self._of = shared_out(self._sizes, len(places))
        self._keeper, lending = None, None
        if claimed is not None:
            kept = ray.remote(num_cpus=0, max_concurrency=LENT_AT_ONCE)(LedgerKeeper)
            here = cluster.pinned(cluster.here)
            self._keeper = kept.options(scheduling_strategy=here).remote(sites)
            lending = Lending(self._keeper, claimed)
        kind = ray.remote(num_cpus=1, max_restarts=-1)(Host)
        most = OPEN if proposal.shared is None else len(self._sizes)
        self._hosts = [
            kind.options(
                scheduling_strategy=cluster.pinned(place.node), num_gpus=place.gpus
            ).remote(sites, proposal, place.threads, most, lending)
            for place in places
        ]

    def close(self) -> None:
        """Give the sites' ledgers back.

        A process in the middle of a step is killed, as by a power cut.
        """
        if self._closing:
            return
        self._closing = True
        asked = [(host, host.close.remote()) for host in self._hosts]
        for number, (host, closing) in enumerate(asked):
            self._end(host, closing if number in self._left else None)
        if self._keeper is not None:
            self._end(self._keeper, self._keeper.close.remote())

    def _end(self, actor: Any, closing: Any) -> None:
        try:
            if closing is not None:
                self._ray.get(closing, timeout=LEAVE)
        except Exception as error:
            log.info("A process of the simulation is ended: %s.", type(error).__name__)
        self._ray.kill(actor, no_restart=True)

    def answers(self, first: int) -> dict[int, Answer]:
        """Return the function that asks each site, by node id. Ids count from `first`."""
        return {first + n: partial(self._answer, n) for n in range(len(self._of))}

    def queue_of(self, first: int) -> Callable[[int], int]:
        """Return a function that gives a node's process as a queue's number.

        Nodes count from `first`.
        """
        return lambda node: self._of[node - first]

    def _answer(self, number: int, message: Message, context: Context) -> Message:
        """Let a site answer a message. A message that is asked twice is paid once."""
        until: float | None = None  # when the process has to be back, once it is known to be away
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

    def _go_on(self, number: int, host: int, *, late: bool) -> bool:
        """Give a site's ledger a new turn, and move the sites of a machine that is lost.

        Args:
            host: the process that did not answer.
            late: whether it had its time to come back.

        Returns:
            Whether any process is left to ask.
        """
        with self._lock:
            self._turns[number] += 1
            if host in self._left and (late or not self._cluster.is_alive(self._places[host].node)):
                self._left.remove(host)
                moving = [n for n, of in enumerate(self._of) if of == host] if self._left else []
                said = "A process on node %s is lost; %d sites of it go on in others."
                log.warning(said, self._places[host].node[:8], len(moving))
                held = dict.fromkeys(self._left, 0)
                for size, of in zip(self._sizes, self._of, strict=True):
                    if of in held:
                        held[of] += size
                for one in moving:
                    self._of[one] = _given(self._sizes[one], held)
                    self._turns[one] += 1
            return bool(self._left)


def shared_out(sizes: list[int], count: int) -> list[int]:
    """Return each site's process among `count`.

    The largest sites go first, each to the emptiest.
    """
    held, of = dict.fromkeys(range(count), 0), [NOWHERE] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        of[number] = _given(sizes[number], held)
    return of


def _given(size: int, held: dict[int, int]) -> int:
    """Give a site to the process with the least, and return which one it is."""
    emptiest = min(held, key=lambda host: (held[host], host))
    held[emptiest] += size
    return emptiest
