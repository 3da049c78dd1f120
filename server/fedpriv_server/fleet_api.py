"""The fleet API as sites see it: what each may ask, and what is done beside Flower's part.

Flower authenticates nodes and answers them. Its web framework, of five layers, is left out.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import Any

from fastapi import HTTPException
from flwr.app import Metadata
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fedpriv.errors import ProtocolError
from fedpriv_server.bounds import Bounds
from fedpriv_server.flower.messages import ObjectTree
from fedpriv_server.flower.requests import announced, fleet, http_error_translator, objects
from fedpriv_server.grid import NetworkGrid

log = logging.getLogger(__name__)
LONGEST_NAME = 100  # characters of a message's type, group and ids


def fleet_api(grid: NetworkGrid) -> ASGIApp:
    """Return the app that a web server serves. It tells the grid what nodes do."""
    return Bounds(_FleetApi(grid), is_known=grid.broker.is_admitted)


class _FleetApi:
    """Handles each request whose signer is known, before and after Flower does."""

    def __init__(self, grid: NetworkGrid) -> None:
        self._grid, self._broker, self._state = grid, grid.broker, grid.broker.state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await http_error_translator(Request(scope, receive), self._respond)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        message = await self._state.read(request)
        match message:
            case fleet.ActivateNodeRequest():
                answer = await run_in_threadpool(self._activate, message)
            case fleet.DeactivateNodeRequest():
                self._broker.presence.forget(message.node_id)
                answer = await run_in_threadpool(self._state.answer, message)
            case fleet.PullMessagesRequest():
                answer = await self._hold(message, request)
            case _:
                answer = await run_in_threadpool(self._answer, message)
        return Response(answer.SerializeToString(), media_type="application/x-protobuf")

    def _answer(self, message: Any) -> Any:
        """Answer a request that needs no waiting."""
        node = message.node.node_id
        match message:
            case fleet.PushMessagesRequest():
                try:
                    self._announce(message)
                except ProtocolError as error:
                    log.warning("Site %s: %s", self._broker.names.get(node), error)
                    raise HTTPException(400, "no reply looks like that") from None
            case _ if message.run_id != self._state.run:
                raise HTTPException(404, "no such run")
            case objects.ConfirmMessageReceivedRequest(message_object_id=key):
                if not self._broker.was_told(node, key):
                    raise HTTPException(400, "no message of one's own")
        self._broker.presence.heard(node)
        answer = self._state.answer(message)
        match message:
            case objects.ConfirmMessageReceivedRequest():
                self._grid.confirmed(node, message.message_object_id)
            case objects.PushObjectRequest() | fleet.PushMessagesRequest():
                self._grid.stored(node)
        return answer

    def _announce(self, request: fleet.PushMessagesRequest) -> None:
        """Check an announced reply before Flower sees it, and expect its objects."""
        metadata, tree, content = single_reply(request)
        if metadata.run_id != self._state.run:
            raise ProtocolError("A reply in another run.")
        upload = self._state.expected.get(metadata.reply_to_message_id)
        if upload is not None and upload.node == request.node.node_id:
            upload.announce(metadata.reply_to_message_id, tree, content)

    def _activate(self, message: fleet.ActivateNodeRequest) -> Any:
        node = self._state.node_of(message.public_key)
        if node is None:
            raise HTTPException(401, "not admitted")
        self._broker.questions.supersede(node)
        self._state.end_lease(node)
        answer = self._state.answer(message)
        self._broker.presence.heard(node)
        self._grid.arrived(node)
        return answer

    async def _hold(self, message: fleet.PullMessagesRequest, request: Request) -> Any:
        """Answer a node's request for messages when there is one, or after a while without one."""
        questions = self._broker.questions
        node = message.node.node_id
        visit = questions.visit(node)
        with self._broker.presence.waiting(node):
            self._state.heard(node)
            for came in message.message_ids:
                if self._broker.was_told(node, came):
                    self._grid.confirmed(node, came)
            self._grid.asks(node)
            await questions.wait(node, partial(_gone, request))
            if not questions.is_latest(node, visit) or await request.is_disconnected():
                # No message is taken out of the mailbox for a node that is gone.
                raise HTTPException(499, "gone")
            questions.answer(node)
            answer = await run_in_threadpool(self._state.answer, message)
        for said in answer.messages_list:
            self._grid.took(node, said.metadata.message_id)
        if self._state.mailboxes[node]:
            questions.answered(node)
        return answer


async def _gone(request: Request) -> None:
    """Wait until the sender of a request hangs up. The request's body has been read already."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def single_reply(request: fleet.PushMessagesRequest) -> tuple[Metadata, ObjectTree, bytes]:
    """Return the one reply that a request announces, from the node that signed, with sane metadata.

    Raises:
        ProtocolError: the request announces anything else.
    """
    metadata, tree, content = announced(request)
    if metadata.src_node_id != request.node.node_id or not metadata.reply_to_message_id:
        raise ProtocolError("Not a reply of one's own.")
    if tree.object_id != metadata.message_id:
        raise ProtocolError("Not the objects of the reply.")
    if not (math.isfinite(metadata.created_at) and math.isfinite(metadata.ttl)):
        raise ProtocolError("A time that is not finite.")
    texts = metadata.message_id, metadata.reply_to_message_id, metadata.group_id
    if max(map(len, (*texts, metadata.message_type))) > LONGEST_NAME:
        raise ProtocolError(f"A name of more than {LONGEST_NAME} characters.")
    return metadata, tree, content
