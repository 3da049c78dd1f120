"""Run rounds over a Flower grid. Every site is asked for what its private steps release."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Message, Metadata

from fedpriv.errors import (
    BusyError,
    PausedError,
    ProtocolError,
    RoundError,
    StepFailedError,
    SyntheticSetError,
)
from fedpriv.methods.server_half import ServerMethod
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv.privacy.ledger.ledger import Head
from fedpriv.privacy.mechanism.privatised import Privatised
from fedpriv.protocol import Offer, Proposal, Refusal, Signed, StepReply, StepRequest
from fedpriv.public_update.update import Aggregate, learning_rate
from fedpriv.report.rundir import SiteRound, SiteState
from fedpriv.synthetic.evolution import Evolved
from fedpriv.wire import Blocks
from fedpriv_strategies.aggregate import SiteMove, SiteSum, WeightedMean
from fedpriv_strategies.averaged import AveragedUpdate
from fedpriv_strategies.messages import (
    QUERY,
    TRAIN,
    Answer,
    Nodes,
    answer_of,
    arrays_of,
    as_arrays,
    as_blocks,
    as_text,
    ask,
    body_bytes,
    by_node,
    message,
    payload_bytes,
)

if TYPE_CHECKING:
    from fedpriv.public_update.denoise import Found

log = logging.getLogger(__name__)
LATE = 15.0  # seconds to wait for the terms of a site that comes when enough others are there
# Refusals that say nothing about the next request: the site waits for a person or works on another
# request, a step failed, or a site that started again has to be sent the synthetic set.
WAITING = frozenset({PausedError.code, BusyError.code})
HEALING = WAITING | {StepFailedError.code, SyntheticSetError.code}


def state_of(answer: Refusal) -> str:
    """Return the state of a site that gave this refusal."""
    waits = answer.refused == PausedError.code
    return SiteState.WAITS if waits else f"{SiteState.REFUSED}: {answer.reason}"


@dataclass
class RoundOutcome:
    """What became of one round.

    Attributes:
        denoised: what denoising found in the gradient; None without denoising.
        evolved: how the synthetic set changed; None if it did not.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    denoised: Found | None = None
    evolved: Evolved | None = None
    sites: dict[str, SiteRound] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class Rounds:
    """Asks every site for one privatised vector a round, and moves by their weighted mean.

    The arrays sent are one flat vector, the trained parameters. Sites are asked for their terms
    once, when they first connect. Sites that refuse are left out. A site is sent the public records
    of a method once, and later only what changed. It is taken to hold the records of the last
    request that it answered. A site that holds others says so before it spends anything, and is
    sent all.

    Flower drives a `Strategy` in rounds that are lost when too few answer. Here a failed round is
    asked for again under the same slots. `PrivateRounds` is a Strategy around this class.

    Args:
        method: the server's half of the method.
        sites: how many sites there may be.
        site_of: returns the site name of a node; None if nodes say their names themselves.

    Attributes:
        offers: node → the site's terms.
        refused: node → why it made no offer. A node that is removed from here is asked again.
        waiting: node → why it makes no offer for now.
        heads: site → the newest ledger head seen of it, sent back to it as a witness.
        signed: the coordinator's signature of the proposal; only over the network.
        outcome: outcome of the last round.
    """

    proposal: Proposal
    update: AveragedUpdate
    method: ServerMethod
    _: KW_ONLY
    min_sites: int
    timeout: float
    sites: int
    site_of: Callable[[int], str | None] | None = None
    heads: dict[str, Head] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.offers: dict[int, Offer] = {}
        self.refused: dict[int, Refusal] = {}
        self.waiting: dict[int, Refusal] = {}
        self.heads = dict(self.heads)
        self.signed: Signed | None = None
        self.outcome = RoundOutcome()
        self._pauses: dict[int, tuple[int, int]] = {}  # node → rounds not to ask it, next pause
        self._sent: list[Metadata] = []
        self._held: dict[int, str] = {}  # node → digest of its public records
        self._asked_for: str | None = None  # digest of the public records in the last requests

    def propose(self, grid: Nodes) -> None:
        """Collect the terms of the connected sites that were not asked yet.

        Asking spends nothing.

        Raises:
            RoundError: fewer than `min_sites` accept.
        """
        self.refused = {n: why for n, why in self.refused.items() if not self._is_dismissed(n)}
        there = set(grid.get_node_ids())
        self.waiting = {node: told for node, told in self.waiting.items() if node in there}
        new = self._to_ask(sorted(there))
        messages = [message(self.proposal, node, QUERY, "0", signed=self.signed) for node in new]
        if new:
            log.info("Asking %d sites for terms. A model may have to be loaded first.", len(new))
        # At first, sites load their model. Later, nobody waits that long for a late site.
        patience = LATE if len(self.offers) >= self.min_sites else self.timeout
        for node, reply in ask(grid, messages, patience):
            self._pauses.pop(node, None)
            self.waiting.pop(node, None)
            try:
                answer = answer_of(reply, Offer)
                if isinstance(answer, Offer):
                    self._check(answer, node)
                    # A site with a new key is another node; the old node loses the name.
                    others = {n: one for n, one in self.offers.items() if one.site != answer.site}
                    self.offers = {**others, node: answer}
                    continue
            except ProtocolError as error:
                log.warning("Site %s made no usable offer: %s", self._name(node), error)
                answer = Refusal.of(error)
            if answer.refused in HEALING:
                log.info("Site %s takes no part for now: %s.", self._name(node), state_of(answer))
                self.waiting[node] = answer
            else:
                self.refused[node] = answer
        count, states = len(self.offers), self._answers(new)
        self._check_enough(f"{count} sites accept the job", count, len(self.refused), states)

    def _answers(self, asked: Iterable[int]) -> str:
        """Return in words the state of each site that has not accepted."""
        silent = {node: SiteState.NO_REPLY for node in asked if node not in self.offers}
        answers = {**self.waiting, **self.refused}
        states = silent | {node: state_of(answer) for node, answer in answers.items()}
        said = sorted(f"{self._name(node)}: {state}" for node, state in states.items())
        return ", ".join(said) or "No other site is there"

    def _to_ask(self, there: Iterable[int]) -> list[int]:
        """Return nodes to ask that said neither yes nor no. Silent ones are asked less and less."""
        asked = []
        for node in [n for n in there if n not in self.offers and n not in self.refused]:
            left, pause = self._pauses.get(node, (0, 1))
            if left and len(self.offers) >= self.min_sites:
                self._pauses[node] = (left - 1, pause)
            else:
                self._pauses[node] = (pause, min(2 * pause, 64))
                asked.append(node)
        return asked

    def _is_dismissed(self, node: int) -> bool:
        return self.site_of is not None and self.site_of(node) is None

    def _name(self, node: int) -> str:
        return (self.site_of and self.site_of(node)) or f"node {node}"

    def _check(self, offer: Offer, node: int) -> None:
        """Refuse an offer in another's name, with impossible figures, or from an older ledger."""
        taken = {one.site for other, one in self.offers.items() if not self._is_dismissed(other)}
        if offer.site in taken or (self.site_of and self.site_of(node) != offer.site):
            raise ProtocolError(f"It says that it is {offer.site!r}, which is another site's name.")
        if offer.delta >= 1 / offer.declared_size:
            raise ProtocolError(f"Its δ, {offer.delta:g}, would allow publishing a whole unit.")
        if self.proposal.evaluation is not None and offer.held_out_size is None:
            raise ProtocolError("It does not say how many units it holds out.")
        if offer.noise_multiplier < self._least_noise:
            raise ProtocolError(
                f"It adds noise of {offer.noise_multiplier:g}, less than any site can for this job"
                f" ({self._least_noise:g}), and would get more than its share of the weight."
            )
        seen = self.heads.get(offer.site)
        if seen is not None and offer.ledger_rows < seen.rows:
            raise ProtocolError(
                f"The ledger of site {offer.site!r} went back from {seen.rows} to"
                f" {offer.ledger_rows} rows. Its administrator has to restore the newest one."
            )

    @cached_property
    def _least_noise(self) -> float:
        """Half of the noise for the proposed ε and δ, because sites may have a δ of their own."""
        privacy, steps = self.proposal.privacy, self.proposal.steps
        return 0.5 * calibrate_noise(privacy.epsilon, privacy.delta, privacy.sample_rate, steps)

    def run(self, number: int, grid: Nodes) -> None:
        """Run one round: ask, wait, and move.

        Raises:
            RoundError: fewer than `min_sites` accepted or answered. Nothing was changed, and the
                round can be asked for again.
        """
        self.propose(grid)  # to sites that connected since
        self._take(number, ask(grid, self.requests(number, grid), self.timeout))

    def requests(self, number: int, grid: Nodes) -> list[Message]:
        """Make one request for a round's slots for every site that accepted and is connected."""
        arrays, messages = as_arrays(self.update.vector), []
        there = set(grid.get_node_ids())
        asked = {node: offer for node, offer in self.offers.items() if node in there}
        slot, self._asked_for = self._slot(number), None
        for node, offer in asked.items():
            change = self.method.change(self._held.get(node))
            self._asked_for = None if change is None else change.digest
            request = self.step_request(offer, slot, set_digest=self._asked_for)
            made_up = None if change is None else as_text(change.model_dump_json())
            messages.append(message(request, node, TRAIN, str(number), arrays, made_up))
        self._begin_outcome(messages)
        self._sent = [item.metadata for item in messages]  # without their arrays
        log.info("Round %d: asking %d sites, and waiting for their answers.", number, len(asked))
        return messages

    def step_request(self, offer: Offer, slot: int, **about: Any) -> StepRequest:
        """Make a request to a site, with the newest head of its ledger as the witness."""
        seen = self.heads.get(offer.site)
        if seen is not None:
            about |= {"witness_rows": seen.rows, "witness_head": seen.hash}
        return StepRequest(job_id=self.proposal.job_id, slot=slot, **about)

    def _begin_outcome(self, messages: Sequence[Message]) -> None:
        """Begin the outcome of a round in which no site has answered these messages yet."""
        self.outcome = RoundOutcome(bytes_down=payload_bytes(messages))
        asked = {item.metadata.dst_node_id for item in messages}
        for node, offer in self.offers.items():
            self._note(offer, SiteState.NO_REPLY if node in asked else SiteState.ABSENT)

    def take(self, number: int, replies: Iterable[Message]) -> None:
        """Take one optimiser step along the weighted mean of what the sites released.

        Replies are used as they come and not kept. So memory does not grow with their number.

        Args:
            replies: replies to the last `requests`.

        Raises:
            RoundError: there are fewer than `min_sites` usable replies; nothing was changed.
        """
        self._take(number, by_node(self._sent, replies))

    def _take(self, number: int, replies: Iterable[tuple[int, Message]]) -> None:
        mean = WeightedMean(self.method.values)

        def use(offer: Offer, answer: StepReply, reply: Message) -> None:
            blocks = as_blocks(arrays_of(reply), self.method.values, self.proposal.wire)
            try:
                mean.add(self._released(answer, blocks, offer, number))
            finally:
                self.outcome.bytes_up += blocks.value.bytes_read
            self.heads[offer.site] = Head(answer.ledger_rows, answer.ledger_head)
            self._note(offer, SiteState.OK, answer)

        hopeless = self._hear(replies, StepReply, use)
        count, states = mean.sites, self._states()
        self._check_enough(f"Round {number}: {count} usable replies", count, hopeless, states)
        noise, units = mean.noise_variance, mean.units  # read before `take`, which resets them
        self._move(number, Aggregate(mean.take(), noise, units))

    def _hear(
        self,
        replies: Iterable[tuple[int, Message]],
        kind: type[Answer],
        use: Callable[[Offer, Answer, Message], None],
    ) -> int:
        """Use the replies of a round as they come, and note what becomes of each.

        Args:
            replies: replies, each with the node that was asked.
            use: uses a reply, or raises `ProtocolError` if it can't be used.

        Returns:
            How many sites will not answer better if they are asked again.
        """
        hopeless = len(self.refused)
        for node, reply in replies:
            offer = self.offers[node]
            self._held.pop(node, None)  # set again once its answer is used
            self.outcome.bytes_up += body_bytes(reply)
            try:
                answer = answer_of(reply, kind)
                if isinstance(answer, Refusal):
                    self._note(offer, state_of(answer))
                    hopeless += answer.refused not in HEALING
                    continue
                use(offer, answer, reply)
            except ProtocolError as error:
                log.warning("Site %s: reply not used: %s", offer.site, error)
                self._note(offer, SiteState.UNUSABLE)
                hopeless += 1
                continue
            if self._asked_for is not None:
                self._held[node] = self._asked_for
        return hopeless

    def _check_enough(self, there: str, count: int, hopeless: int, states: str) -> None:
        """Raise RoundError, with the sites' states, if `count` is less than `min_sites`."""
        if count < self.min_sites:
            raise RoundError(
                f"{there}, {self.min_sites} are needed (job.min_sites). {states}.",
                may_heal=self.sites - hopeless >= self.min_sites,
            )

    def _states(self) -> str:
        return ", ".join(f"{name}: {site.status}" for name, site in self.outcome.sites.items())

    def _note(self, offer: Offer, status: str, told: StepReply | None = None) -> None:
        """Note a site's status in this round, with the figures that came with its reply."""
        kept = {"epsilon_spent", "epsilon_committed"}
        figures = {} if told is None else told.model_dump(include=kept)
        noise = offer.noise_multiplier
        self.outcome.sites[offer.site] = SiteRound(status=status, noise_multiplier=noise, **figures)

    def _move(self, number: int, released: Aggregate) -> None:
        outcome, update = self.outcome, self.update
        rate = learning_rate(update.settings, number, self.proposal.rounds)
        update.take(number, self.method.gradient(released), lr=rate)
        outcome.denoised = update.denoised
        outcome.evolved = self.method.advance(number)

    def _released(
        self, answer: StepReply, blocks: Privatised[Blocks], offer: Offer, number: int
    ) -> SiteSum:
        """Return the sum that a site says it released, with the public figures for its weight.

        Raises:
            ProtocolError: the job asked for something else.
        """
        proposal, slot, local = self.proposal, self._slot(number), self.proposal.local
        if answer.slot != slot:
            raise ProtocolError(f"Expected slot {slot}, got {answer.slot}.")
        if answer.kind != proposal.released:
            raise ProtocolError(f"Expected a {proposal.released}, got a {answer.kind}.")
        privacy, noise = proposal.privacy, offer.noise_multiplier
        figures = (blocks, noise, privacy.sample_rate * offer.declared_size, privacy.clip_norm)
        if answer.kind == "gradient-sum" or local is None:
            return SiteSum(*figures)
        start = float(np.linalg.norm(self.method.start(self.update.vector.value)))
        return SiteMove(*figures, start=start, steps=local.count, optimizer=local.optimizer)

    def _slot(self, number: int) -> int:
        """Return the first slot of a round."""
        return (number - 1) * self.proposal.round_steps
