"""Nodes that take part in secure sums, with real keys and masks, or lie where a test tells them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedpriv.errors import FedprivError
from fedpriv.protocol import Offer, Proposal, Ready, Refusal, SetRequest, StepReply, StepRequest
from fedpriv.secure_sum.masks import mask
from fedpriv.secure_sum.members import MemberSet
from fedpriv.secure_sum.ready import Ephemeral, SlotId, sign_member
from fedpriv.secure_sum.roster import RosterEntry
from fedpriv.wire import Blocks, encode_masked
from tests.strategies.asked_grid import AskedGrid

UNITS = 100  # that each site declares
SILENT = object()  # no answer at all
Said = Callable[[Any], Any]  # what becomes of an honest answer


def honest(answer: Any) -> Any:
    """As it is."""
    return answer


class Node:
    """A site that adds up, a few numbers a slot.

    Attributes:
        numbers: its share of every slot, before it is masked, in steps of the grid.
        on_offer, on_ready, on_share: what it makes of its honest answers.
        asked: what it was asked, in order.
        sent: slot → its masked share, for ever.
    """

    def __init__(self, name: str, numbers: Iterable[int]) -> None:
        self.name, self.numbers = name, np.array(list(numbers), np.int64)
        self.signing_key = Ed25519PrivateKey.generate()
        self.on_offer: Said = honest
        self.on_ready: Said = honest
        self.on_share: Said = honest
        self.asked: list[StepRequest | SetRequest] = []
        self.sent: dict[int, Any] = {}
        self._ready: dict[int, tuple[SlotId, Ephemeral]] = {}
        self.proposal: Proposal | None = None

    @property
    def entry(self) -> RosterEntry:
        key = self.signing_key.public_key().public_bytes_raw().hex()
        return RosterEntry(name=self.name, public_key=key)

    def offer(self, proposal: Proposal) -> Any:
        self.proposal, shared = proposal, proposal.shared
        assert shared is not None
        made = Offer(
            site=self.name, dataset_id="0" * 32, declared_size=UNITS, delta=1e-5,
            noise_multiplier=shared.noise_multiplier, epsilon=4.0, epsilon_alone=9.0, budget=8.0,
            ledger_rows=1, ledger_head="0" * 64,
        )  # fmt: skip
        return self.on_offer(made)

    def ready(self, request: StepRequest, vector: Any) -> Any:
        self.asked.append(request)
        assert self.proposal is not None
        proposal, slot = self.proposal.digest(), request.slot
        slot_id = SlotId(proposal=proposal, slot=slot, request=request.digest(vector))
        if self._ready.get(slot, (None, None))[0] != slot_id:
            self._ready[slot] = (slot_id, Ephemeral())
        member = sign_member(self.signing_key, slot_id, self.name, self._ready[slot][1])
        return self.on_ready(Ready(slot=slot, member=member))

    def share(self, request: SetRequest) -> Any:
        self.asked.append(request)
        slot = request.slot
        if slot not in self.sent:
            slot_id, key = self._ready[slot]
            members = MemberSet(slot_id=slot_id, members=request.members, bits=request.bits)
            self.sent[slot] = mask(self.numbers, self.name, key, members)
        body = StepReply(
            kind="masked-share", slot=slot, epsilon_spent=1.0, epsilon_committed=4.0,
            ledger_rows=5, ledger_head="1" * 64,
        )  # fmt: skip
        return self.on_share((body, self.sent[slot]))

    def slots(self, kind: type) -> list[int]:
        """Of what it was asked."""
        return [one.slot for one in self.asked if isinstance(one, kind)]


class Summing(AskedGrid):
    """Carries messages to nodes and back; those that are away get none.

    Attributes:
        before_sets: called before the first share of a set is asked for.
    """

    def __init__(self, *nodes: Node) -> None:
        super().__init__()
        self.nodes = dict(enumerate(nodes, start=7))
        self.away: set[str] = set()
        self.before_sets: Callable[[], None] = lambda: None
        self._count = 0

    def get_node_ids(self) -> list[int]:
        return [key for key, node in self.nodes.items() if node.name not in self.away]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        asked = list(messages)
        if any(item.metadata.message_type == "train.set" for item in asked):
            self.before_sets()
        replies = []
        for item in asked:
            self._count += 1
            item.metadata.__dict__["_message_id"] = f"message-{self._count}"
            answer = self._answer(self.nodes[item.metadata.dst_node_id], item)
            if answer is not SILENT:
                replies.append(_reply(item, answer))
        return iter(replies)

    @staticmethod
    def _answer(node: Node, item: Message) -> Any:
        body = item.content.config_records["fedpriv"]["body"]
        match item.metadata.message_type:
            case "query":
                return node.offer(Proposal.parse(body))
            case "train":
                arrays = item.content.array_records["arrays"]
                size = sum(array.shape[0] for array in arrays.values())
                read = Blocks(lambda key: arrays[key].data, arrays.keys(), size, "float32")
                return node.ready(StepRequest.parse(body), read.vector())
            case "train.set":
                return node.share(SetRequest.parse(body))
        raise AssertionError(item.metadata.message_type)


def _reply(item: Message, answer: Any) -> Message:
    body, values = answer if isinstance(answer, tuple) else (answer, None)
    body = Refusal.of(body) if isinstance(body, FedprivError) else body
    content = RecordDict({"fedpriv": ConfigRecord({"body": body.model_dump_json()})})
    if values is not None:
        arrays = {name: Array(block) for name, block in encode_masked(values)}
        content["arrays"] = ArrayRecord(arrays)
    return Message(content, reply_to=item)
