"""Hand the adapter of a finished job to the sites that made it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from fedpriv.errors import FedprivError, ProtocolError
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.privatised import Privatised, require_privatised
from fedpriv.protocol import Handover, Proposal, Received, Refusal, values_digest
from fedpriv_server.reports import PATIENCE
from fedpriv_strategies.messages import ADAPTER, Nodes, answer_of, as_arrays, ask, message

log = logging.getLogger(__name__)
SLOWEST = 1e6  # bytes a second, to all sites together, that are waited for


def hand_over(
    grid: Nodes,
    names: Mapping[int, str],
    proposal: Proposal,
    vector: Privatised[Vector],
    folder: Path,
) -> list[str]:
    """Send the adapter to sites that released something for it; gives those that did not hear.

    The job is finished all the same, so whatever goes wrong is logged. Whether a site could keep
    the adapter it does not say.

    Args:
        names: node → site, of those to send it to.
        vector: (P,), the adapter's values.
        folder: where the adapter is, for those who have to be sent it in another way.
    """
    missing = set(names.values())
    try:
        missing -= _heard(grid, names, proposal, vector)
    except Exception as error:
        log.error("The adapter was not handed over: %s", error)
    if missing:
        shown = ", ".join(sorted(missing))
        log.warning("%s did not hear of the adapter: send them the folder %s.", shown, folder)
    return sorted(missing)


def _heard(
    grid: Nodes, names: Mapping[int, str], proposal: Proposal, vector: Privatised[Vector]
) -> set[str]:
    values = require_privatised(vector, "vector")
    body = Handover(proposal=proposal, values_digest=values_digest(values))
    arrays = as_arrays(vector)
    there = [node for node in grid.get_node_ids() if node in names]
    messages = [message(body, node, ADAPTER, "adapter", arrays) for node in there]
    patience = PATIENCE + len(messages) * values.nbytes / SLOWEST
    heard = set()
    for node, reply in ask(grid, messages, patience):
        try:
            answer = answer_of(reply, Received)
            if isinstance(answer, Refusal):
                raise ProtocolError(answer.reason)
            heard.add(names[node])
        except FedprivError as error:
            log.warning("Site %s did not take the adapter: %s", names[node], error)
    return heard
