"""The server's half of DP-LoRA with `sync = 1`: one private step at every site a round."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedpriv.errors import ProtocolError, RoundError
from fedpriv.privacy.ledger import Head
from fedpriv.protocol import Offer, Proposal, Refusal, StepReply, StepRequest
from fedpriv.training.optimizer import VectorOptimizer
from fedpriv_strategies.aggregate import SiteSum, weighted_mean
from fedpriv_strategies.messages import (
    QUERY,
    TRAIN,
    answer_of,
    as_arrays,
    as_vector,
    message,
    payload_bytes,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SiteRound:
    """What became of one site in one round. All public."""

    status: str
    noise_multiplier: float
    epsilon_spent: float | None = None
    epsilon_committed: float | None = None


@dataclass
class RoundOutcome:
    """What became of one round."""

    bytes_up: int = 0
    bytes_down: int = 0
    sites: dict[str, SiteRound] = field(default_factory=dict)


class DpLoraStrategy(Strategy):
    """Asks every site for one privatised gradient sum a round and holds the optimiser.

    The arrays that go round are one flat vector, the trained parameters. Sites are asked for
    their terms once, before the first round; those that refuse are left out.

    Attributes:
        offers: node → the site's terms.
        refused: node → why it made none.
        heads: site → the newest ledger head seen of it, sent back to it as a witness.
        outcome: of the last round.
    """

    def __init__(
        self,
        proposal: Proposal,
        optimizer: VectorOptimizer,
        *,
        min_sites: int,
        timeout: float,
        heads: Mapping[str, Head] | None = None,
    ) -> None:
        self.proposal = proposal
        self.optimizer = optimizer
        self.offers: dict[int, Offer] = {}
        self.refused: dict[int, Refusal] = {}
        self.heads: dict[str, Head] = dict(heads or {})
        self.outcome = RoundOutcome()
        self._min_sites = min_sites
        self._timeout = timeout
        self._sent: list[Message] = []

    def propose(self, grid: Grid) -> None:
        """Collect the sites' terms. Nothing is spent by asking.

        Raises:
            RoundError: fewer than `min_sites` accept.
        """
        messages = [message(self.proposal, node, QUERY, "0") for node in grid.get_node_ids()]
        replies = grid.send_and_receive(messages, timeout=self._timeout)
        nodes = {item.metadata.message_id: item.metadata.dst_node_id for item in messages}
        for reply in replies:
            node = nodes[reply.metadata.reply_to_message_id]
            try:
                answer = answer_of(reply, Offer)
                if isinstance(answer, Offer):
                    self._check_witness(answer)
            except ProtocolError as error:
                log.warning("Node %d made no usable offer: %s", node, error)
                self.refused[node] = Refusal.of(error)
                continue
            if isinstance(answer, Refusal):
                self.refused[node] = answer
            else:
                self.offers[node] = answer
        if len(self.offers) < self._min_sites:
            reasons = ", ".join(f"node {n}: {self.refused[n].reason}" for n in sorted(self.refused))
            raise RoundError(
                f"{len(self.offers)} sites accept the job, {self._min_sites} are needed"
                f" (job.min_sites). Refused: {reasons or 'none answered'}."
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
        """One request for slot `server_round` − 1 to every site that accepted."""
        if not self.offers:
            self.propose(grid)
        messages = []
        for node, offer in self.offers.items():
            seen = self.heads.get(offer.site, Head(0, "0" * 64))
            request = StepRequest(
                job_id=self.proposal.job_id,
                slot=server_round - 1,
                witness_rows=seen.rows,
                witness_head=seen.hash,
            )
            messages.append(message(request, node, TRAIN, str(server_round), arrays))
        self.outcome = RoundOutcome(bytes_down=payload_bytes(messages))
        self._sent = messages
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """One optimiser step along the weighted mean of the sites' sums.

        Raises:
            RoundError: fewer than `min_sites` usable replies; nothing was changed.
        """
        nodes = {item.metadata.message_id: item.metadata.dst_node_id for item in self._sent}
        outcome, sums = self.outcome, []
        for offer in self.offers.values():
            outcome.sites[offer.site] = SiteRound("no reply", offer.noise_multiplier)
        for reply in sorted(replies, key=lambda item: nodes[item.metadata.reply_to_message_id]):
            offer = self.offers[nodes[reply.metadata.reply_to_message_id]]
            outcome.bytes_up += payload_bytes([reply])
            try:
                answer = answer_of(reply, StepReply)
                if isinstance(answer, Refusal):
                    status = f"refused: {answer.reason}"
                    outcome.sites[offer.site] = SiteRound(status, offer.noise_multiplier)
                    continue
                sums.append(self._site_sum(offer, answer, reply, server_round))
            except ProtocolError as error:
                log.warning("Site %s: reply not used: %s", offer.site, error)
                outcome.sites[offer.site] = SiteRound("unusable", offer.noise_multiplier)
                continue
            self.heads[offer.site] = Head(answer.ledger_rows, answer.ledger_head)
            outcome.sites[offer.site] = SiteRound(
                "ok", offer.noise_multiplier, answer.epsilon_spent, answer.epsilon_committed
            )
        if len(sums) < self._min_sites:
            states = ", ".join(f"{name}: {site.status}" for name, site in outcome.sites.items())
            raise RoundError(
                f"Round {server_round}: {len(sums)} usable replies, {self._min_sites} are needed"
                f" (job.min_sites). {states}."
            )
        vector = self.optimizer.step(weighted_mean(sums))
        return as_arrays(vector), MetricRecord({"sites": len(sums)})

    def _site_sum(
        self, offer: Offer, answer: StepReply, reply: Message, server_round: int
    ) -> SiteSum:
        if answer.slot != server_round - 1:
            raise ProtocolError(f"Expected slot {server_round - 1}, got {answer.slot}.")
        arrays = reply.content.array_records.get("arrays")
        if arrays is None:
            raise ProtocolError("The reply has no arrays.")
        value = as_vector(arrays, self.optimizer.size)
        rate = self.proposal.privacy.sample_rate
        return SiteSum(value, offer.noise_multiplier, rate * offer.declared_size)

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
