"""Looks at held-out records between real processes: allowed, refused, and interrupted."""

from __future__ import annotations

import pytest

from tests.network.network_federation import ROUNDS, Federation

nightly = pytest.mark.nightly


def with_looks(federation: Federation, *allowing: int) -> None:
    """A look of two steps after every round, and the sites that let it be."""
    federation.change(
        federation.file,
        "[server]\n",
        f"[evaluation.sites]\nlooks = {ROUNDS}\nslots = 2\n[server]\n",
    )
    for index in allowing:
        file = federation.site_file(index)
        federation.change(file, "max_steps = 3", f"evaluation = true\nmax_steps = {3 * ROUNDS}")
        federation.change(file, "\nsize = 24\n", "\nsize = 24\nheld_out = 0.4\n")


@nightly
def test_a_site_looks_only_where_its_own_file_allows_it(federation: Federation) -> None:
    federation.only(2, needed=1)
    with_looks(federation, 0)
    federation.change(federation.site_file(1), "max_steps = 3", f"max_steps = {3 * ROUNDS}")
    server = federation.server()
    federation.client(0)
    other = federation.client(1)
    federation.finish(server)
    assert "Refused (evaluation): evaluation.sites: is not allowed here" in other.text
    looks = [row["held_out"] for row in federation.metrics()]
    assert [look["number"] for look in looks] == [1, 2, 3]
    assert all(look["sites"].keys() == {"site-0"} for look in looks)
    assert all(look["counted"] == 1 and look["loss"]["deviation"] > 0 for look in looks)
    assert "on held-out records of 1 site, loss" in server.text
    assert federation.totals(0)[-1] == 3 * ROUNDS


@nightly
def test_a_client_and_a_server_are_killed_between_looks(federation: Federation) -> None:
    federation.only(2, needed=2)
    with_looks(federation, 0, 1)
    server = federation.server()
    client = federation.client(0)
    federation.client(1, "held")
    federation.until_paid(0, 3)  # a step, and those of the first look
    client.kill()
    federation.client(0)
    federation.let_go(1)
    federation.until_paid(0, 6)
    server.kill()
    federation.finish(federation.server())
    looks = [row["held_out"] for row in federation.metrics()]
    assert [look["number"] for look in looks] == [1, 2, 3]
    assert federation.totals(0) == federation.totals(1)
    assert federation.totals(0)[-1] == 3 * ROUNDS  # slots, each paid once
