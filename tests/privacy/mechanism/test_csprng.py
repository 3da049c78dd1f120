from __future__ import annotations

import copy
import os
import pickle
import threading

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedpriv.errors import AccountingError
from fedpriv.privacy.mechanism import csprng as csprng
from fedpriv.privacy.mechanism.csprng import InsecureRandomness, RandomSource, SystemCsprng


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every key that is drawn from the operating system, in order."""
    drawn: list[bytes] = []
    urandom = os.urandom

    def spy(size: int) -> bytes:
        drawn.append(urandom(size))
        return drawn[-1]

    monkeypatch.setattr(csprng.os, "urandom", spy)
    return drawn


def keystream(secret: bytes, size: int, purpose: bytes = b"") -> bytes:
    key = HKDF(SHA256(), 32, None, purpose).derive(secret)
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


def test_is_the_keystream_of_aes_256_in_counter_mode(keys: list[bytes]) -> None:
    source = SystemCsprng()
    sizes = [0, 1, 3, 8191, 8192, 8193, 20_000]
    words = np.concatenate([source.uint64(size) for size in sizes])
    assert [len(key) for key in keys] == [32]
    assert words.tobytes() == keystream(keys[0], 8 * sum(sizes))


def test_counter_mode_matches_the_standard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block is AES-256 of a zero block; under a zero key that is a known answer."""
    monkeypatch.setattr(csprng.HKDF, "derive", lambda self, secret: bytes(32))
    zero_block = bytes.fromhex("dc95c078a2408989ad48a21492842087")
    assert SystemCsprng().uint64(2).tobytes() == zero_block


def test_the_key_is_of_the_systems_bytes_and_the_purpose(
    keys: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time it is made anew, too."""
    monkeypatch.setattr(csprng, "_REKEY_BYTES", 64)
    words = SystemCsprng().bound(b"slot 3").uint64(16)
    expected = [keystream(key, 64, b"slot 3") for key in keys[1:]]
    assert words.tobytes() == b"".join(expected)


def test_where_the_systems_bytes_come_again_another_purpose_has_other_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a virtual machine that goes on from a snapshot."""
    monkeypatch.setattr(csprng.os, "urandom", lambda size: bytes(range(size)))
    one, again, other = (SystemCsprng().bound(about).uint64(1000) for about in (b"a", b"a", b"b"))
    assert np.array_equal(one, again)
    assert not np.intersect1d(one, other).size
    seeded = InsecureRandomness(7)
    assert np.array_equal(seeded.bound(b"a").uint64(9), InsecureRandomness(7).uint64(9))


def test_rekeys_after_its_share_of_bytes(
    keys: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert csprng._REKEY_BYTES == 2**30
    monkeypatch.setattr(csprng, "_REKEY_BYTES", 64)
    words = SystemCsprng().uint64(20)
    assert len(keys) == 3
    expected = b"".join(keystream(key, 64) for key in keys)
    assert words.tobytes() == expected[:160]


def test_each_instance_has_its_own_key() -> None:
    assert not np.intersect1d(SystemCsprng().uint64(1000), SystemCsprng().uint64(1000)).size


def test_rekeys_after_a_fork() -> None:
    source = SystemCsprng()
    source.uint64(5)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        os.write(write, source.uint64(100).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = np.frombuffer(os.read(read, 800), dtype=np.uint64)
    os.close(read)
    os.close(write)
    assert theirs.size == 100
    assert not np.intersect1d(theirs, source.uint64(100)).size


def test_threads_never_see_the_same_words() -> None:
    source = SystemCsprng()
    found: list[np.ndarray] = []
    threads = [
        threading.Thread(target=lambda: found.append(source.uint64(50_000))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.unique(np.concatenate(found)).size == 200_000


def test_the_key_is_nowhere_to_be_found(keys: list[bytes]) -> None:
    source = SystemCsprng()
    assert repr(source) == "SystemCsprng()"
    assert not hasattr(source, "__dict__")
    held = [getattr(source, name) for name in SystemCsprng.__slots__]
    assert all(key not in (value, repr(value)) for value in held for key in keys)


@pytest.mark.parametrize("save", [pickle.dumps, copy.copy, copy.deepcopy])
def test_refuses_to_be_saved_or_copied(save: object) -> None:
    assert callable(save)
    with pytest.raises(TypeError, match="is secret and must not leave"):
        save(SystemCsprng())


def test_words_are_uniform_in_every_bit() -> None:
    n = 100_000
    words = SystemCsprng().uint64(n)
    bits = np.unpackbits(words.view(np.uint8).reshape(n, 8), axis=1).sum(axis=0)
    assert np.abs(bits - n / 2).max() < 8 * np.sqrt(n) / 2


@pytest.mark.parametrize("source", [SystemCsprng(), InsecureRandomness(0)])
def test_gives_as_many_words_as_asked(source: RandomSource) -> None:
    for n in (0, 1, 1001):
        words = source.uint64(n)
        assert words.shape == (n,)
        assert words.dtype == np.uint64
    with pytest.raises(AccountingError, match="Expected n=-1"):
        source.uint64(-1)


def test_insecure_entropy_repeats_and_says_so() -> None:
    assert SystemCsprng.is_secure
    assert not InsecureRandomness.is_secure
    first, again = InsecureRandomness(7, "site", 3), InsecureRandomness(7, "site", 3)
    words = first.uint64(50)
    np.testing.assert_array_equal(words, np.concatenate([again.uint64(20), again.uint64(30)]))
    assert words[0] == 3827150422682344784  # so that paired experiments can be repeated
    assert repr(first) == "InsecureRandomness(7, 'site', 3)"


def test_insecure_streams_differ_by_seed_and_names() -> None:
    sources = [(0,), (1,), (0, "a"), (0, "ab"), (0, "a", "b"), (0, "a,b"), (0, 1), (0, "1")]
    firsts = {int(InsecureRandomness(*source).uint64(1)[0]) for source in sources}
    assert len(firsts) == len(sources)
