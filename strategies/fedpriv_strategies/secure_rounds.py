"""Run rounds of a secure sum: ask who is ready, form the set, and take its sum."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from flwr.app import Message

from fedpriv.errors import FedprivError, ProtocolError, RoundError
from fedpriv.privacy.ledger.ledger import Head
from fedpriv.protocol import Offer, Ready, Refusal, SetRequest, StepReply, StepRequest
from fedpriv.public_update.update import Aggregate
from fedpriv.report.rundir import SiteState
from fedpriv.secure_sum.members import Bits
from fedpriv.secure_sum.ready import Member, SlotId, check_member
from fedpriv.secure_sum.roster import Roster
from fedpriv_strategies.messages import (
    TRAIN_SET,
    Nodes,
    answer_of,
    arrays_of,
    as_masked,
    ask,
    body_bytes,
    message,
    payload_bytes,
)
from fedpriv_strategies.rounds import WAITING, Rounds, state_of
from fedpriv_strategies.sum_of_set import SumOfSet

log = logging.getLogger(__name__)
TRIES = 2  # tries to get all shares of a set, before a spare slot is used, if there is one


@dataclass(frozen=True)
class SumState:
    """How far the sum of a round is. It has to outlive the server: a slot has one set for ever.

    Attributes:
        round: the round that it is about.
        slot: the slot that the round uses now, after any that were void.
        request: the set that sites were told; None before there is one.
        tries: how often the set's shares were asked for in vain.
    """

    round: int
    slot: int
    request: SetRequest | None = None
    tries: int = 0


class _VoidError(FedprivError):
    """The sum of a slot can't be completed any more."""


@dataclass(eq=False, repr=False, kw_only=True)
class SecureRounds(Rounds):
    """Asks every site whether it is ready, then asks the ready ones for their shares of one sum.

    Args:
        roster: the sites that may be in a sum.
        state: the state that was kept last.
        keep: writes the state down, before any site is told about it.
    """

    roster: Roster
    state: SumState | None
    keep: Callable[[SumState], None]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._state = self.state or SumState(round=0, slot=-1)
        self._failed: set[str] = set()  # sites that made a slot of this round void

    @property
    def _least_noise(self) -> float:
        """The noise multiplier that all sites have in common."""
        assert self.proposal.shared is not None
        return self.proposal.shared.noise_multiplier

    def run(self, number: int, grid: Nodes) -> None:
        """Run one round: find which sites are ready, take their sum, and move along it.

        Raises:
            RoundError: too few are ready, or a share is missing, and the same request has to be
                made again. Or a slot is void, and there is no spare one.
        """
        while True:
            self.propose(grid)
            if self._state.round != number:
                self._failed.clear()
                self._set_state(SumState(number, self._state.slot + 1))
            try:
                request = self._state.request
                if request is None:
                    request = self._form_set(number, grid)
                    self._set_state(replace(self._state, request=request))
                else:
                    self._begin_outcome(())
                self._add_up(number, request, grid)
                return
            except _VoidError as error:
                self._skip(number, str(error))

    def _set_state(self, state: SumState) -> None:
        self.keep(state)
        self._state = state

    def _slot(self, number: int) -> int:
        return self._state.slot

    def _skip(self, number: int, why: str) -> None:
        """Replace a void slot, which stays paid, by a spare one.

        Raises:
            RoundError: there is no spare slot.
        """
        if not self._has_spare(number):
            raise RoundError(
                f"Round {number}: slot {self._state.slot} is void. {why} There is no spare slot"
                " (privacy.spare_slots)."
            )
        log.warning("Slot %d is void and stays paid; a spare one is taken. %s", self._slot(0), why)
        self._set_state(SumState(number, self._state.slot + 1))

    def _has_spare(self, number: int) -> bool:
        rounds_left = self.proposal.rounds - number
        return self._state.slot + 1 + rounds_left < self.proposal.training_steps

    def _form_set(self, number: int, grid: Nodes) -> SetRequest:
        """Ask which sites are ready, and return them as the set of the slot.

        Raises:
            RoundError: fewer than `min_sites` are ready.
        """
        replies = ask(grid, self.requests(number, grid), self.timeout)
        slot_id = self._slot_id(number)
        ready: dict[str, Member] = {}

        def use(offer: Offer, answer: Ready, reply: Message) -> None:
            if (answer.slot, answer.member.name) != (slot_id.slot, offer.site):
                raise ProtocolError("It is ready for another slot, or as another site.")
            check_member(answer.member, self.roster, slot_id)
            self._note(offer, SiteState.READY)
            ready[offer.site] = answer.member

        hopeless = self._hear(replies, Ready, use)
        count, states = len(ready), self._states()
        self._check_enough(f"Round {number}: {count} sites are ready", count, hopeless, states)
        chosen = ready.keys() - self._failed  # a site that made a slot void may do so again
        if len(chosen) < self.min_sites:
            chosen = set(ready)
        members = tuple(ready[name] for name in sorted(chosen))
        bits, job = self._sum_of(members).bits, self.proposal.job_id
        return SetRequest(job_id=job, slot=slot_id.slot, bits=bits, members=members)

    def _slot_id(self, number: int) -> SlotId:
        """Identify what the sum is about: the request to every site, without the witness."""
        job, slot = self.proposal.job_id, self._slot(number)
        request = StepRequest(job_id=job, slot=slot, set_digest=self._asked_for)
        digest = request.digest(self.update.vector.value)
        return SlotId(proposal=self.proposal.digest(), slot=slot, request=digest)

    def _sum_of(self, members: Sequence[Member], bits: Bits | None = None) -> SumOfSet:
        """Make the empty sum of a set of sites whose terms are known."""
        sizes = {offer.site: offer.declared_size for offer in self.offers.values()}
        rate = self.proposal.privacy.sample_rate
        units = sum(rate * sizes[member.name] for member in members)
        return SumOfSet(self.proposal, self.method.values, len(members), units, bits)

    def _add_up(self, number: int, request: SetRequest, grid: Nodes) -> None:
        """Ask for the shares of a set, and move along their sum.

        Raises:
            RoundError: some shares are missing; nothing was changed.
            _VoidError: a share will never come.
        """
        wanted = {member.name for member in request.members}
        unknown = wanted - {offer.site for offer in self.offers.values()}  # after a restart
        if unknown:
            self._miss(number, f"Not connected: {', '.join(sorted(unknown))}.")
        total = self._sum_of(request.members, request.bits)
        there = set(grid.get_node_ids())
        nodes = {n: o for n, o in self.offers.items() if o.site in wanted and n in there}
        group, share = str(number), total.share_bytes
        asked = [message(request, n, TRAIN_SET, group, reply_bytes=share) for n in nodes]
        self.outcome.bytes_down += payload_bytes(asked)
        log.info("Round %d: waiting for the shares of %d sites.", number, len(nodes))
        for node, reply in ask(grid, asked, self.timeout):
            offer = nodes[node]
            try:
                self._take_share(total, offer, reply, number)
            except ProtocolError as error:
                self._failed.add(offer.site)
                raise _VoidError(f"{offer.site}: {error}") from None
        if total.missing:
            shares = f"{total.missing} of {len(wanted)} shares are missing"
            self._miss(number, f"{shares}. {self._states()}.")
        try:
            mean = total.take()
        except ProtocolError as error:
            raise _VoidError(str(error)) from None
        self._move(number, Aggregate(mean, total.noise_variance, total.units))

    def _miss(self, number: int, what: str) -> NoReturn:
        """Count a try in vain. Always raise an error, as `_add_up` says."""
        self._set_state(replace(self._state, tries=self._state.tries + 1))
        if self._state.tries >= TRIES and self._has_spare(number):
            raise _VoidError(what)
        raise RoundError(f"Round {number}: {what}", may_heal=True)

    def _take_share(self, total: SumOfSet, offer: Offer, reply: Message, number: int) -> None:
        """Add a site's share. Raise ProtocolError if this share will never come."""
        self.outcome.bytes_up += body_bytes(reply)
        if reply.has_error():
            self._note(offer, SiteState.NO_REPLY)
            return
        answer = answer_of(reply, StepReply)
        if isinstance(answer, Refusal):
            self._note(offer, state_of(answer))
            if answer.refused in WAITING:  # a share may still come
                return
            raise ProtocolError(f"It refused its share: {answer.reason}.")
        if (answer.kind, answer.slot) != ("masked-share", self._slot(number)):
            raise ProtocolError("It sent something else than its share.")
        masked = as_masked(arrays_of(reply), total.size, total.bits)
        try:
            total.add(masked)
        finally:
            self.outcome.bytes_up += masked.bytes_read
        self.heads[offer.site] = Head(answer.ledger_rows, answer.ledger_head)
        self._note(offer, SiteState.OK, answer)
