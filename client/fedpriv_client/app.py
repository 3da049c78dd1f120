"""A site as a Flower ClientApp: messages in, messages out, and nothing of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpriv.errors import FedprivError, ProtocolError
from fedpriv.models.vector import Vector
from fedpriv.protocol import FAILED, Body, Proposal, Refusal, StepRequest
from fedpriv_client.site import Site

log = logging.getLogger(__name__)
Result = tuple[Body, Vector | None]


def client_app(site: Site) -> ClientApp:
    """Serve a site: `query` messages carry proposals, `train` messages step requests."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return _answer(message, lambda: (site.consider(Proposal.parse(_body(message))), None))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _answer(
            message, lambda: site.step(StepRequest.parse(_body(message)), _vector(message))
        )

    return app


def _answer(message: Message, work: Callable[[], Result]) -> Message:
    """The reply to a message. Of an error its code and class leave; its text is logged here."""
    vector: Vector | None = None
    body: Body
    try:
        body, vector = work()
    except FedprivError as error:
        body = Refusal.of(error)
        log.error("Refused (%s): %s", body.refused, error)
    except Exception as error:
        log.exception("Failed: %s", type(error).__name__)
        body = FAILED
    content = RecordDict({"fedpriv": ConfigRecord({"body": body.model_dump_json()})})
    if vector is not None:
        content["arrays"] = ArrayRecord({"vector": Array(vector)})
    return Message(content, reply_to=message)


def _body(message: Message) -> object:
    record = message.content.config_records.get("fedpriv")
    return None if record is None else record.get("body")


def _vector(message: Message) -> Vector:
    record = message.content.array_records.get("arrays")
    if record is None or set(record) != {"vector"}:
        raise ProtocolError("Expected one array named 'vector'.")
    array: Vector = record["vector"].numpy()
    return array
