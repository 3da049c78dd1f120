"""A site, as whatever process of Flower's simulation a message comes to."""

from __future__ import annotations

import os
from functools import cache

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpriv import logs
from fedpriv_flower.settings import Settings
from fedpriv_simulation.own_ray import guard_ray
from fedpriv_simulation.visits import Visits

# Flower reads this module before it starts Ray. A Ray that happens to be there already could run
# sites on other machines, which don't have their ledgers.
os.environ["RAY_ADDRESS"] = "local"
guard_ray()
# Of an error that is not ours, nothing that could quote a record.
logs.configure(as_json=False, paced=True)

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Consider a proposal."""
    return _answer(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer the slots of a round."""
    return _answer(message, context)


def _answer(message: Message, context: Context) -> Message:
    number = int(context.node_config["partition-id"])
    return _visits(Settings.of(context)).answer(number, message, context)


@cache
def _visits(settings: Settings) -> Visits:
    """Once in a process: it keeps the model."""
    return Visits(settings.job(), settings.out, settings.insecure_seed)
