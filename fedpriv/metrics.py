"""Serve figures of a process to Prometheus, at a port of this machine; none of the machine's.

Privacy
    Only what a process gives here is served, all of it public. By default the library has figures
    of memory, processor time and open files, which depend on records: none of them is served. Nor
    is a time of day, so that nothing says when something was computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedpriv.errors import ConfigError

HOST = "127.0.0.1"
Samples = Iterable[tuple[tuple[str, ...], float]]  # values of the labels, and of the figure


@dataclass(frozen=True)
class Figure:
    """Hold a figure that may be served, with its meaning.

    Attributes:
        labels: the names of its labels.
        counts: whether it never falls while the process runs; then its name ends with ``_total``.
    """

    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    counts: bool = False

    def metric(self, samples: Samples) -> Any:
        """Return the figure with its values, in the library's form."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        family: Any = CounterMetricFamily if self.counts else GaugeMetricFamily
        made = family(self.name, self.meaning, labels=self.labels)
        for labels, value in samples:
            made.add_metric(list(labels), value)
        return made


Reading = Callable[[], Mapping[Figure, Samples]]


@contextlib.contextmanager
def metrics_service(port: int | None, key: str, look: Reading) -> Iterator[None]:
    """Serve figures to this machine while the context lasts; without a port, do nothing.

    Args:
        key: where the port is set, for the error message.
        look: returns the present figures; called from another thread.

    Raises:
        ConfigError: the port can't be bound.
    """
    if port is None:
        yield
        return
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, HOST, registry_of(look))
    except OSError as error:
        raise ConfigError(
            f"can't listen there: {error.strerror}", key=key, value=port, fix="Name another port."
        ) from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def registry_of(look: Reading) -> Any:
    """Return a registry of the library with these figures and no others."""
    from prometheus_client import CollectorRegistry

    class Collector:
        def collect(self) -> list[Any]:
            return [figure.metric(samples) for figure, samples in look().items()]

    registry = CollectorRegistry(auto_describe=False)  # else it would call `look` at once
    registry.register(Collector())
    return registry
