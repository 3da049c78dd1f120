"""Sites in processes of their own, several to a process, by Ray.

A process loads the model once and keeps some of its sites open. The others are opened when they
are asked: what a simulation holds in memory does not grow with its sites.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

from flwr.app import Context, Message, RecordDict

from fedpriv.environment import set_environment
from fedpriv.errors import ConfigError, PausedError
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.pool import WorkerPool
from fedpriv.protocol import Proposal
from fedpriv_client.app import client_app, refusal
from fedpriv_client.site import Site
from fedpriv_simulation.handles import open_at_once
from fedpriv_simulation.inline import RUN, set_identity
from fedpriv_simulation.ledgers import Lending
from fedpriv_simulation.sites import Sites
from fedpriv_simulation.whole_set import make_whole
from fedpriv_simulation.workers import hosts_that_fit

log = logging.getLogger(__name__)
LEAVE = 10.0  # seconds that a process has to close its sites
BACK, PAUSE = 60.0, 0.1  # seconds that a process has to come back, and between two looks
AT_ONCE = 2  # messages that a process has at once: the next one is there when one is answered
OPEN = 128  # sites that a process keeps open; all of its own where they hold shares of a sum
Answer = Callable[[Message, Context], Message]


class Host:
    """A process that answers for its sites, one message after the other.

    Args:
        proposal: what a site that is opened makes an offer for.
        threads: of torch.
        most: sites that are open at once.
        lending: who has the ledgers, where that is another process.
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
        self._turns: dict[int, int] = {}  # the newest of each site
        self._in_turn: dict[int, int] = {}  # in which each ledger that is open was lent
        self._states: defaultdict[int, RecordDict] = defaultdict(RecordDict)
        self._closed = False

    def answer(self, number: int, message: Message, turn: int = 0) -> Message:
        """The reply of the site with that number, in the order of the file.

        Args:
            turn: of this process with the site's ledger, where ledgers are lent.

        Raises:
            PausedError: it was closed.
        """
        if self._closed:
            raise PausedError("The simulation has ended.")
        state = self._states[number]
        context = Context(run_id=RUN, node_id=0, node_config={}, state=state, run_config={})
        try:
            make_whole(message, state)
            return client_app(self._site(number, turn))(message, context)
        except Exception as error:
            return refusal(message, error)

    def close(self) -> None:
        """Give the ledgers back, for good."""
        self._closed = True
        while self._open:
            self._open.popitem()[1].close()

    def _site(self, number: int, turn: int) -> Site:
        if turn < self._turns.get(number, turn):
            raise PausedError("This was asked before the site's process may have changed.")
        self._turns[number] = turn
        if number in self._open and self._in_turn[number] != turn:
            self._open.pop(number).close()
        if number not in self._open:
            while len(self._open) >= self._most:
                self._open.popitem(last=False)[1].close()
            site = self._opened(number, turn)
            try:
                site.consider(self._proposal)
            except BaseException:
                site.close()
                raise
            self._open[number], self._in_turn[number] = site, turn
        self._open.move_to_end(number)
        return self._open[number]

    def _opened(self, number: int, turn: int) -> Site:
        section = self._sites.config.sites[number]
        if self._lending is None:
            return self._sites.open(section, self._pool)
        return self._sites.open(
            section,
            self._pool,
            open_ledger=self._lending.opener(number, turn),
            claimed=self._lending.claimed[number],
        )


class Hosts:
    """As many processes as compute at once. Use it as a context manager.

    Every site has its process, so that none is open in two; the processes get about the same
    number of records each.

    Raises:
        ConfigError: Ray is not installed, or the machine has too few GPUs.
    """

    def __init__(self, sites: Sites, proposal: Proposal, count: int) -> None:
        guard_ray()
        ray = import_ray()
        import torch

        threads = max(1, torch.get_num_threads() // count)
        gpus = gpus_of_a_host(sites.config.compute, torch.cuda.device_count(), count)
        ray.init(
            address="local",
            num_cpus=count,
            include_dashboard=False,
            configure_logging=False,
            log_to_driver=False,
        )
        self._ray = ray
        self._closing = False
        try:
            kind = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1)(Host)
            most = kept_open(proposal, len(sites.config.sites))
            self._hosts = [kind.remote(sites, proposal, threads, most) for _ in range(count)]
        except BaseException:
            ray.shutdown()
            raise
        self._of = shared_out([section.size or 0 for section in sites.config.sites], count)

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
        self._ray.shutdown()

    def close(self) -> None:
        """Give the sites' ledgers back. A process amid a step is killed, as a power cut would."""
        self._closing = True
        asked = [(host, host.close.remote()) for host in self._hosts]
        for host, closing in asked:
            try:
                self._ray.get(closing, timeout=LEAVE)
            except Exception as error:
                log.info("A process of the simulation is ended: %s.", type(error).__name__)
                self._ray.kill(host, no_restart=True)
        self._hosts = []

    def answers(self, first: int) -> dict[int, Answer]:
        """How each site is asked, by node id, from `first` on."""
        return {first + number: self._asking(number) for number in range(len(self._of))}

    def queue_of(self, first: int) -> Callable[[int], int]:
        """Which process answers for a node, as the number of a queue; nodes count from `first`."""
        return lambda node: self._of[node - first]

    def _asking(self, number: int) -> Answer:
        host: Any = self._hosts[self._of[number]]

        def answer(message: Message, context: Context) -> Message:
            """A process that died is started again by Ray; what is asked twice is paid once."""
            until = time.monotonic() + BACK
            while True:
                try:
                    reply: Message = self._ray.get(host.answer.remote(number, message))
                    return reply
                except self._ray.exceptions.RayActorError:
                    if self._closing or time.monotonic() >= until:
                        raise
                time.sleep(PAUSE)

        return answer


def kept_open(proposal: Proposal, sites: int) -> int:
    """Sites that a process keeps open; all where they hold shares of a sum."""
    return OPEN if proposal.shared is None else sites


def shared_out(sizes: list[int], count: int) -> list[int]:
    """Which of `count` processes has each site, the largest sites first, each to the emptiest."""
    held = [0] * count
    of = [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        of[number] = min(range(count), key=lambda host: (held[host], host))
        held[of[number]] += sizes[number]
    return of


def gpus_of_a_host(compute: ComputeSection, there: int, count: int) -> float:
    """The share of a GPU, or the whole GPUs, that a process gets.

    Raises:
        ConfigError: there are too few for so many processes.
    """
    if compute.device == "cpu" or not there:
        return 0.0
    each = compute.gpus_per_site
    if each is None:
        each = float(there // count) if there >= count else 1 / math.ceil(count / there)
    if count > hosts_that_fit(there, each):
        raise ConfigError(
            f"is too much for {count} sites at once on {there} GPUs",
            key="compute.gpus_per_site",
            value=each,
            fix="Lower it, or lower compute.workers.",
        )
    return each


def guard_ray() -> None:
    """Let Ray answer nobody but us: it listens on ports, and does what it is told there.

    To be called before Ray is started.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def import_ray() -> Any:
    """Ray, which is installed with an extra.

    Raises:
        ConfigError: it is not.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "is not installed",
            key="job.engine",
            value="ray",
            fix="Type: pip install 'fedpriv[simulation]', or set engine = \"inline\".",
        ) from None
    return ray
