"""The synthetic set of a site that is not always open: a server sends it once, then changes."""

from __future__ import annotations

from flwr.app import ArrayRecord, Message, RecordDict

from fedpriv.synthetic.records import MAX_BYTES, SetChange
from fedpriv.wire import decode_text
from fedpriv_strategies.messages import as_text

SYNTHETIC = "synthetic"  # the record's name, in a message and in the state of a node


def make_whole(message: Message, state: RecordDict) -> None:
    """Put the whole set in place of a change, so that a site need not have kept it.

    Args:
        state: of the site's node; keeps the set for the next change.

    Raises:
        SyntheticSetError: the change is of another set than the one that is kept.
        ProtocolError: it is none.
    """
    sent = message.content.array_records.get(SYNTHETIC)
    if sent is not None:
        kept = state.array_records.get(SYNTHETIC)
        held = None if kept is None else _change(kept).apply(None)
        whole = SetChange.between(None, _change(sent).apply(held))
        message.content[SYNTHETIC] = state[SYNTHETIC] = as_text(whole.model_dump_json())


def _change(record: ArrayRecord) -> SetChange:
    return SetChange.parse(decode_text(lambda name: record[name].data, record.keys(), MAX_BYTES))
