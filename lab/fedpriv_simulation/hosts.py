"""Sites in processes of their own, several to a process, with Ray.

A process loads the model once and keeps some of its sites open. The others are opened when they are
asked. So a simulation's memory does not grow with the number of its sites.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict

from fedpriv.environment import set_environment
from fedpriv.errors import BusyError
from fedpriv.private_training.pool import WorkerPool
from fedpriv.protocol import Proposal
from fedpriv_client.app import client_app, refusal
from fedpriv_client.site import Site
from fedpriv_simulation.handles import open_at_once
from fedpriv_simulation.inline import context_of, set_identity
from fedpriv_simulation.sites import Sites
from fedpriv_simulation.whole_set import make_whole
from fedpriv_simulation.workers import gpus_of_a_host

log = logging.getLogger(__name__)
LEAVE = 10.0  # seconds that a process has to close its sites
RETRIES = 3  # of a message whose process ended, such as for lack of memory
AT_ONCE = 2  # messages of a process at once: the next is there when one is answered
OPEN = 128  # sites that a process keeps open; all its sites where they hold shares of a sum
Answer = Callable[[Message, Context], Message]


class Host:
    """A process that answers for its sites, one message after the other.

    Args:
        proposal: the proposal that a newly opened site answers with an offer.
        threads: torch's threads.
        most: how many sites are open at once.
    """

    def __init__(self, sites: Sites, proposal: Proposal, threads: int, most: int) -> None:
        set_environment()
        set_identity()
        logging.getLogger("fedpriv_client").setLevel(logging.WARNING)
        torch.set_num_threads(threads)
        self._sites, self._proposal = sites, proposal
        self._pool = WorkerPool(1, many_sites=True)
        self._most = open_at_once(most)
        self._open: OrderedDict[int, Site] = OrderedDict()
        self._states: defaultdict[int, RecordDict] = defaultdict(RecordDict)
        self._closed = False

    def answer(self, number: int, message: Message) -> Message:
        """Return the reply of the site with that number, in the order of the file.

        Raises:
            BusyError: this process was closed.
        """
        if self._closed:
            raise BusyError("The simulation has ended.")
        state = self._states[number]
        try:
            make_whole(message, state)
            return client_app(self._site(number))(message, context_of(0, state))
        except Exception as error:
            return refusal(message, error)

    def close(self) -> None:
        """Give the ledgers back for good."""
        self._closed = True
        while self._open:
            self._open.popitem()[1].close()

    def _site(self, number: int) -> Site:
        if number not in self._open:
            while len(self._open) >= self._most:
                self._open.popitem(last=False)[1].close()
            site = self._sites.open(self._sites.config.sites[number], self._pool)
            try:
                site.consider(self._proposal)
            except BaseException:
                site.close()
                raise
            self._open[number] = site
        self._open.move_to_end(number)
        return self._open[number]


class Hosts:
    """Run sites in `count` processes of Ray.

    Every site has one process, so that none is open in two. The processes get about the same number
    of records each. Ray restarts a process that ends, and asks it again. A message that is asked
    twice is paid once. The caller has to close the object.

    Args:
        ray: the library, started.

    Raises:
        ConfigError: there are too few GPUs for so many processes.
    """

    def __init__(self, sites: Sites, proposal: Proposal, ray: Any, count: int) -> None:
        sites, config = replace(sites, run=sites.run.absolute()), sites.config
        self._ray, self._closing = ray, False
        self._of = shared_out([section.size or 0 for section in config.sites], count)
        gpus = gpus_of_a_host(config.compute, torch.cuda.device_count(), count)
        restarts = {"max_restarts": -1, "max_task_retries": RETRIES}
        kind = ray.remote(num_cpus=1, num_gpus=gpus, **restarts)(Host)
        threads = max(1, torch.get_num_threads() // count)
        most = OPEN if proposal.shared is None else len(self._of)
        self._hosts = [kind.remote(sites, proposal, threads, most) for _ in range(count)]

    def close(self) -> None:
        """Give the sites' ledgers back.

        A process in the middle of a step is killed, as by a power cut.
        """
        if self._closing:
            return
        self._closing = True
        asked = [(host, host.close.remote()) for host in self._hosts]
        for host, closing in asked:
            try:
                self._ray.get(closing, timeout=LEAVE)
            except Exception as error:
                log.info("A process of the simulation is ended: %s.", type(error).__name__)
            self._ray.kill(host, no_restart=True)

    def answers(self, first: int) -> dict[int, Answer]:
        """Return the function that asks each site, by node id. Ids count from `first`."""
        return {first + n: partial(self._answer, n) for n in range(len(self._of))}

    def queue_of(self, first: int) -> Callable[[int], int]:
        """Return a function that gives a node's process as a queue's number.

        Nodes count from `first`.
        """
        return lambda node: self._of[node - first]

    def _answer(self, number: int, message: Message, context: Context) -> Message:
        reply: Message = self._ray.get(self._hosts[self._of[number]].answer.remote(number, message))
        return reply


def shared_out(sizes: list[int], count: int) -> list[int]:
    """Return each site's process among `count`.

    The largest sites go first, each to the process that has the least.
    """
    held, of = [0] * count, [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        of[number] = held.index(min(held))
        held[of[number]] += sizes[number]
    return of
