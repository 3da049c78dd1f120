"""On which machines of a cluster a simulation's processes are, and what each process gets there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedpriv.errors import ConfigError
from fedpriv.private_training.config import ComputeSection
from fedpriv_simulation.cluster import Node
from fedpriv_simulation.workers import copies_that_fit, hosts_that_fit


@dataclass(frozen=True)
class Place:
    """Room for a process that holds several sites.

    Attributes:
        node: Ray's id of the machine.
        threads: threads of torch.
        gpus: number of GPUs, or the share of one.
    """

    node: str
    threads: int
    gpus: float


def places(compute: ComputeSection, model: str, sites: int, nodes: Sequence[Node]) -> list[Place]:
    """Place as many processes as `compute.workers` says, or as fit, each on the emptiest node.

    A process takes a CPU that Ray may give away. If any node has a GPU, and the file does not say
    cpu, only nodes with a GPU get sites.

    Args:
        model: name of the base model.
        sites: number of sites.

    Raises:
        ConfigError: there is no room, or not for as many processes as `compute.workers` asks for.
    """
    on_gpus = compute.device != "cpu" and any(node.gpus for node in nodes)
    usable = [node for node in nodes if node.gpus or not on_gpus]
    room = [_room(compute, model, node, on_gpus) for node in usable]
    stated = compute.workers
    count = min(sites, sum(room) if stated is None else stated)
    if not 0 < count <= sum(room):
        problem = f"is more than the {sum(room)} processes that the cluster has CPUs and GPUs for"
        fix = "Lower it, or start Ray with more CPUs on more machines."
        raise ConfigError(problem, key="compute.workers", value=stated, fix=fix)
    taken = [0] * len(usable)
    for _ in range(count):
        free = (n for n in range(len(usable)) if taken[n] < room[n])
        taken[min(free, key=lambda n: (taken[n] / room[n], n))] += 1
    found = list[Place]()
    for node, of_it in zip(usable, taken, strict=True):
        if of_it:
            gpus = gpus_of_a_host(compute, node.gpus if on_gpus else 0, of_it)
            found += [Place(node.id, max(1, node.cpus // of_it), gpus)] * of_it
    return found


def _room(compute: ComputeSection, model: str, node: Node, on_gpus: bool) -> int:
    """Return the most processes that a node may have. With a stated number, they share GPUs."""
    stated = compute.workers is not None
    if on_gpus and (compute.gpus_per_site is not None or not stated):
        return min(node.cpus, hosts_that_fit(node.gpus, compute.gpus_per_site or 1.0))
    return node.cpus if stated else min(node.cpus, copies_that_fit(model))


def places_here(compute: ComputeSection, node: str, count: int) -> list[Place]:
    """Place `count` processes on this machine, which is the node `node`.

    Raises:
        ConfigError: this machine has too few GPUs.
    """
    gpus = gpus_of_a_host(compute, torch.cuda.device_count(), count)
    return [Place(node, max(1, torch.get_num_threads() // count), gpus)] * count


def gpus_of_a_host(compute: ComputeSection, there: int, count: int) -> float:
    """Return the share of a GPU, or the number of whole GPUs, that a process gets.

    Raises:
        ConfigError: there are too few GPUs for so many processes.
    """
    if compute.device == "cpu" or not there:
        return 0.0
    each = compute.gpus_per_site
    if each is None:
        each = float(there // count) if there >= count else 1 / math.ceil(count / there)
    if count > hosts_that_fit(there, each):
        problem = f"is too much for {count} sites at once on {there} GPUs"
        fix = "Lower it, or lower compute.workers."
        raise ConfigError(problem, key="compute.gpus_per_site", value=each, fix=fix)
    return each
