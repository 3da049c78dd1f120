"""Hand the adapter of a finished job to the sites that made it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from flwr.serverapp import Grid

from fedpriv.errors import FedprivError, ProtocolError
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.privatised import Privatised, require_privatised
from fedpriv.protocol import Handover, Proposal, Received, Refusal, values_digest
from fedpriv_server.reports import PATIENCE
from fedpriv_strategies.messages import ADAPTER, answer_of, as_arrays, message

log = logging.getLogger(__name__)
SLOWEST = 1e6  # bytes a second of a site's line, which it is waited for


def hand_over(
    grid: Grid, proposal: Proposal, vector: Privatised[Vector], names: Mapping[int, str]
) -> list[str]:
    """Send the trained values (P,) to the sites that are there; gives those that did not hear.

    Whether a site could keep them it does not say.

    Args:
        names: node → site, of those that took part.

    Raises:
        RawValueError: the vector is raw.
    """
    values = require_privatised(vector, "vector")
    body = Handover(proposal=proposal, values_digest=values_digest(values))
    there = [node for node in grid.get_node_ids() if node in names]
    arrays = as_arrays(vector)
    messages = [message(body, node, ADAPTER, "adapter", arrays) for node in there]
    missing = set(names.values())
    patience = PATIENCE + len(messages) * values.nbytes / SLOWEST
    replies = grid.send_and_receive(messages, timeout=patience)
    nodes = {item.metadata.message_id: item.metadata.dst_node_id for item in messages}
    for reply in replies:
        name = names[nodes[reply.metadata.reply_to_message_id]]
        try:
            answer = answer_of(reply, Received)
            if isinstance(answer, Refusal):
                raise ProtocolError(answer.reason)
        except FedprivError as error:
            log.warning("Site %s did not take the adapter: %s", name, error)
            continue
        missing.discard(name)
    return sorted(missing)
