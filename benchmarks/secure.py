"""Measure what a secure sum adds to a round: seconds, bytes and memory.

    python benchmarks/secure.py --json secure.json

**masks**: what one of n sites does when a set has come. It makes its own entry, checks the set, and
masks a share of P values. Beside it, in turn, is the floor: the bare keystream of the n − 1
streams, and as many bytes copied. Memory is the peak of what is allocated besides the share.

**round**: a round over the network (`benchmarks/network.py`: processes, TLS, sites that answer at
once) with a secure sum, and a plain one beside it, in turn.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import network
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from interleaved import interleaved, median, ratio
from network import SECURE
from rich.console import Console
from rich.table import Table

from fedpriv.secure_sum.masks import BLOCK, DTYPES, Masked, mask
from fedpriv.secure_sum.members import Bits, MemberSet
from fedpriv.secure_sum.ready import Ephemeral, SlotId, sign_member
from fedpriv.secure_sum.roster import Roster, RosterEntry

SITES = (4, 8, 50)
BITS: Bits = 16
ROUNDS = 6  # of a federation; the first one is not counted
SLOT = SlotId(proposal="sha256:" + "a" * 64, slot=0, request="sha256:" + "b" * 64)


def mask_cases(size: int, sites: int) -> dict[str, Callable[[], Any]]:
    """Return as cases one site's work on `size` values in a set of `sites`, and its floor."""
    names = [f"site-{index:03d}" for index in range(sites)]
    keys = {name: Ed25519PrivateKey.generate() for name in names}
    roster = Roster.of(
        RosterEntry(name=name, public_key=key.public_key().public_bytes_raw().hex())
        for name, key in keys.items()
    )
    others = [sign_member(keys[name], SLOT, name, Ephemeral()) for name in names[1:]]
    share = np.random.default_rng(0).integers(-2000, 2000, size)
    itemsize = DTYPES[BITS].itemsize
    zeros, buffer = bytes(BLOCK * itemsize), bytearray(BLOCK * itemsize + 16)
    there, here = np.ones(size, DTYPES[BITS]), np.ones(size, DTYPES[BITS])

    def masks() -> Masked:
        ephemeral = Ephemeral()  # good for one share, so it is part of the work
        own = sign_member(keys[names[0]], SLOT, names[0], ephemeral)
        members = MemberSet(slot_id=SLOT, members=(own, *others), bits=BITS)
        members.check(roster, own)
        return mask(share, names[0], ephemeral, members)

    def keystream() -> None:
        for _ in others:
            stream = Cipher(algorithms.AES(bytes(32)), modes.CTR(bytes(16))).encryptor()
            for start in range(0, size, BLOCK):
                count = min(BLOCK, size - start) * itemsize
                stream.update_into(memoryview(zeros)[:count], buffer)

    def memcpy() -> None:
        for _ in others:
            np.copyto(there, here)

    return {"masks": masks, "keystream": keystream, "memcpy": memcpy}


def measure_masks(size: int, sites: int, repeats: int) -> dict[str, Any]:
    """Measure each case's median seconds, the ratio of masks to keystream, bytes, and memory."""
    cases = mask_cases(size, sites)
    turns = interleaved(cases, repeats)
    tracemalloc.start()
    sent = cases["masks"]().nbytes
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "values": size,
        "sites": sites,
        "bits": BITS,
        **{name: median(turns, name) for name in cases},
        "ratio": ratio(turns, "masks", "keystream"),
        "bytes": sent,
        "peak_bytes": peak,
    }


def show_masks(rows: list[dict[str, Any]]) -> None:
    table = Table("values", "sites", "masks s", "keystream s", "memcpy s", "ratio", "MB", "peak MB")
    for row in rows:
        table.add_row(
            f"{row['values']:,}",
            str(row["sites"]),
            *(f"{row[name]:.3f}" for name in ("masks", "keystream", "memcpy")),
            f"{row['ratio']:.2f}",
            f"{row['bytes'] / 1e6:.1f}",
            f"{row['peak_bytes'] / 1e6:.1f}",
        )
    Console().print(table)


def measure_round(sites: int, size: int, repeats: int) -> dict[str, Any]:
    """Measure median seconds a round for each kind, over several federations of each, in turn."""
    seconds: dict[str, list[float]] = {"float32": [], SECURE: []}
    for _ in range(repeats):
        for wire, found in seconds.items():
            found.append(network.measure(sites, size, wire, ROUNDS)["seconds"])
    plain, secure = (statistics.median(seconds[wire]) for wire in ("float32", SECURE))
    return {
        "sites": sites,
        "values": size,
        "plain": plain,
        "secure": secure,
        "more": secure - plain,
        "bytes_up": size * network.BYTES[SECURE],
        "plain_bytes_up": size * network.BYTES["float32"],
    }


def show_rounds(rows: list[dict[str, Any]]) -> None:
    table = Table("values", "sites", "plain s", "secure s", "more s", "MB up", "plain MB up")
    for row in rows:
        table.add_row(
            f"{row['values']:,}",
            str(row["sites"]),
            *(f"{row[name]:.3f}" for name in ("plain", "secure", "more")),
            *(f"{row[name] / 1e6:.2f}" for name in ("bytes_up", "plain_bytes_up")),
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["masks", "round"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    size, repeats = (10**6, 3) if arguments.quick else (25 * 10**6, arguments.repeats)
    found: dict[str, Any] = {}
    if arguments.only != "round":
        found["masks"] = [measure_masks(size, sites, repeats) for sites in SITES]
        show_masks(found["masks"])
    if arguments.only != "masks":
        logging.disable()
        cases = [(4, network.TINY), (8, network.TINY)]
        cases += [] if arguments.quick else [(4, network.LARGE), (8, network.LARGE)]
        turns = 1 if arguments.quick else 3
        found["rounds"] = [measure_round(*case, turns) for case in cases]
        show_rounds(found["rounds"])
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
