"""Ask for looks at the sites' held-out records between rounds. They never stop a round."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Message

from fedpriv.config.looks import LooksSection
from fedpriv.errors import ProtocolError, RoundError
from fedpriv.models.vector import Vector
from fedpriv.privacy.ledger.ledger import Head
from fedpriv.privacy.mechanism.privatised import Privatised, post_process
from fedpriv.private_training.held_out_sum import SIZE
from fedpriv.private_training.released import HeldOutSum
from fedpriv.protocol import Centres, Offer, Refusal, StepReply
from fedpriv.report.rundir import Estimate, SiteLook, SiteState
from fedpriv.report.rundir import Look as FoundLook
from fedpriv.wire import Blocks
from fedpriv_strategies.aggregate import SiteSum
from fedpriv_strategies.messages import (
    TRAIN,
    Nodes,
    answer_of,
    arrays_of,
    as_arrays,
    as_blocks,
    ask,
    body_bytes,
    message,
    payload_bytes,
)
from fedpriv_strategies.rounds import HEALING, Rounds, state_of

log = logging.getLogger(__name__)
TRIES = 2  # how often a site that does not answer is asked


class Look(FoundLook):
    """The result of a look. All of it is public.

    Attributes:
        number: number of the look, from 1.
    """

    number: int


@dataclass
class _Asked:
    """Holds a look that is going on: what sites have answered so far, by their names.

    Attributes:
        first: the look's first slot.
    """

    rounds: Rounds
    ranges: LooksSection
    number: int
    first: int
    centres: Centres
    found: dict[str, tuple[Offer, Privatised[Vector]]] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0

    def requests(self, offers: Mapping[int, Offer]) -> list[Message]:
        """Make the same request for every node. A node that answered before replies the same."""
        rounds, arrays = self.rounds, as_arrays(self.rounds.update.adapter)
        # The group of the round before: a site with requests of both waiting answers the newer one.
        group = str(self.ranges.after(self.number, rounds.proposal.rounds))
        messages = []
        for node, offer in offers.items():
            request = rounds.step_request(offer, self.first, centres=self.centres)
            messages.append(message(request, node, TRAIN, group, arrays))
        self.bytes_down += payload_bytes(messages)
        return messages

    def take(self, reply: Message, offer: Offer) -> bool:
        """Count a reply, or note why not. Return whether another try may bring a better reply."""
        site = offer.site
        self.bytes_up += body_bytes(reply)
        try:
            answer = answer_of(reply, StepReply)
            if isinstance(answer, Refusal):
                self.states[site] = state_of(answer)
                return answer.refused in HEALING
            self.found[site] = offer, self._total(answer, reply, offer)
            self.rounds.heads[site] = Head(answer.ledger_rows, answer.ledger_head)
            self.states[site] = SiteState.OK
        except (ProtocolError, RoundError) as error:
            log.warning("Site %s: its look was not used: %s", site, error)
            self.states[site] = SiteState.UNUSABLE
        return False

    def _total(self, answer: StepReply, reply: Message, offer: Offer) -> Privatised[Vector]:
        """Read the values (2,) in a reply.

        Raises:
            ProtocolError: it replies to something else, or is larger than clipped vectors and noise
                can be.
            RoundError: the reply can't be read from our own disk.
        """
        assert offer.held_out_size is not None
        if (answer.kind, answer.slot) != (HeldOutSum.kind, self.first):
            raise ProtocolError(f"Expected a look at {self.first}, got {answer.kind}.")
        blocks = as_blocks(arrays_of(reply), SIZE, "float32")
        privacy = self.rounds.proposal.privacy
        units = privacy.sample_rate * offer.held_out_size
        step = SiteSum(blocks, offer.noise_multiplier, units, privacy.clip_norm)
        most = self.ranges.slots * step.largest_norm(SIZE)

        def read(blocks: Blocks) -> Vector:
            values = blocks.vector()
            if float((values.astype("float64") ** 2).sum()) > most**2:
                raise ProtocolError("It is larger than clipped vectors and noise can be.")
            return values

        try:
            return post_process(read, blocks)
        finally:
            self.bytes_up += blocks.value.bytes_read


def look(rounds: Rounds, number: int, centres: Centres, grid: Nodes) -> Look:
    """Ask every site for a look at its held-out records with the present trained values.

    A look that is asked for again after an interruption has to be the same request. Sites then
    send the reply that was paid for. Missing replies are left out, and stay paid. Nothing here
    stops a job.

    Args:
        rounds: the job's rounds, with the sites' terms. A look counts if `min_sites` sites answer.
        number: number of the look, from 1.
        centres: the server's own scores of these values.

    Privacy:
        Post-processing of what sites released.
    """
    proposal, ranges = rounds.proposal, rounds.proposal.evaluation
    assert ranges is not None
    first = proposal.training_steps + (number - 1) * ranges.slots  # after the slots of all rounds
    asked = _Asked(rounds, ranges, number, first, centres)
    there = set(grid.get_node_ids())
    for node, offer in rounds.offers.items():
        asked.states[offer.site] = SiteState.NO_REPLY if node in there else SiteState.ABSENT
    left = {node: offer for node, offer in rounds.offers.items() if node in there}
    for _ in range(TRIES):
        if left:
            log.info("Look %d: asking %d sites, and waiting for their answers.", number, len(left))
        for node, reply in ask(grid, asked.requests(left), rounds.timeout):
            if not asked.take(reply, left[node]):
                del left[node]
    return _result(asked)


def _result(asked: _Asked) -> Look:
    ranges, privacy = asked.ranges, asked.rounds.proposal.privacy

    def mean(sites: Iterable[str]) -> dict[str, Estimate]:
        chosen = [asked.found[name] for name in sites]
        noise = [offer.noise_multiplier for offer, _ in chosen]
        units = [privacy.sample_rate * (offer.held_out_size or 0) for offer, _ in chosen]
        found = post_process(
            lambda *sums: estimates(sums, noise, units, ranges, asked.centres, privacy.clip_norm),
            *(total for _, total in chosen),
        )
        return dict(zip(("loss", "accuracy"), found.value, strict=True))

    sites = {
        name: SiteLook(status=state, **(mean([name]) if name in asked.found else {}))
        for name, state in asked.states.items()
    }
    is_enough = asked.found and len(asked.found) >= asked.rounds.min_sites
    if not is_enough:
        log.warning("Look %d has too few answers and is left out; it stays paid.", asked.number)
    return Look(
        number=asked.number,
        counted=len(asked.found),
        steps=ranges.slots,
        share=privacy.sample_rate,
        **(mean(asked.found) if is_enough else {}),
        sites=sites,
        bytes_up=asked.bytes_up,
        bytes_down=asked.bytes_down,
    )


def estimates(
    totals: Sequence[Vector],
    noise_multipliers: Sequence[float],
    units: Sequence[float],
    ranges: LooksSection,
    centres: Centres,
    clip_norm: float,
) -> tuple[Estimate, Estimate]:
    """Estimate mean loss and accuracy over the held-out units of one or several sites.

    Every unit counts the same, whatever its site's noise is. The divisors are public.

    Args:
        totals: released sums (2,), one for each site.
        noise_multipliers: σ of each site.
        units: sample rate × declared held-out units of each site, in one step.
    """
    expected = clip_norm * ranges.slots * math.fsum(units)
    spread = math.hypot(*noise_multipliers) * clip_norm * math.sqrt(ranges.slots)
    sums = np.stack(totals).sum(0, dtype=np.float64).tolist()
    scales = (ranges.loss_range, ranges.accuracy_range)
    loss, accuracy = (
        Estimate(mean=centre + scale * found / expected, deviation=scale * spread / expected)
        for centre, scale, found in zip((centres.loss, centres.accuracy), scales, sums, strict=True)
    )
    return loss, accuracy
