"""Provide secret random bits.

Sampling and noise take a `RandomSource`, so that the one generator which must be unpredictable is
chosen in one place, and a test can put a repeatable one there.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from typing import Protocol

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedpriv.errors import AccountingError
from fedpriv.secret import Secret

UInt64 = npt.NDArray[np.uint64]

_REKEY_BYTES = 2**30
_BLOCK = bytes(2**16)  # zeros to encrypt at a time
_PAD = 16  # update_into may ask for a cipher block more than it writes


class RandomSource(Protocol):
    """A source of uniform 64-bit words; `is_secure` tells whether privacy may rest on it."""

    @property
    def is_secure(self) -> bool:
        """True only where nobody outside the process can predict the words."""

    def uint64(self, n: int) -> UInt64:
        """Return the next `n` words, (n,)."""

    def bound(self, purpose: bytes) -> RandomSource:
        """Return a source whose words are for one computation, named by public bytes."""


class SystemCsprng(Secret):
    """AES-256 in counter mode, keyed by the operating system.

    Each instance has its own key: of 32 bytes from `os.urandom` and of its purpose, by HKDF. It
    gets a fresh one after every 2^30 bytes (2^26 blocks, so that the absence of repeated blocks
    tells nothing) and after a fork. The key is handed to the cipher and dropped; nothing here can
    be seeded, saved or sent. Safe to share between threads.

    Args:
        purpose: what the words are for, public. The system may say the same bytes twice, as in a
            virtual machine that goes on from a snapshot. Even then, another purpose gives other
            words.

    Source:
        NIST SP 800-38A (CTR) and 800-90A, section 10.2 (its reseeding, simplified); RFC 5869
        (HKDF).

    Privacy:
        The words are secret and must not leave. What is made of them is private to the extent
        that AES-256 and HMAC-SHA-256 are pseudorandom functions: a computational assumption of
        every claim.
    """

    __slots__ = ("_left", "_lock", "_pid", "_purpose", "_stream")

    is_secure = True

    def __init__(self, purpose: bytes = b"") -> None:
        self._purpose = purpose
        self._rekey()

    def bound(self, purpose: bytes) -> SystemCsprng:
        """Return a source with a key of its own, for this purpose."""
        return SystemCsprng(purpose)

    def uint64(self, n: int) -> UInt64:
        """Return the next `n` words of the keystream, (n,).

        Raises:
            AccountingError: when `n` is negative.

        Privacy:
            Secret; for noise and sampling at the site only.
        """
        _check_size(n)
        if os.getpid() != self._pid:
            self._rekey()  # with a new lock: the parent's may have been held when it forked
        out = bytearray(8 * n + _PAD)
        view = memoryview(out)
        with self._lock:
            start = 0
            while start < 8 * n:
                if not self._left:
                    self._new_stream()
                size = min(len(_BLOCK), 8 * n - start, self._left)
                self._stream.update_into(
                    memoryview(_BLOCK)[:size], view[start : start + size + _PAD]
                )
                self._left -= size
                start += size
        return np.frombuffer(out, dtype=np.uint64, count=n)

    def _rekey(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._new_stream()

    def _new_stream(self) -> None:
        key = HKDF(SHA256(), 32, salt=None, info=self._purpose).derive(os.urandom(32))
        self._stream: CipherContext = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._left = _REKEY_BYTES


class InsecureRandomness:
    """A repeatable stream, ONLY for tests and for paired experiments on public data.

    Philox keyed by SHA-256 of the seed and the names. Whoever knows the seed can subtract the
    noise and name the sample, so nothing made with it is private, and `is_secure` is False.

    Args:
        seed: any integer.
        names: what the stream is for, such as a site and a round; other names give another stream.

    Privacy:
        None. What is made of it needs data marked as public and the stamp NOT PRIVATE.
    """

    is_secure = False

    def __init__(self, seed: int, *names: str | int) -> None:
        digest = hashlib.sha256(json.dumps([seed, *names]).encode()).digest()
        self._bits = np.random.Philox(key=int.from_bytes(digest[:16], "little"))
        self._label = ", ".join(map(repr, (seed, *names)))

    def uint64(self, n: int) -> UInt64:
        """Return the next `n` words of the stream, (n,).

        Raises:
            AccountingError: when `n` is negative.

        Privacy:
            None: see the class.
        """
        _check_size(n)
        words: UInt64 = self._bits.random_raw(n)
        return words

    def bound(self, purpose: bytes) -> InsecureRandomness:
        """Return the stream itself: the same seed gives the same words, whatever they are for."""
        return self

    def __repr__(self) -> str:
        return f"InsecureRandomness({self._label})"


def require_secret(csprng: RandomSource, private: bool) -> None:
    """Refuse words that anyone could repeat, where what is made of them is to be private.

    Raises:
        AccountingError: privacy may not rest on them.
    """
    if private and not csprng.is_secure:
        raise AccountingError("A private ledger pays for secret randomness only.")


def _check_size(n: int) -> None:
    if n < 0:
        raise AccountingError(f"Expected n={n!r} >= 0.")
