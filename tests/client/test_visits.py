"""A site as an app of stock Flower: opened for each message, and with the last word in all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

import fedpriv_client
from fedpriv.config.load import load_job, load_site
from fedpriv.errors import RoundError
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv_client import client_app
from fedpriv_client.orders import Orders
from fedpriv_client.settings import ledgers
from fedpriv_simulation.inline import FIRST_SITE, InlineGrid
from fedpriv_strategies.messages import QUERY, message
from fedpriv_strategies.strategy import PrivateRounds
from tests.client.test_app import PROPOSAL

Make = Callable[..., Any]


class Node:
    """A SuperNode: what its app keeps is in the context, and it has a node config."""

    def __init__(self, **config: str) -> None:
        self._app, self._config, self._state = client_app(), config, RecordDict()
        self.replies: list[dict[str, Any]] = []

    def __call__(self, asked: Message, _: Context) -> Message:
        own = Context(
            run_id=1, node_id=2, node_config=dict(self._config), state=self._state, run_config={}
        )
        reply = self._app(asked, own)
        self.replies.append(json.loads(reply.content["fedpriv"]["body"]))
        return reply


@pytest.fixture
def rounds(federation: Make) -> PrivateRounds:
    """Of one site with the embedded model, without trials before the first step."""
    settings = ["model.name=embedded", "privacy.numerics=strict", "privacy.epsilon=3"]
    return PrivateRounds(load_job(federation(rounds=2, sites=1), settings))


@pytest.fixture
def node(file: Path) -> Node:
    file.write_text(file.read_text().replace('"clinic" }', '"clinic", ticks = false }'))
    return Node(site=str(file))


def test_it_pays_from_the_ledger_of_its_file_and_its_administrator_decides(
    rounds: PrivateRounds, node: Node, file: Path
) -> None:
    site = load_site(file)
    [path] = ledgers(site).values()
    with InlineGrid({FIRST_SITE: node}, 1) as grid:
        rounds.start(grid, rounds.arrays, num_rounds=1)
        Orders(paused=True).write(site.site.state_dir)
        with pytest.raises(RoundError, match="refused: paused"):
            rounds.start(grid, rounds.arrays, num_rounds=1)
        Orders().write(site.site.state_dir)
        busy = Ledger.open(path, file.parent / "elsewhere/witness")
        with pytest.raises(RoundError, match="refused: paused"):
            rounds.start(grid, rounds.arrays, num_rounds=1)
        busy.close()
        rounds.start(grid, rounds.arrays, num_rounds=rounds.left)
    with Ledger.open(path, reading=True) as ledger:
        assert ledger.slots(rounds.rounds.proposal.job_id) == [(0, True), (1, True)]
    assert not list(site.site.state_dir.glob("cache/*"))  # no clear text is left


def test_a_node_that_names_no_site_says_so_to_its_own_log(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    with InlineGrid({2: node}, 1) as grid:
        list(grid.send_and_receive([message(PROPOSAL, 2, QUERY, "0")], timeout=60))
    assert node.replies == [{"refused": "config", "kind": "ConfigError"}]
    assert "node_config.site: names no file of a site" in caplog.text


def test_the_package_offers_it_and_nothing_that_is_not_there() -> None:
    assert fedpriv_client.client_app is client_app
    with pytest.raises(AttributeError, match="no attribute 'client_ap'"):
        fedpriv_client.client_ap  # noqa: B018
