"""How often the server looks for garbage in cycles."""

from __future__ import annotations

import gc

YOUNG = 50_000  # objects more than there were, between two looks at the newest of them


def look_seldom() -> None:
    """Look for garbage among what comes from now on, and not for every few objects.

    What is imported and loaded by now is none. A web request makes a few hundred objects, so that
    by Python's own numbers a server of a thousand sites spends a third of its time on looking at
    the requests that they hold open. Those that carry objects are collected by their bytes
    (`fedpriv_server.bounds`).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 10, 10)
