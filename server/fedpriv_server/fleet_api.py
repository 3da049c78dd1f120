"""The fleet API as sites see it: what may be asked, by whom, and what is done beside Flower's part.

Mounted is Flower's fleet router with node authentication, and nothing else.
"""

from __future__ import annotations

import logging
import math
from functools import partial

from fastapi import FastAPI, Request, Response
from flwr.app import Metadata
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import RequestResponseEndpoint
from starlette.responses import JSONResponse

from fedpriv.errors import ProtocolError
from fedpriv_server.bounds import Bounds
from fedpriv_server.broker import MessageBroker
from fedpriv_server.flower.messages import ObjectTree
from fedpriv_server.flower.requests import (
    ActivateNodeRequest,
    ConfirmMessageReceivedRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullObjectRequest,
    PushMessagesRequest,
    PushObjectRequest,
    announced,
    pulled,
    said,
)

log = logging.getLogger(__name__)
LONGEST_NAME = 100  # characters of a message's type, group and ids


def fleet_api(broker: MessageBroker) -> FastAPI:
    """The app for a web server to serve."""
    bounds = Middleware(Bounds, is_known=broker.is_admitted)
    return broker.state.app(bounds, _Observer(broker).observe)


class _Observer:
    """Sees each request whose signer is known, before Flower does and after."""

    def __init__(self, broker: MessageBroker) -> None:
        self._broker, self._state = broker, broker.state

    async def observe(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Behind authentication, which looks at paths of the fleet API only."""
        message = said(request)
        if message is None or not request.url.path.startswith("/v1/fleet/"):
            return _refusal(404, "no such thing here")
        match message:
            case ActivateNodeRequest():
                return await self._activate(message, request, call_next)
            case DeactivateNodeRequest():
                self._broker.presence.forget(message.node_id)
                return await call_next(request)
            case PullMessagesRequest():
                return await self._hold(message.node.node_id, request, call_next)
            case PushMessagesRequest():
                try:
                    await run_in_threadpool(self._announce, message)
                except ProtocolError as error:
                    name = self._broker.names.get(message.node.node_id)
                    log.warning("Site %s: %s", name, error)
                    return _refusal(400, "no reply looks like that")
            case ConfirmMessageReceivedRequest():
                if message.run_id != self._state.run:
                    return _refusal(404, "no such run")
                if not self._broker.was_told(message.node.node_id, message.message_object_id):
                    return _refusal(400, "no message of one's own")
            case PushObjectRequest() | PullObjectRequest():
                if message.run_id != self._state.run:
                    return _refusal(404, "no such run")
            case _:
                return _refusal(404, "no such thing here")
        node = message.node.node_id
        self._broker.presence.heard(node)
        response = await call_next(request)
        if response.status_code < 400:
            match message:
                case ConfirmMessageReceivedRequest():
                    self._broker.traffic.confirmed(node, message.message_object_id)
                case PushObjectRequest() | PushMessagesRequest():
                    self._broker.traffic.stored(node)
        return response

    def _announce(self, request: PushMessagesRequest) -> None:
        """Look at a reply before Flower does, and expect its objects."""
        metadata, tree = single_reply(request)
        if metadata.run_id != self._state.run:
            raise ProtocolError("A reply in another run.")
        upload = self._state.expected(metadata.reply_to_message_id)
        if upload is not None and upload.node == request.node.node_id:
            upload.announce(metadata.reply_to_message_id, tree)

    async def _activate(
        self, message: ActivateNodeRequest, request: Request, call_next: RequestResponseEndpoint
    ) -> Response:
        def lookup() -> int | None:
            node = self._state.node_of(message.public_key)
            if node is not None:
                self._broker.questions.supersede(node)
                self._state.end_lease(node)
            return node

        node = await run_in_threadpool(lookup)
        if node is None:
            return _refusal(401, "not admitted")
        response = await call_next(request)
        if response.status_code < 400:
            self._broker.presence.heard(node)
            await run_in_threadpool(self._broker.traffic.arrived, node)
        return response

    async def _hold(
        self, node: int, request: Request, call_next: RequestResponseEndpoint
    ) -> Response:
        """Answer a question for messages when there is one, or after a while."""
        questions, traffic = self._broker.questions, self._broker.traffic

        def asks() -> None:
            self._state.heard(node)
            traffic.asks(node)

        visit = questions.visit(node)
        with self._broker.presence.waiting(node):
            await run_in_threadpool(asks)
            await questions.wait(node, partial(_gone, request))
            if not questions.is_latest(node, visit) or await request.is_disconnected():
                # No message is taken out of the box for somebody who is gone.
                return _refusal(499, "gone")
            questions.answer(node)
            response = await call_next(request)
        for message_id in pulled(request):
            questions.answered(node)
            traffic.took(node, message_id)
        return response


async def _gone(request: Request) -> None:
    """Returns when whoever sent a request, whose body was read, hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _refusal(status: int, detail: str) -> JSONResponse:
    """In JSON: Flower's middleware turns an error of any other kind into its own failure."""
    return JSONResponse({"detail": detail}, status_code=status)


def single_reply(request: PushMessagesRequest) -> tuple[Metadata, ObjectTree]:
    """The one reply that a request announces: of the node that signed, and of sane metadata.

    Raises:
        ProtocolError: it announces anything else.
    """
    metadata, tree = announced(request)
    if metadata.src_node_id != request.node.node_id or not metadata.reply_to_message_id:
        raise ProtocolError("Not a reply of one's own.")
    if tree.object_id != metadata.message_id:
        raise ProtocolError("Not the objects of the reply.")
    if not (math.isfinite(metadata.created_at) and math.isfinite(metadata.ttl)):
        raise ProtocolError("A time that is not finite.")
    texts = metadata.message_id, metadata.reply_to_message_id, metadata.group_id
    if max(map(len, (*texts, metadata.message_type))) > LONGEST_NAME:
        raise ProtocolError(f"A name of more than {LONGEST_NAME} characters.")
    return metadata, tree
