"""A site that is opened for one message and closed after it, in whatever process that comes to.

For a runtime that starts a process for each message, as Flower's SuperNodes do, or gives it to the
next one that is idle, as Flower's simulation does. What a site has to know of earlier messages is
in the context that Flower keeps for its node: all of it came from the server, and no ledger is in
there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp

from fedpriv.config.load import load_site
from fedpriv.errors import ConfigError, LedgerInUseError, PausedError
from fedpriv.protocol import BODY, Proposal
from fedpriv_client import app
from fedpriv_client.orders import Orders
from fedpriv_client.serve import open_site
from fedpriv_client.site import Site


def client_app(site: Site | None = None) -> ClientApp:
    """A site as a Flower ClientApp: whatever the server asks, the site's own file decides.

    Args:
        site: that stays open. Without one, a node's ``site`` in its node config names the site's
            file, and the site is opened for each message; it is then in no secure sum.

    Privacy:
        As of `Site`. Of what goes wrong, one of a few public codes leaves, and no text.
    """
    if site is not None:
        return app.client_app(site, partial(_check_orders, site))
    made = ClientApp()
    for answers in (made.query(), made.query("report"), made.query("adapter"), made.train()):
        answers(_answer)
    return made


def _answer(message: Message, context: Context) -> Message:
    with ExitStack() as stack:

        def open_here() -> Site:
            if (stated := context.node_config.get("site")) is None:
                fix = """Start the SuperNode with --node-config 'site="/…/site.toml"'."""
                raise ConfigError("names no file of a site", key="node_config.site", fix=fix)
            config = Path(str(stated))
            return open_site(load_site(config), config, stack)

        return visit(open_here, message, context, _check_orders)


def _check_orders(site: Site, job: str) -> None:
    Orders.read(site.settings.state_dir).check(job)


def visit(
    opened: Callable[[], Site],
    message: Message,
    context: Context,
    permit: Callable[[Site, str], None] = lambda site, job: None,
) -> Message:
    """The reply of a site that is opened for it.

    Args:
        opened: opens the site; whoever calls closes it.
        context: of the site's node; holds what the next message needs.
        permit: called with the site and the id of the job; raises what forbids it.
    """
    kind = message.metadata.message_type
    try:
        site = opened()
        if kind == MessageType.TRAIN and BODY in context.state:
            site.consider(Proposal.parse(context.state.config_records[BODY]["body"]))
        reply = app.client_app(site, partial(permit, site))(message, context)
    except LedgerInUseError as error:
        return app.refusal(message, PausedError(f"The site is at an earlier request. {error}"))
    except Exception as error:
        return app.refusal(message, error)
    if kind == MessageType.QUERY:
        context.state[BODY] = message.content[BODY]
    return reply
