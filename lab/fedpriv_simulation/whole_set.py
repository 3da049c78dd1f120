"""The synthetic set of a site that is not always open.

A server sends it once, then sends changes.
"""

from __future__ import annotations

from flwr.app import Message, RecordDict

from fedpriv.protocol import SYNTHETIC
from fedpriv.synthetic.records import SetChange
from fedpriv_strategies.messages import as_text


def make_whole(message: Message, state: RecordDict) -> None:
    """Put the whole set in place of a change, so that a site need not have kept it.

    Args:
        state: state of the site's node. It keeps the set for the next change.

    Raises:
        SyntheticSetError: the change is for another set than the one that is kept.
        ProtocolError: the content is no change of a set.
    """
    sent = message.content.array_records.get(SYNTHETIC)
    if sent is not None:
        kept = state.array_records.get(SYNTHETIC)
        held = None if kept is None else SetChange.decode(kept).apply(None)
        whole = SetChange.between(None, SetChange.decode(sent).apply(held))
        message.content[SYNTHETIC] = state[SYNTHETIC] = as_text(whole.model_dump_json())
