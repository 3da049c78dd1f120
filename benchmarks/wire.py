"""Measure what an update costs on its way: bytes, time, and what rounding does to the loss.

    python benchmarks/wire.py --json wire.json

It encodes and decodes a noisy vector in every format, and tries compression on what is sent. It
also runs the embedded federation in every format with the same samples and the same noise.
"""

from __future__ import annotations

import argparse
import json
import lzma
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
from flwr.app import Array

from fedpriv.config.load import HOSPITALS, load_job
from fedpriv.names import Wire
from fedpriv.wire import BLOCK, Blocks, encode
from fedpriv_simulation.simulate import simulate

WIRES: tuple[Wire, ...] = get_args(Wire)
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "zlib": lambda data: zlib.compress(data, 1),
    "lzma": lambda data: lzma.compress(data, preset=0),
}


def measure_format(size: int, wire: Wire, repeats: int) -> dict[str, Any]:
    """Measure the bytes of an update of `size` values, and values a second on either end."""
    vector = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    arrays: dict[str, bytes] = {}

    def send() -> None:
        arrays.update((name, Array(block).data) for name, block in encode(vector, wire))

    def receive() -> None:
        for _ in Blocks(arrays.__getitem__, arrays.keys(), size, wire):
            pass

    send()
    receive()
    return {
        "parameters": size,
        "wire": wire,
        "encode": size / statistics.median(seconds(send) for _ in range(repeats)),
        "decode": size / statistics.median(seconds(receive) for _ in range(repeats)),
        "bytes": sum(map(len, arrays.values())),
    }


def measure_compression(size: int) -> list[dict[str, Any]]:
    """Measure what share a compressor leaves, and how many bytes a second it takes in."""
    noise = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    half = noise.copy()
    half[size // 2 :] = 0
    contents: dict[str, tuple[Any, Wire]] = {f"noise, {wire}": (noise, wire) for wire in WIRES}
    contents["adapter at its start, float32"] = (half, "float32")  # lora_B is zero
    rows = []
    for content, (vector, wire) in contents.items():
        data = b"".join(block.tobytes() for _, block in encode(vector, wire))
        for name, compress in COMPRESSORS.items():
            started = time.perf_counter()
            left = len(compress(data)) / len(data)
            rate = len(data) / (time.perf_counter() - started)
            rows.append({"content": content, "compressor": name, "left": left, "rate": rate})
    return rows


def measure_loss(seeds: int, rounds: int | None) -> Iterator[dict[str, Any]]:
    """Measure the loss after the embedded federation's rounds, for each seed in every format."""
    for seed in range(seeds):
        for wire in WIRES:
            overrides = [f"job.wire={wire}"]
            if rounds is not None:
                overrides.append(f"job.rounds={rounds}")
            fixed = ["evaluation.every=1000000", "privacy.clip_norm=1"]
            config = load_job(HOSPITALS, [*overrides, *fixed])
            with tempfile.TemporaryDirectory() as folder:
                outcome = simulate(
                    config, Path(folder) / "run", source=HOSPITALS, insecure_seed=seed
                )
            last = outcome.rounds[-1]
            yield {
                "seed": seed,
                "wire": wire,
                "baseline": outcome.baseline.eval_loss,
                "eval_loss": last["eval_loss"],
                "bytes_up": last["bytes_up"],
            }


def seconds(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    sizes, rounds = (16_384, 25_000_000), None
    if arguments.quick:
        arguments.repeats, arguments.seeds, rounds = 1, 1, 2
    formats = [measure_format(size, wire, arguments.repeats) for size in sizes for wire in WIRES]
    for row in formats:
        print(
            f"{row['parameters']:>10,} values  {row['wire']:8}{row['bytes']:>12,} bytes"
            f"  encode {row['encode'] / 1e6:6.0f} M/s  decode {row['decode'] / 1e6:6.0f} M/s"
        )
    compression = measure_compression(BLOCK // 16 if arguments.quick else BLOCK)
    for row in compression:
        print(
            f"{row['content']:30} {row['compressor']} leaves {row['left']:.2f}"
            f" at {row['rate'] / 1e6:.0f} MB/s"
        )
    losses = []
    for row in measure_loss(arguments.seeds, rounds):
        losses.append(row)
        print(
            f"seed {row['seed']}  {row['wire']:8} loss {row['baseline']:.4f} →"
            f" {row['eval_loss']:.5f}  {row['bytes_up']:,} bytes up a round"
        )
    if arguments.json:
        found = {"formats": formats, "compression": compression, "losses": losses}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
