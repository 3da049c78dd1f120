"""`[notify]`: tell people, by Apprise, that a job waits for a yes.

Privacy
    A notice holds public facts: the job, what the coordinator states about it, and where to decide.
        It is sent when a proposal is new on the list, which depends on no record. It is plain text,
        because it holds a coordinator's words.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fedpriv.config.site_file import SiteFile
from fedpriv.errors import ConfigError
from fedpriv_client.proposals import KeptProposal
from fedpriv_client.stated import stated

log = logging.getLogger(__name__)


def notifier(file: SiteFile) -> Callable[[KeptProposal], None]:
    """Return a function that sends a notice to every address of a site's file, without waiting.

    Raises:
        ConfigError: Apprise is not installed, or does not accept an address.
    """
    section = file.notify
    assert section is not None
    try:
        from apprise import Apprise
    except ImportError:
        fix = "Install it: pip install 'fedpriv[notify]'."
        raise ConfigError("needs the package apprise", key="notify.urls", fix=fix) from None
    logging.getLogger("apprise").disabled = True  # it would log what a URL holds
    senders = []
    for index, url in enumerate(section.urls):
        senders.append(Apprise())
        if not senders[-1].add(url.get_secret_value()):
            fix = "Write it as Apprise does, such as mailto://user:password@example.org."
            raise ConfigError(
                "is not an address that notices can be sent to", key=f"notify.urls.{index}", fix=fix
            )

    def notify(kept: KeptProposal) -> None:
        title = f"{file.site.name}: job {kept.job} waits for approval"
        told = [f"{name}: {text}" for name, text in stated(kept)]
        told.append(f"Who proposed it: the coordinator at {kept.server}")
        told.append(f"Decide: fedpriv-client approve {kept.job}, or {section.page}")
        for index, sender in enumerate(senders):
            asked = index, sender, title, "\n".join(told)
            try:
                threading.Thread(target=_send, args=asked, name="notice", daemon=True).start()
            except RuntimeError:  # no thread is left; the server hears the same (law 18)
                log.warning("A notice was not sent: no thread was left for notify.urls.%d.", index)

    return notify


def _send(index: int, sender: Any, title: str, body: str) -> None:
    sent = False
    with suppress(Exception):  # an error's text may quote the URL
        sent = sender.notify(title=title, body=body, body_format="text")
    if not sent:
        log.warning("A notice was not sent: notify.urls.%d did not take it.", index)
