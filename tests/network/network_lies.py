"""Faults of secure sums: deaths between two messages, and coordinators that lie to their sites."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.network.network_deaths import ROUND, around, die

Change = Callable[[Any, int], Any]


def _told(marker: Path) -> None:
    """A site that is ready, and dies when it is told whose sum it is."""
    from fedpriv_client.shared_slots import SharedSlots

    around(SharedSlots, "share", lambda _, job, asked: asked.slot == ROUND and die(marker), None)


def _amid_share(marker: Path) -> None:
    """It has paid, and dies before it has computed."""
    from fedpriv_client import shared_slots

    def dies(execution: Any, method: Any, worker: Any, people: Any, *others: Any) -> None:
        if others[1].slot == ROUND:
            die(marker)

    around(shared_slots, "shared_step", dies, None)


def _set_kept(marker: Path) -> None:
    """A server that dies when it has written down a set, and told nobody."""
    from fedpriv_server.checkpoint import SumFile

    def dies(_: object, state: Any) -> None:
        if state.request is not None and state.slot == ROUND:
            die(marker)

    around(SumFile, "write", None, dies)


def _set_sent(marker: Path) -> None:
    """It dies while it waits for shares."""
    from fedpriv_server.grid import NetworkGrid

    def dies(_: object, requests: Any) -> None:
        if any((one.kind, one.group) == ("train.set", str(ROUND + 1)) for one in requests.values()):
            die(marker)

    around(NetworkGrid, "_taken", dies, None)


def _lying_sets(change: Change) -> Callable[[Path], None]:
    """A coordinator that tells its sites of other sets than it should, and believes anything.

    `change` is given a set, and how many it told before.
    """

    def arm(marker: Path) -> None:
        from fedpriv_strategies import secure_rounds as module

        real, told = module.message, [0]

        def lie(body: Any, *others: Any, **options: Any) -> Any:
            body = change(body, told[0])
            told[0] += 1
            marker.touch()
            return real(body, *others, **options)

        module.message = lie
        module.check_member = lambda *_: None

    return arm


def _with_members(body: Any, members: Any) -> Any:
    return body.model_copy(update={"members": tuple(members)})


def _substituted(body: Any, told: int) -> Any:
    """The coordinator's own key in place of a site's."""
    from fedpriv.secure_sum.ready import Ephemeral

    first, *others = body.members
    swapped = first.model_copy(update={"key": Ephemeral().public})
    return _with_members(body, [swapped, *others])


def _invented(body: Any, told: int) -> Any:
    """A site that nobody knows, with a key of the coordinator's."""
    *others, last = body.members
    return _with_members(body, [*others, last.model_copy(update={"name": "site-9"})])


def _without_first(body: Any, told: int) -> Any:
    return _with_members(body, body.members[1:])


def _another_later(body: Any, told: int) -> Any:
    """Those that were asked once are asked again, for the sum of fewer."""
    return body if told < 3 else _with_members(body, body.members[:2])


def _two_sets(marker: Path) -> None:
    from fedpriv_strategies.secure_rounds import SecureRounds

    _lying_sets(_another_later)(marker)
    take, taken = SecureRounds._take_share, [0]

    def loses(self: Any, *arguments: Any) -> None:
        taken[0] += 1
        if taken[0] > 3:  # the first three shares are thrown away
            take(self, *arguments)

    SecureRounds._take_share = loses


def _two_vectors(marker: Path) -> None:
    """One site takes its gradient elsewhere than the others."""
    from fedpriv_strategies import rounds as module

    _lying_sets(lambda body, told: body)(marker)
    real, asked = module.message, [0]

    def lie(
        body: Any, node: int, kind: str, group: str, vector: Any = None, *others: Any, **more: Any
    ) -> Any:
        if vector is not None:
            asked[0] += 1
            if asked[0] == 3:
                vector = _moved(vector)
        return real(body, node, kind, group, vector, *others, **more)

    module.message = lie


def _moved(vector: Any) -> Any:
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({name: Array(array.numpy() + 1) for name, array in vector.items()})


def _lying_proposal(**changes: Any) -> Callable[[Path], None]:
    """A job that shares its noise otherwise than its file says."""

    def arm(marker: Path) -> None:
        from fedpriv_strategies import strategy

        real = strategy.propose

        def lie(*arguments: Any, **options: Any) -> Any:
            made = real(*arguments, **options)
            return made.model_copy(update={"shared": made.shared.model_copy(update=changes)})

        strategy.propose = lie

    return arm


SECURE_SUM: dict[str, Callable[[Path], None]] = {
    "told": _told,
    "amid-share": _amid_share,
    "server-set-kept": _set_kept,
    "server-set-sent": _set_sent,
    "lie-substituted": _lying_sets(_substituted),
    "lie-invented": _lying_sets(_invented),
    "lie-omitted": _lying_sets(_without_first),
    "lie-two-sets": _two_sets,
    "lie-two-vectors": _two_vectors,
    "lie-roster": _lying_proposal(roster="sha256:" + "0" * 64),
    "lie-count": _lying_proposal(sites=9),
    "lie-colluding": _lying_proposal(max_colluding=0),
}
