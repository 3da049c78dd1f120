"""DER as a tree of tags, so that a changed field is the only thing that is wrong with it."""

from __future__ import annotations

import base64
import copy
import re
from random import Random
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from tests.fuzz.fuzz_mutate import mutate_bytes

_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----\s*([A-Za-z0-9+/=\s]*)-----END")
_ECDSA_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")
_TAGS = (0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x0C, 0x13, 0x16, 0x17, 0x18, 0x1E, 0x30, 0x31, 0x81)
Node = list[Any]  # tag, and content or nodes


def read_pem(pem: bytes) -> tuple[bytes, bytes]:
    """Label and DER.

    Raises:
        ValueError: it is no PEM.
    """
    found = _PEM.search(pem)
    if found is None:
        raise ValueError("no PEM")
    return found[1], base64.b64decode(found[2])


def write_pem(label: bytes, der: bytes) -> bytes:
    lines = base64.encodebytes(der)
    return b"-----BEGIN " + label + b"-----\n" + lines + b"-----END " + label + b"-----\n"


def read(der: bytes) -> list[Node]:
    """The nodes of some bytes.

    Raises:
        ValueError: they are none.
    """
    nodes: list[Node] = []
    while der:
        if len(der) < 2:
            raise ValueError("cut")
        tag, length, start = der[0], der[1], 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(der[2:start])
        content, der = der[start : start + length], der[start + length :]
        if len(content) != length:
            raise ValueError("cut")
        nodes.append([tag, read(content) if tag & 0x20 else content])
    return nodes


def write(nodes: list[Node]) -> bytes:
    made = b""
    for tag, content in nodes:
        body = write(content) if isinstance(content, list) else content
        size = len(body).to_bytes((len(body).bit_length() + 7) // 8) or b"\x00"
        length = size if len(body) < 128 else bytes([0x80 | len(size)]) + size
        made += bytes([tag]) + length + body
    return made


def mutate(der: bytes, random: Random) -> bytes:
    """Another tag, another value, a field less or twice."""
    nodes = read(der)
    for _ in range(random.choice((1, 1, 2))):
        lists = list(_lists(nodes))
        chosen = random.choice([one for one in lists if one])
        at = random.randrange(len(chosen))
        node = chosen[at]
        match random.randrange(6):
            case 0:
                node[0] = random.choice(_TAGS)
            case 1 | 2 if isinstance(node[1], bytes):
                node[1] = mutate_bytes(node[1], random)
            case 3 if isinstance(node[1], bytes):
                node[1] = random.choice(
                    (b"", b"\x00", b"\x01", b"\xff", bytes(40), b"2" * 13 + b"Z")
                )
            case 4:
                del chosen[at]
            case _:
                other = random.choice(random.choice(lists) or [node])
                chosen.insert(at, copy.deepcopy(other))
        if not nodes:
            break
    return write(nodes)


def _lists(nodes: list[Node]) -> Any:
    yield nodes
    for _, content in nodes:
        if isinstance(content, list):
            yield from _lists(content)


def signed(content: bytes, key: ec.EllipticCurvePrivateKey) -> bytes:
    """A certificate or request of this content, which the key vouches for."""
    signature = key.sign(content, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))
    bits = b"\x00" + signature
    return write([[0x30, [*read(content), *read(_ECDSA_SHA256), [0x03, bits]]]])


def mutate_pem(pem: bytes, random: Random, key: ec.EllipticCurvePrivateKey) -> bytes:
    """A PEM text: a byte of it, a field of its DER, or one that is signed again by `key`."""
    try:
        label, der = read_pem(pem)
        level = random.random()
        if level < 0.4:
            (outer,) = read(der)
            return write_pem(label, signed(mutate(write(outer[1][:1]), random), key))
        if level < 0.8:
            return write_pem(label, mutate(der, random))
    except (ValueError, IndexError, TypeError):
        pass
    return mutate_bytes(pem, random)
