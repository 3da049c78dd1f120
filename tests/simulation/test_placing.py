"""Which machine gets how many processes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.errors import ConfigError
from fedpriv.private_training.config import ComputeSection
from fedpriv_simulation.cluster import Node
from fedpriv_simulation.placing import Place, gpus_of_a_host, places


def placed(sites: int, nodes: list[Node], **compute: Any) -> list[Place]:
    return places(ComputeSection(**compute), "embedded", sites, nodes)


def node(number: int, cpus: int, gpus: int = 0) -> Node:
    return Node(f"n{number}", f"n{number}", cpus, gpus)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=6), st.integers(1, 30))
def test_a_node_gets_as_many_as_it_has_cpus_at_most(cpus: list[int], sites: int) -> None:
    found = placed(sites, [*map(node, range(9), cpus)], workers=min(sites, sum(cpus)))
    of = Counter(place.node for place in found)
    assert len(found) == min(sites, sum(cpus))
    for number, there in enumerate(cpus):
        assert of[f"n{number}"] <= there
        threads = {place.threads for place in found if place.node == f"n{number}"}
        assert all(each * of[f"n{number}"] <= there for each in threads)
    if sites >= len(cpus):
        assert len(of) == len(cpus)  # nobody is idle while another has two


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        ({}, [("n1", 1.0), ("n1", 1.0), ("n2", 1.0)]),  # the head without a GPU only drives
        ({"gpus_per_site": 0.5, "workers": 4}, [("n1", 0.5)] * 3 + [("n2", 0.5)]),
        ({"workers": 2}, [("n1", 2.0), ("n2", 1.0)]),
        ({"workers": 8}, [("n1", 0.5)] * 4 + [("n2", 0.25)] * 4),
        ({"device": "cpu", "workers": 3}, [("n0", 0.0), ("n1", 0.0), ("n2", 0.0)]),
    ],
)
def test_gpus_are_where_they_are(compute: Any, expected: list[tuple[str, float]]) -> None:
    nodes = [node(0, 4), node(1, 4, 2), node(2, 4, 1)]
    found = placed(8, nodes, **compute)
    assert [(place.node, place.gpus) for place in found] == expected


def test_more_than_there_is_room_for_is_refused() -> None:
    nodes = [node(0, 1), node(1, 1)]
    assert placed(2, nodes, workers=2) == [Place("n0", 1, 0.0), Place("n1", 1, 0.0)]
    with pytest.raises(ConfigError, match=r"compute\.workers: is more than the 2 processes"):
        placed(3, nodes, workers=3)


@pytest.mark.parametrize(
    ("device", "there", "count", "given_share", "expected"),
    [
        ("auto", 0, 2, None, 0.0),
        ("cpu", 4, 2, None, 0.0),
        ("auto", 4, 2, None, 2.0),
        ("auto", 4, 3, None, 1.0),
        ("auto", 1, 4, None, 0.25),
        ("auto", 2, 3, None, 0.5),  # a share is of one GPU
        ("cuda", 2, 4, 0.5, 0.5),
    ],
)
def test_gpus_are_shared(
    device: str, there: int, count: int, given_share: float | None, expected: float
) -> None:
    compute = ComputeSection(device=device, gpus_per_site=given_share)
    assert gpus_of_a_host(compute, there, count) == expected


def test_more_gpus_than_there_are_are_refused() -> None:
    for share, count in ((1.0, 4), (0.4, 5)):
        compute = ComputeSection(gpus_per_site=share)
        with pytest.raises(ConfigError, match=r"gpus_per_site.*Lower it"):
            gpus_of_a_host(compute, 2, count)
