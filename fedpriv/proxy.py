"""The proxy that the environment names for an address, and words for errors about it."""

from __future__ import annotations

import os
import re
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from fedpriv.errors import NetworkError

if TYPE_CHECKING:
    import httpx

HUB = "https://huggingface.co"


def proxy_of(url: str) -> tuple[str, str]:
    """Return the proxy of an address and the variable that names it; both empty without one.

    An address that NO_PROXY names has no proxy, whatever the other variables say.
    """
    parts, named = urlsplit(url), getproxies()
    host = parts.hostname or ""
    if proxy_bypass(host) or (parts.port and proxy_bypass(f"{host}:{parts.port}")):
        return "", ""
    for scheme in (parts.scheme, "all"):
        if proxy := named.get(scheme):
            return proxy if "://" in proxy else f"http://{proxy}", f"{scheme.upper()}_PROXY"
    return "", ""


def through(url: str) -> str:
    """Return a clause for errors that names the proxy in between, without its password."""
    proxy, variable = proxy_of(url)
    return proxy and f" through the proxy {re.sub('//[^/@]*@', '//***@', proxy)} of {variable}"


def through_hub() -> str:
    """Return that clause for the hub."""
    return through(os.environ.get("HF_ENDPOINT", HUB))


def transport_to(url: str, verify: ssl.SSLContext | bool = True) -> httpx.HTTPTransport:
    """Return a transport to an address, through its proxy if there is one.

    Raises:
        NetworkError: the proxy is of a kind that can't be used.
    """
    import httpx

    proxy, variable = proxy_of(url)
    try:
        return httpx.HTTPTransport(verify=verify, proxy=proxy or None)
    except (ImportError, ValueError, httpx.InvalidURL):
        socks = proxy.startswith("socks")
        raise NetworkError(
            f"{urlsplit(url).netloc}: can't be reached{through(url)}:"
            f" {'a SOCKS proxy is not known here' if socks else 'that is no proxy'}."
            f" Name one that begins with http:// in {variable}, or go without:"
            f" NO_PROXY={urlsplit(url).hostname}."
        ) from None
