"""The server's half of DP-LoRA: private steps at every site, one or several a round."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedpriv.errors import (
    PausedError,
    ProtocolError,
    RoundError,
    StepFailedError,
    SyntheticSetError,
)
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv.privacy.ledger.ledger import Head
from fedpriv.privacy.mechanism.privatised import post_process
from fedpriv.protocol import VECTOR, Offer, Proposal, Refusal, StepReply, StepRequest
from fedpriv.synthetic.evolution import Evolved
from fedpriv.synthetic.records import SetChange
from fedpriv.training.gate import Choice
from fedpriv.training.schedule import learning_rate
from fedpriv.training.update import Aggregate, Found, Update
from fedpriv_strategies.aggregate import SiteMove, SiteSum, WeightedMean
from fedpriv_strategies.messages import (
    QUERY,
    TRAIN,
    answer_of,
    as_arrays,
    as_blocks,
    as_text,
    body_bytes,
    message,
    payload_bytes,
)

log = logging.getLogger(__name__)
LATE = 15.0  # seconds to wait for the terms of a site that comes when enough others are there
# Refusals that say nothing about the next request: the site is paused, a step failed, or a site
# that started again is to be sent the synthetic set.
HEALING = frozenset({PausedError.code, StepFailedError.code, SyntheticSetError.code})


@dataclass(frozen=True)
class SiteRound:
    """What became of one site in one round. All public."""

    status: str
    noise_multiplier: float
    epsilon_spent: float | None = None
    epsilon_committed: float | None = None


@dataclass
class RoundOutcome:
    """What became of one round.

    Attributes:
        denoised: what was found in the gradient; None without denoising.
        choice: which move was taken; None without a gate.
        evolved: how the synthetic set changed; None where it did not.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    denoised: Found | None = None
    choice: Choice | None = None
    evolved: Evolved | None = None
    sites: dict[str, SiteRound] = field(default_factory=dict)


class DpLoraStrategy(Strategy):
    """Asks every site for one privatised vector a round and holds the update.

    That is a gradient sum, or where the proposal has local steps, the move they made.

    The arrays that go round are one flat vector, the trained parameters. Sites are asked for
    their terms once, when they are first there; those that refuse are left out.

    Args:
        sites: how many there may be.
        site_of: the name under which a node is known; None if that is for it to say.

    Attributes:
        offers: node → the site's terms.
        refused: node → why it made none. Who is taken out is asked again.
        heads: site → the newest ledger head seen of it, sent back to it as a witness.
        outcome: of the last round.
    """

    def __init__(
        self,
        proposal: Proposal,
        update: Update,
        *,
        min_sites: int,
        timeout: float,
        sites: int,
        site_of: Callable[[int], str | None] | None = None,
        heads: Mapping[str, Head] | None = None,
    ) -> None:
        self.proposal = proposal
        self.update = update
        self.offers: dict[int, Offer] = {}
        self.refused: dict[int, Refusal] = {}
        self.heads: dict[str, Head] = dict(heads or {})
        self.outcome = RoundOutcome()
        self._sites, self._min_sites, self._site_of = sites, min_sites, site_of
        self._timeout = timeout
        self._pauses: dict[int, tuple[int, int]] = {}  # rounds not to ask a node, and after that
        self._sent: list[Metadata] = []

    def propose(self, grid: Grid) -> None:
        """Collect the terms of the sites that are there and were not asked yet.

        Nothing is spent by asking.

        Raises:
            RoundError: fewer than `min_sites` accept.
        """
        for node in [node for node in self.refused if self._is_dismissed(node)]:
            del self.refused[node]
        new = self._to_ask(grid.get_node_ids())
        messages = [message(self.proposal, node, QUERY, "0") for node in new]
        # The first time a site loads its model; later nobody waits for those who come late.
        patience = LATE if len(self.offers) >= self._min_sites else self._timeout
        replies = grid.send_and_receive(messages, timeout=patience) if messages else []
        nodes = {item.metadata.message_id: item.metadata.dst_node_id for item in messages}
        for reply in replies:
            node = nodes[reply.metadata.reply_to_message_id]
            self._pauses.pop(node, None)
            try:
                answer = answer_of(reply, Offer)
                if isinstance(answer, Offer):
                    self._check(answer, node)
            except ProtocolError as error:
                log.warning("Site %s made no usable offer: %s", self._name(node), error)
                answer = Refusal.of(error)
            if isinstance(answer, Offer):
                self._accept(node, answer)
            elif answer.refused in HEALING:
                log.info("Site %s takes no part for now: %s", self._name(node), answer.reason)
            else:
                self.refused[node] = answer
        if len(self.offers) < self._min_sites:
            refused = {self._name(node): self.refused[node].reason for node in self.refused}
            reasons = ", ".join(f"{name}: {refused[name]}" for name in sorted(refused))
            raise RoundError(
                f"{len(self.offers)} sites accept the job, {self._min_sites} are needed"
                f" (job.min_sites). Refused: {reasons or 'none answered'}.",
                may_heal=self._sites - len(self.refused) >= self._min_sites,
            )

    def _accept(self, node: int, offer: Offer) -> None:
        """With a new key a site is another node; the old one does not keep its name."""
        others = {other: one for other, one in self.offers.items() if one.site != offer.site}
        self.offers = {**others, node: offer}

    def _to_ask(self, there: Iterable[int]) -> list[int]:
        """Nodes that said neither yes nor no. Who does not answer is asked ever less often."""
        silent = [node for node in there if node not in self.offers and node not in self.refused]
        asked = []
        for node in silent:
            left, pause = self._pauses.get(node, (0, 1))
            if left and len(self.offers) >= self._min_sites:
                self._pauses[node] = (left - 1, pause)
            else:
                self._pauses[node] = (pause, min(2 * pause, 64))
                asked.append(node)
        return asked

    def _is_dismissed(self, node: int) -> bool:
        return self._site_of is not None and self._site_of(node) is None

    def _name(self, node: int) -> str:
        return (self._site_of and self._site_of(node)) or f"node {node}"

    def _check(self, offer: Offer, node: int) -> None:
        """Refuse an offer in another's name, of figures nobody can have, or of an older ledger."""
        taken = {one.site for other, one in self.offers.items() if not self._is_dismissed(other)}
        if offer.site in taken or (self._site_of and self._site_of(node) != offer.site):
            raise ProtocolError(f"It says that it is {offer.site!r}, which is another's name.")
        if offer.delta >= 1 / offer.declared_size:
            raise ProtocolError(f"Its δ, {offer.delta:g}, would allow publishing a whole unit.")
        if offer.noise_multiplier < self._least_noise:
            raise ProtocolError(
                f"It adds noise of {offer.noise_multiplier:g}, less than any site can for this job"
                f" ({self._least_noise:g}), and would get more than its share of the weight."
            )
        self._check_witness(offer)

    @cached_property
    def _least_noise(self) -> float:
        """Half of what the proposed ε and δ ask for, as sites may have a δ of their own."""
        privacy = self.proposal.privacy
        return 0.5 * calibrate_noise(
            privacy.epsilon, privacy.delta, privacy.sample_rate, self.proposal.steps
        )

    def _check_witness(self, offer: Offer) -> None:
        seen = self.heads.get(offer.site)
        if seen is not None and offer.ledger_rows < seen.rows:
            raise ProtocolError(
                f"The ledger of site {offer.site!r} went back from {seen.rows} to"
                f" {offer.ledger_rows} rows. Its administrator has to restore the newest one."
            )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One request for the slots of a round to every site that accepted and is there."""
        if not self.offers:
            self.propose(grid)
        messages = []
        there = set(grid.get_node_ids())
        for node, offer in self.offers.items():
            if node not in there:
                continue
            seen = self.heads.get(offer.site, Head(0, "0" * 64))
            change = self._change(node)
            request = StepRequest(
                job_id=self.proposal.job_id,
                slot=self._slot(server_round),
                set_digest=None if change is None else change.digest,
                witness_rows=seen.rows,
                witness_head=seen.hash,
            )
            made_up = None if change is None else as_text(change.model_dump_json())
            messages.append(message(request, node, TRAIN, str(server_round), arrays, made_up))
        self.outcome = RoundOutcome(bytes_down=payload_bytes(messages))
        self._sent = [item.metadata for item in messages]  # not their arrays
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """One optimiser step along the weighted mean of the sites' sums.

        Replies are used as they come and not kept: memory does not grow with their number.

        Raises:
            RoundError: fewer than `min_sites` usable replies; nothing was changed.
        """
        nodes = {metadata.message_id: metadata.dst_node_id for metadata in self._sent}
        outcome, mean = self.outcome, WeightedMean(self._values)
        asked, hopeless = set(nodes.values()), len(self.refused)
        for node, offer in self.offers.items():
            status = "no reply" if node in asked else "absent"
            outcome.sites[offer.site] = SiteRound(status, offer.noise_multiplier)
        for reply in replies:
            node = nodes[reply.metadata.reply_to_message_id]
            offer = self.offers[node]
            self._answered(node, usable=False)
            outcome.bytes_up += body_bytes(reply)
            try:
                answer = answer_of(reply, StepReply)
                if isinstance(answer, Refusal):
                    status = f"refused: {answer.reason}"
                    outcome.sites[offer.site] = SiteRound(status, offer.noise_multiplier)
                    hopeless += answer.refused not in HEALING
                    continue
                self._add(mean, offer, answer, reply, server_round)
            except ProtocolError as error:
                log.warning("Site %s: reply not used: %s", offer.site, error)
                outcome.sites[offer.site] = SiteRound("unusable", offer.noise_multiplier)
                hopeless += 1
                continue
            self._answered(node, usable=True)
            self.heads[offer.site] = Head(answer.ledger_rows, answer.ledger_head)
            outcome.sites[offer.site] = SiteRound(
                "ok", offer.noise_multiplier, answer.epsilon_spent, answer.epsilon_committed
            )
        if mean.sites < self._min_sites:
            states = ", ".join(f"{name}: {site.status}" for name, site in outcome.sites.items())
            raise RoundError(
                f"Round {server_round}: {mean.sites} usable replies, {self._min_sites} are needed"
                f" (job.min_sites). {states}.",
                may_heal=self._sites - hopeless >= self._min_sites,
            )
        metrics = MetricRecord({"sites": mean.sites})
        noise, units = mean.noise_variance, mean.units
        rate = learning_rate(self.update.optimizer, server_round, self.proposal.rounds)
        taken = Aggregate(mean.take(), noise, units)
        released = self._lifted(taken)
        if self.proposal.local is not None:  # an optimiser goes against a gradient
            units *= self.proposal.round_steps
            released = Aggregate(post_process(np.negative, released.gradient), 0.0, units)
        moved = self.update.step(released, number=server_round, lr=rate)
        outcome.denoised, outcome.choice = self.update.denoised, self.update.choice
        self._moved(taken, server_round)
        return as_arrays(moved), metrics

    def _add(
        self,
        mean: WeightedMean,
        offer: Offer,
        answer: StepReply,
        reply: Message,
        server_round: int,
    ) -> None:
        slot = self._slot(server_round)
        if answer.slot != slot:
            raise ProtocolError(f"Expected slot {slot}, got {answer.slot}.")
        arrays = reply.content.array_records.get(VECTOR)
        if arrays is None:
            raise ProtocolError("The reply has no arrays.")
        blocks = as_blocks(arrays, self._values, self.proposal.wire)
        privacy, local = self.proposal.privacy, self.proposal.local
        units = privacy.sample_rate * offer.declared_size
        value = SiteSum(blocks, offer.noise_multiplier, units, privacy.clip_norm)
        if local is not None:
            start = self._start
            value = SiteMove(
                **vars(value), start=start, steps=local.count, optimizer=local.optimizer
            )
        try:
            mean.add(value)
        finally:
            self.outcome.bytes_up += blocks.value.bytes_read

    @property
    def _values(self) -> int:
        """How many a site releases."""
        return self.update.size

    @property
    def _start(self) -> float:
        """L2 norm of what the sites' local steps begin with."""
        return float(np.linalg.norm(self.update.vector.value))

    def _change(self, node: int) -> SetChange | None:
        """What a request says about the synthetic set; nothing without one."""
        return None

    def _answered(self, node: int, *, usable: bool) -> None:
        """Called when a node's answer came, and again if it is used."""

    def _moved(self, released: Aggregate, number: int) -> None:
        """Called after the update, with the mean of the releases that it was made of."""

    def _lifted(self, released: Aggregate) -> Aggregate:
        """A mean of releases as a gradient, (P,)."""
        return released

    def _slot(self, server_round: int) -> int:
        """The first of a round."""
        return (server_round - 1) * self.proposal.round_steps

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """None: a loss on private records would have to be paid for."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """None, as nothing was asked."""
        return None

    def summary(self) -> None:
        """Log the proposal."""
        privacy = self.proposal.privacy
        log.info(
            "%s: %d steps at rate %g, proposed epsilon %g",
            self.proposal.method,
            self.proposal.steps,
            privacy.sample_rate,
            privacy.epsilon,
        )
