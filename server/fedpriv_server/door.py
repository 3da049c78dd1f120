"""Admit the sites of `sites.json`, which is read again and again while a server listens."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fedpriv.errors import FedprivError
from fedpriv_server.broker import MessageBroker
from fedpriv_server.site_keys import SiteKeys

log = logging.getLogger(__name__)
REVIEW = 2.0  # seconds between two looks at `sites.json`
TELL = 10.0  # seconds between two calls of the listeners


@dataclass(eq=False)
class Door:
    """Lets in the sites that `sites.json` admits, and nobody else, as long as it admits them."""

    broker: MessageBroker
    site_keys: SiteKeys
    wanted: set[str]

    def __post_init__(self) -> None:
        self._let_in: dict[str, bytes] = {}
        self.listeners: list[Callable[[], None]] = []  # called every `TELL` seconds

    def named(self, site: str) -> str:
        """Return a site's name and, if the reason is known, why the site can't come in."""
        known = self.site_keys.sites.get(site)
        status = "not provisioned" if known is None else known.status()
        why = {
            "active": "",
            "waiting": " (its request is not approved)",
            "expired": f" (its certificate expired: fedpriv provision FILE --renew {site})",
        }
        return site + why.get(status, f" ({status})")

    def seen(self, sites: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return for each site whether it is connected, and whether it is admitted."""
        nodes = {name: node for node, name in self.broker.names.items()}
        return {
            name: {
                "there": name in nodes and self.broker.presence.is_there(nodes[name]),
                "admitted": name in nodes,
            }
            for name in sites
        }

    def review(self) -> None:
        """Let sites in and turn sites out, as `sites.json` now says."""
        try:
            if self.site_keys.reload_if_changed():
                log.info("%s: read again.", self.site_keys.path)
        except FedprivError as error:
            log.error("%s No new site is admitted.", error)
        admitted = {
            site.name: site.public_key
            for site in self.site_keys.admissible()
            if site.name in self.wanted and site.public_key is not None
        }
        for name, key in list(self._let_in.items()):
            if admitted.get(name) != key:
                self.broker.dismiss(name)
                del self._let_in[name]
                log.warning(
                    "Site %s is no longer admitted: its key was revoked or replaced, or its"
                    " certificate expired.",
                    name,
                )
        for name, key in admitted.items():
            if name not in self._let_in:
                self.broker.admit(name, key)
                self._let_in[name] = key

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Review the sites every `REVIEW` seconds while the context lasts."""
        stop = threading.Event()

        def watch() -> None:
            told = 0.0
            while not stop.wait(REVIEW):
                try:
                    self.review()
                    if time.monotonic() - told >= TELL:
                        told = time.monotonic()
                        for tell in [*self.listeners]:
                            tell()
                except Exception as error:  # else no site would be turned out any more
                    log.exception("The keys of sites were not reviewed: %s", type(error).__name__)

        thread = threading.Thread(target=watch, name="site-keys", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
