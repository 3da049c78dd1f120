"""Put instructions to an OpenAI-compatible service, each once, because answers are kept.

What is sent is made of public settings and of records of the set. These are public or were made of
released values, so no record of a site is sent. Where even that must stay in the house, the
coordinator runs the service.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from fedpriv.errors import ConfigError, RoundError
from fedpriv.files import canonical_json, write_json
from fedpriv.proxy import through, transport_to
from fedpriv.synthetic.config import GeneratorSection
from fedpriv.synthetic.instructed import Ask

AT_ONCE = 8
ATTEMPTS = 5
PAUSE = 1.0  # seconds before the second attempt; doubled each time
_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


def endpoint(settings: GeneratorSection, *, longest: int, cache: Path, pause: float = PAUSE) -> Ask:
    """Return a function that puts instructions to such a service.

    Args:
        longest: tokens of a record. An answer needs no more.
        cache: folder of answers by what was asked. So a resumed job asks nothing twice.

    Raises:
        ConfigError: the address can't be used.
    """
    url = f"{(settings.url or '').rstrip('/')}/chat/completions"
    try:
        httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(
            f"is no address ({error})", key="synthetic.generator.url", value=settings.url
        ) from None

    def ask(instructions: Sequence[str], seed: str) -> list[str]:
        key = os.environ.get(settings.key_env)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4]) >> 1
        cache.mkdir(parents=True, exist_ok=True)
        bodies = [
            {
                "model": settings.model,
                "messages": [{"role": "user", "content": instruction}],
                "temperature": settings.temperature,
                "max_tokens": longest,
                "seed": number + index,  # the same instruction twice is asked twice
            }
            for index, instruction in enumerate(instructions)
        ]
        with (
            httpx.Client(
                transport=transport_to(url), timeout=settings.timeout, headers=headers
            ) as client,
            ThreadPoolExecutor(AT_ONCE) as pool,
        ):
            return list(pool.map(lambda body: _answer(client, url, body, cache, pause), bodies))

    return ask


def _answer(client: httpx.Client, url: str, body: dict[str, Any], cache: Path, pause: float) -> str:
    """Return the text of an answer, or "" where it has none.

    Raises:
        RoundError: the service does not answer, or refuses.
    """
    path = cache / f"{hashlib.sha256(canonical_json([url, body])).hexdigest()}.json"
    with suppress(OSError, ValueError, RecursionError):  # if none is kept, the service is asked
        return _text(json.loads(path.read_text(encoding="utf-8")))
    problem = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(pause * 2 ** (attempt - 1))
        try:
            response = client.post(url, json=body)
            problem = f"HTTP {response.status_code}"
            if response.status_code in _AGAIN:
                continue
            if response.is_error:
                raise RoundError(f"{url} refuses the request ({problem}); see [synthetic].")
            found = response.json()
        except httpx.HTTPError as error:
            problem = f"{type(error).__name__}{through(url)}"
        except (ValueError, RecursionError):
            problem = "no JSON"
        else:
            write_json(path, found)
            return _text(found)
    raise RoundError(f"{url} gave no answer in {ATTEMPTS} attempts ({problem}).")


def _text(found: Any) -> str:
    try:
        text = found["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        return ""
    # JSON can hold half of a character. Other text can't.
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else ""
