"""Faults that a test plants into a real process before its command starts.

Each strikes once: it leaves a marker first, and a process that finds the marker is spared.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.network.network_deaths import ROUND
from tests.network.network_deaths import around as _around
from tests.network.network_deaths import die as _die
from tests.network.network_deaths import strikes as _strikes
from tests.network.network_lies import SECURE_SUM
from tests.waiting import CEILING, wait_until


def plant(name: str, marker: Path) -> None:
    """Arm the fault of that name."""
    _FAULTS[name](marker)


def _before_reserve(marker: Path) -> None:
    from fedpriv.privacy.ledger.ledger import Ledger

    _around(Ledger, "reserve_all", lambda *asked: ROUND in asked[2] and _die(marker), None)


def _after_reserve(marker: Path) -> None:
    from fedpriv.privacy.ledger.ledger import Ledger

    _around(Ledger, "reserve_all", None, lambda *asked: ROUND in asked[2] and _die(marker))


def _after_release(marker: Path) -> None:
    from fedpriv.privacy.ledger.ledger import Ledger

    _around(
        Ledger,
        "release_all",
        None,
        lambda _, paid, *others: ROUND in [p.slot for p in paid] and _die(marker),
    )


def _uploading(marker: Path) -> None:
    from flwr.supernode.fleet_http_client import FleetHttpClient

    from fedpriv_client import flower

    flower.WHOLE = 0  # a reply of the tiny model goes object by object
    pushed = [0]

    def count(*_: object) -> None:
        pushed[0] += 1
        if pushed[0] == 12:  # in the middle of a reply of the second round
            _die(marker)

    _around(FleetHttpClient, "PushObject", count, None)


def _lost_reply(marker: Path) -> None:
    """The reply is computed and never sent: the connection breaks under it."""
    import httpx
    from flwr.supernode.fleet_http_client import FleetHttpClient

    def lose(_: object, request: Any) -> None:
        message = request.messages_list[0]
        if message.metadata.message_type == "train" and _strikes(marker):
            raise httpx.ReadError("cut")

    _around(FleetHttpClient, "PushMessages", lose, None)


def _lost_request(marker: Path) -> None:
    """The site takes a request out of its mailbox, and the answer gets lost on the way."""
    import httpx
    from flwr.supernode.fleet_http_client import FleetHttpClient

    real = FleetHttpClient.PullMessages

    def lossy(self: Any, request: Any) -> Any:
        answer = real(self, request)
        found = answer.messages_list
        if found and found[0].metadata.message_type == "train" and _strikes(marker):
            raise httpx.ReadError("cut")
        return answer

    FleetHttpClient.PullMessages = lossy


def _twice(marker: Path) -> None:
    """Every message is sent twice."""
    from fedpriv_server.grid import NetworkGrid

    real = NetworkGrid._post

    def post(self: Any, request: Any) -> None:
        marker.touch()
        real(self, request)
        real(self, request)

    NetworkGrid._post = post


def _reordered(marker: Path) -> None:
    """Before and after each request the one of the round before is sent once more."""
    from fedpriv_server.grid import NetworkGrid

    real, before = NetworkGrid._post, {}

    def post(self: Any, request: Any) -> None:
        def old() -> None:
            if request.node in before and before[request.node].key != request.key:
                earlier = before[request.node]
                self.broker.post(
                    earlier.upload, earlier.content, earlier.kind, earlier.group, earlier.ttl
                )
                marker.touch()

        old()
        real(self, request)
        if request.kind == "train":
            old()
            before[request.node] = request

    NetworkGrid._post = post


def _replayed(marker: Path) -> None:
    """Whoever listens in sends every request of the site once more, byte for byte."""
    import threading
    from contextlib import suppress

    import httpx

    from fedpriv_client.connection import ServerConnection

    real = ServerConnection.__init__

    def made(self: Any, address: str, tls: Any, key: Any, **more: Any) -> None:
        real(self, address, tls, key, **more)

        def send(request: Any, body: bytes) -> None:
            with suppress(httpx.HTTPError), httpx.Client(verify=tls) as other:
                other.post(request.url, headers=request.headers, content=body, timeout=CEILING)
                marker.touch()

        def again(response: Any) -> None:
            """In the background, for a question for messages is held open."""
            body = response.request.content
            threading.Thread(target=send, args=(response.request, body), daemon=True).start()

        self._client._client.event_hooks["response"] = [again]

    ServerConnection.__init__ = made


def _held(marker: Path) -> None:
    """The site stands still before it pays for one slot, until the test lets it go."""
    from fedpriv.privacy.ledger.ledger import Ledger

    def stand_still(_: object, job: str, slots: range, *others: object) -> None:
        if ROUND in slots and _strikes(marker):
            wait_until(marker.with_suffix(".go").exists)

    _around(Ledger, "reserve_all", stand_still, None)


def _numpy(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def changed(arrays: Any) -> Any:
        from flwr.app import Array, ArrayRecord

        name = sorted(arrays)[0]
        return ArrayRecord({**arrays, name: Array(change(arrays[name].numpy().copy()))})

    return changed


def _same(value: Any) -> Any:
    return value


def _with_nan(values: Any) -> Any:
    values[-1] = float("nan")
    return values


def _truncated_bytes(arrays: Any) -> Any:
    from flwr.app import Array, ArrayRecord

    name = sorted(arrays)[0]
    whole = arrays[name]
    return ArrayRecord(
        {**arrays, name: Array(whole.dtype, whole.shape, whole.stype, whole.data[:-8])}
    )


UNUSABLE: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [  # of a reply: body, arrays
    (_same, _numpy(_with_nan)),
    (_same, _numpy(lambda values: values[:-1])),
    (_same, _numpy(lambda values: values.astype("float64"))),
    (_same, _numpy(lambda values: values.repeat(3))),
    (_same, _truncated_bytes),
    (lambda body: body.model_copy(update={"slot": body.slot - 1}), _same),
]


def _unusable(marker: Path) -> None:
    """From the second slot on, the site's replies can't be used, each for another reason."""
    import fedpriv_client.app as app

    real = app._step

    def step(site: Any, permit: Any, message: Any) -> Any:
        body, arrays = real(site, permit, message)
        if ROUND <= body.slot < ROUND + len(UNUSABLE):
            of_body, of_arrays = UNUSABLE[body.slot - ROUND]
            body, arrays = of_body(body), of_arrays(arrays)
        return body, arrays

    app._step = step


def _full_disk(owner: str, name: str, strikes: Callable[..., bool]) -> Callable[[Path], None]:
    """No file can grow while a method works, until the marker is there."""

    def arm(marker: Path) -> None:
        import importlib
        import resource

        module, _, attribute = owner.rpartition(".")
        holder = getattr(importlib.import_module(module), attribute)
        real = getattr(holder, name)

        def on_a_full_disk(*args: Any, **options: Any) -> Any:
            if marker.exists() or not strikes(*args):
                return real(*args, **options)
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
            try:
                return real(*args, **options)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        setattr(holder, name, on_a_full_disk)

    return arm


def _clock(seconds: float) -> Callable[[Path], None]:
    def arm(marker: Path) -> None:
        from datetime import timedelta

        from flwr.supernode import node_auth_http_interceptor as auth

        real = auth.now
        auth.now = lambda: real() + timedelta(seconds=seconds)
        import fedpriv_client.connection as connection

        class Shifted(connection.datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return super().now(tz) + timedelta(seconds=seconds)

        connection.datetime = Shifted

    return arm


def _server_waiting(marker: Path) -> None:
    from fedpriv_server.grid import NetworkGrid

    def die(self: Any, requests: Any) -> None:
        if any(request.group == str(ROUND + 1) for request in requests.values()):
            _die(marker)

    _around(NetworkGrid, "_taken", die, None)


def _patient(marker: Path) -> None:
    """No fault: the server waits for the terms of a site that comes late, however slow it is."""
    from fedpriv_strategies import rounds

    rounds.LATE = CEILING


def _server_aggregating(marker: Path) -> None:
    from fedpriv_strategies.aggregate import WeightedMean

    calls = [0]

    def die(*_: object) -> None:
        calls[0] += 1
        if calls[0] == 4:  # two sites a round: the last of the second round
            _die(marker)

    _around(WeightedMean, "add", None, die)


def _server_checkpointing(marker: Path) -> None:
    """The metrics of a round are written, its checkpoint is not."""
    from fedpriv_server.checkpoint import Checkpoint

    _around(Checkpoint, "write", lambda self, path: self.round == ROUND + 1 and _die(marker), None)


_FAULTS: dict[str, Callable[[Path], None]] = {
    **SECURE_SUM,
    "before-reserve": _before_reserve,
    "after-reserve": _after_reserve,
    "after-release": _after_release,
    "uploading": _uploading,
    "lost-reply": _lost_reply,
    "lost-request": _lost_request,
    "twice": _twice,
    "reordered": _reordered,
    "replayed": _replayed,
    "held": _held,
    "unusable": _unusable,
    "full-disk": _full_disk(
        "fedpriv.privacy.ledger.ledger.Ledger", "reserve_all", lambda *asked: ROUND in asked[2]
    ),
    "clock-ahead": _clock(60.0),
    "clock-behind": _clock(-3600.0),
    "patient": _patient,
    "server-waiting": _server_waiting,
    "server-aggregating": _server_aggregating,
    "server-checkpointing": _server_checkpointing,
    "server-full-disk": _full_disk(
        "fedpriv_server.run_directory.RunDirectory",
        "save",
        lambda _, metrics, checkpoint: metrics["round"] == ROUND + 1,
    ),
    "server-full-disk-later": _full_disk(
        "fedpriv_server.checkpoint.Checkpoint", "write", lambda self, path: self.round == ROUND + 1
    ),
}
