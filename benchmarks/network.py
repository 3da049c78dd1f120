"""Measure what the network costs: seconds a round beyond the sites' work, and the server's memory.

    python benchmarks/network.py --json network.json
    python benchmarks/network.py --many --json many.json   # 10, 100 and 1,000 sites

A server and its sites run, each a process of its own, over TLS on loopback. They use the product's
server, grid, strategy, optimiser and checkpoint, and its link at the sites. The sites answer every
request at once, with noise, so that all of a round's time is overhead. In a secure sum they answer
with a share under real masks, so that the time includes masks and the second exchange. Memory is
the server's peak above what it held before the first round, counted in payloads. With SGD, an
aggregation can't do without the vector of the moment, a float64 sum (two payloads) and a block. The
floor of the time is arithmetic alone: each byte is hashed and encrypted by its sender, and hashed
and decrypted by its receiver, on all cores at once.

With --many, sites are threads of a few processes, each with its own connection and key. Then
requests, open files and threads are counted, too, to see which limit is met first. Core seconds are
those of the server's process, and of all sites' processes, in one round. They depend less than a
round's time on what else the machine does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import multiprocessing
import os
import resource
import ssl
import statistics
import tempfile
import threading
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedpriv.environment import set_environment
from fedpriv.process import stop_on_terminate

set_environment()

TINY, LARGE = 16_384, 25_000_000  # values: the default adapter, and 100 MB
# Bytes of a value on its way up. A secure sum has a wire format of its own.
SECURE = "secure-sum"
BYTES = {"float32": 4.0, "bf16": 2.0, "int8": 1 + 1 / 64, SECURE: 2.0}
JOB = "benchmark"
ZEROS = "sha256:" + "0" * 64


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Make authority, server certificate and key, for localhost."""
    from fedpriv.pki.certificates import certificate_pem
    from fedpriv.pki.keys import new_key, private_pem
    from fedpriv_server.authority import authority_certificate, server_certificate

    now = datetime.now(UTC)
    ca_key, key = new_key(), new_key()
    ca = authority_certificate(ca_key, "0" * 32, "benchmark", days=2, now=now)
    certificate = server_certificate(ca, ca_key, key.public_key(), ["localhost"], days=1, now=now)
    paths = folder / "ca.crt", folder / "server.crt", folder / "server.key"
    contents = certificate_pem(ca), certificate_pem(certificate), private_pem(key)
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return paths


def site(name: str, port: int, ca: Path, key: bytes, size: int, wire: str, proposal: str) -> None:
    """Run a site's process: the real connection, and an app that answers with noise.

    Args:
        proposal: the digest of the proposal.
    """
    import numpy as np
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp

    from fedpriv.process import Status
    from fedpriv.protocol import Offer, Ready, SetRequest, StepReply, StepRequest
    from fedpriv.secure_sum.masks import mask
    from fedpriv.secure_sum.members import MemberSet
    from fedpriv.secure_sum.ready import Ephemeral, SlotId, sign_member
    from fedpriv.wire import Blocks, encode, encode_masked
    from fedpriv_client.connection import ServerConnection
    from fedpriv_client.fleet import MIB
    from fedpriv_client.service import Service

    app = ClientApp()
    noise = np.random.default_rng().standard_normal(size, dtype=np.float32)
    share = np.rint(3 * noise).astype(np.int64)
    noise *= 1e-3  # a reply longer than clipped vectors and noise can be is not used
    plain: Any = wire  # the format of a sum that is not secure
    held: list[Any] = []

    @app.query()
    def query(message: Message, context: Context) -> Message:
        offer = Offer(
            site=name, dataset_id="0" * 32, declared_size=100, delta=1e-5, noise_multiplier=1.0,
            epsilon=1.0, budget=1.0, ledger_rows=1, ledger_head="0" * 64,
        )  # fmt: skip
        body = ConfigRecord({"body": offer.model_dump_json()})
        return Message(RecordDict({"fedpriv": body}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        request = StepRequest.parse(message.content.config_records["fedpriv"]["body"])
        if wire == SECURE:
            return get_ready(request, message)
        noise[request.slot % size] += 1e-3  # otherwise the server would have it already
        return reply("gradient-sum", request.slot, encode(noise, plain), message)

    def get_ready(request: StepRequest, message: Message) -> Message:
        blocks = message.content.array_records["arrays"]
        vector = Blocks(lambda key: blocks[key].data, blocks.keys(), size, "float32").vector()
        slot = SlotId(proposal=proposal, slot=request.slot, request=request.digest(vector))
        ephemeral = Ephemeral()
        member = sign_member(_signing_key(name), slot, name, ephemeral)
        held[:] = [slot, ephemeral]
        body = Ready(slot=request.slot, member=member).model_dump_json()
        return Message(RecordDict({"fedpriv": ConfigRecord({"body": body})}), reply_to=message)

    @app.train("set")
    def train_set(message: Message, context: Context) -> Message:
        request = SetRequest.parse(message.content.config_records["fedpriv"]["body"])
        slot, ephemeral = held
        members = MemberSet(slot_id=slot, members=request.members, bits=request.bits)
        masked = mask(share, name, ephemeral, members)
        return reply("masked-share", request.slot, encode_masked(masked), message)

    def reply(kind: Any, slot: int, blocks: Any, message: Message) -> Message:
        body = StepReply(
            kind=kind, slot=slot, epsilon_spent=1.0, epsilon_committed=1.0,
            ledger_rows=slot + 1, ledger_head="0" * 64,
        )  # fmt: skip
        arrays = {key: Array(block) for key, block in blocks}
        content = RecordDict({"fedpriv": ConfigRecord({"body": body.model_dump_json()})})
        content["arrays"] = ArrayRecord(arrays, keep_input=False)
        return Message(content, reply_to=message)

    context = ssl.create_default_context(cafile=str(ca))
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    private: Any = load_pem_private_key(key, None)
    connection = ServerConnection(f"localhost:{port}", context, private, largest=4 * size + MIB)
    service = Service(connection, Status(folder))
    service.connect()
    service.run(app)


def crowd(first: int, keys: list[bytes], port: int, ca: Path, *others: Any) -> None:
    """Run a process of several sites, with a thread for each."""
    set_environment()
    logging.disable()
    threading.stack_size(1 << 20)
    for number, key in enumerate(keys, first):
        arguments = (f"site-{number}", port, ca, key, *others)
        threading.Thread(target=site, args=arguments, daemon=True).start()
    threading.Event().wait()


def server(pipe: Any, sites: int, size: int, wire: str, rounds: int, folder: Path) -> None:
    """Run the server's process. It sends its port and keys, and then what it measured."""
    import numpy as np

    from fedpriv.heap import share_heap
    from fedpriv.methods.dp_lora.server_half import DpLoraServer
    from fedpriv.models.config import LoraSection, ModelSection
    from fedpriv.pki.keys import new_key, private_pem, public_pem
    from fedpriv.privacy.config import PrivacySection
    from fedpriv.privacy.mechanism.privatised import public
    from fedpriv.protocol import Proposal, SharedNoise
    from fedpriv.public_update.config import OptimizerSection
    from fedpriv_server.bounds import Bounds
    from fedpriv_server.broker import MessageBroker
    from fedpriv_server.checkpoint import Checkpoint, SumFile
    from fedpriv_server.fleet_api import fleet_api
    from fedpriv_server.grid import NetworkGrid
    from fedpriv_server.listen import ServerTls, serving
    from fedpriv_server.serve import collect_garbage_rarely
    from fedpriv_strategies.averaged import AveragedUpdate
    from fedpriv_strategies.rounds import Rounds
    from fedpriv_strategies.secure_rounds import SecureRounds

    share_heap()
    ca, certificate, key = certificates(folder)
    broker = MessageBroker(folder / "link")
    grid = NetworkGrid(broker)
    keys = [new_key() for _ in range(sites)]
    for index, private in enumerate(keys):
        broker.admit(f"site-{index}", public_pem(private.public_key()))
    names = [f"site-{index}" for index in range(sites)]
    roster = _roster(names) if wire == SECURE else None
    proposal = Proposal(
        job_id=JOB, method="dp-lora", steps=rounds, seed=0, fields=("text",),
        model=ModelSection(), lora=LoraSection(), privacy=PrivacySection(),
        base_digest=ZEROS, vector_digest=ZEROS, wire="float32" if roster else wire,
        shared=roster and SharedNoise(
            max_colluding=1, sites=sites, roster=roster.digest, noise_multiplier=1.0
        ),
    )  # fmt: skip
    vector = public(np.zeros(size, dtype=np.float32))
    optimizer = OptimizerSection(name="sgd", lr=1e-3)
    update = AveragedUpdate(optimizer, vector)
    del vector
    kind: Any = Rounds
    if roster is not None:
        kept = SumFile(folder / "c" / "sum.json")
        kind = partial(SecureRounds, roster=roster, state=None, keep=kept.write)
    rounds_of = kind(
        proposal,
        update,
        DpLoraServer(size),
        min_sites=sites,
        timeout=600,
        sites=sites,
        site_of=broker.names.get,
    )
    with serving(fleet_api(grid), ("127.0.0.1", 0), ServerTls(certificate, key)) as port:
        pipe.send((port, str(ca), [private_pem(private) for private in keys], proposal.digest()))
        while len(grid.get_node_ids()) < sites:
            time.sleep(0.05)
        collect_garbage_rarely()
        crowds: list[int] = pipe.recv()
        before = _resident()
        peak = _Peak()
        asked: list[str] = []
        hear = Bounds._hear

        def count(self: Any, key: bytes, length: int, scope: Any, *others: Any) -> Any:
            asked.append(scope["path"])
            return hear(self, key, length, scope, *others)

        Bounds._hear = count  # type: ignore[method-assign]
        measured = []
        for number in range(1, rounds + 1):
            asked.clear()
            at_sites, here = sum(map(_busy, crowds)), _busy(os.getpid())
            started = time.perf_counter()
            rounds_of.run(number, grid)
            Checkpoint(JOB, number, update.state(), {}).write(folder / "c" / "c.safetensors")
            seconds = time.perf_counter() - started
            at_sites, here = sum(map(_busy, crowds)) - at_sites, _busy(os.getpid()) - here
            measured.append((seconds, here, at_sites, len(asked) / sites))
        grown = peak.stop() - before
        pipe.send((measured, grown, before, peak.handles, peak.threads))
        broker.close()


def _signing_key(name: str) -> Any:
    """Return a site's signing key. It is the same in every process, and no secret."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def _roster(names: list[str]) -> Any:
    from fedpriv.secure_sum.roster import Roster, RosterEntry

    keys = {name: _signing_key(name).public_key().public_bytes_raw().hex() for name in names}
    return Roster.of(RosterEntry(name=name, public_key=key) for name, key in keys.items())


class _Peak:
    """Record the most memory, open files and threads of this process, looked at all the time."""

    def __init__(self) -> None:
        self._most = _resident()
        self.handles = self.threads = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        looks = 0
        while not self._stop.wait(0.05):  # because each look takes time that the server could use
            self._most = max(self._most, _resident())
            self.threads = max(self.threads, threading.active_count())
            if looks % 20 == 0:
                self.handles = max(self.handles, sum(1 for _ in Path("/proc/self/fd").iterdir()))
            looks += 1

    def stop(self) -> float:
        self._stop.set()
        self._thread.join()
        return self._most


def _busy(process: int) -> float:
    """Return the seconds of a core that a process has used so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident() -> float:
    """Return the bytes in memory that are this process's own, without mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return float(line.split()[1]) * 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024


def measure(sites: int, size: int, wire: str, rounds: int, together: int = 1) -> dict[str, Any]:
    """Run one federation.

    Args:
        together: number of sites in a process.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (theirs, sites, size, wire, rounds, Path(folder))
        running = [context.Process(target=server, args=arguments, daemon=True)]
        running[0].start()
        port, ca, keys, proposal = ours.recv()
        for first in range(0, sites, together):
            some = keys[first : first + together]
            of_sites = (first, some, port, Path(ca), size, wire, proposal)
            running.append(context.Process(target=crowd, args=of_sites, daemon=True))
            running[-1].start()
        ours.send([process.pid for process in running[1:]])
        measured, grown, before, handles, threads = ours.recv()
        for process in running:
            process.kill()
            process.join()
    later = measured[1:] or measured  # the first round also asks for terms
    seconds, here, at_sites, requests = map(statistics.median, zip(*later, strict=True))
    return {
        "sites": sites,
        "values": size,
        "wire": wire,
        "seconds": seconds,
        "slowest": max(later)[0],
        "server_core_seconds": here,
        "sites_core_seconds": at_sites,
        "requests": requests,
        "peak_payloads": grown / (4 * size),
        "peak_mb": grown / 1e6,
        "constant_mb": before / 1e6,
        "open_files": handles,
        "threads": threads,
    }


def speeds() -> tuple[float, float]:
    """Return how many bytes a second one core hashes, and encrypts as TLS does."""
    data = os.urandom(1 << 26)
    cipher = AESGCM(os.urandom(32))
    started = time.perf_counter()
    hashlib.sha256(data).digest()
    between = time.perf_counter()
    for start in range(0, len(data), 1 << 14):
        cipher.encrypt(bytes(12), data[start : start + (1 << 14)], None)
    ended = time.perf_counter()
    return len(data) / (between - started), len(data) / (ended - between)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny payloads only")
    parser.add_argument("--many", action="store_true", help="10, 100 and 1,000 sites")
    parser.add_argument("--most", type=int, default=1000, help="sites of --many")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    logging.disable()
    stop_on_terminate()  # otherwise its processes would go on without it
    hashed, encrypted = speeds()
    print(f"SHA-256 {hashed / 1e9:.1f} GB/s, AES-256-GCM {encrypted / 1e9:.1f} GB/s on one core")
    cases = [(sites, TINY, "float32", 12) for sites in (1, 4, 8)]
    if not arguments.quick:
        cases += [(sites, LARGE, "float32", 4) for sites in (1, 2, 4, 8)]
        cases += [(4, LARGE, wire, 4) for wire in ("bf16", "int8")]
    together = 1
    if arguments.many:
        together = 100
        cases = [(sites, TINY, "float32", 4) for sites in (10, 100, 1000)]
        cases += [
            (10, 1_000_000, "float32", 4),
            (100, 1_000_000, "float32", 3),
            (100, TINY, SECURE, 4),
        ]
        cases = [case for case in cases if case[0] <= arguments.most]
    rows = []
    print(
        "sites  values      wire     s/round  slowest    floor  server's core  sites' cores"
        "  requests  peak beyond start  files  threads"
    )
    for case in cases:
        row = measure(*case, together)
        sites, size, wire, _ = case
        moved = sites * (4 * size + BYTES[wire] * size)
        row["floor"] = 2 * moved * (1 / hashed + 1 / encrypted) / (os.cpu_count() or 1)
        rows.append(row)
        print(
            f"{row['sites']:5}  {row['values']:10,}  {row['wire']:8} {row['seconds']:7.2f}"
            f"  {row['slowest']:7.2f}  {row['floor']:7.2f}  {row['server_core_seconds']:7.2f}"
            f"  {row['sites_core_seconds']:7.2f}  {row['requests']:5.1f}  {row['peak_mb']:6.0f} MB"
            f"  {row['open_files']:5}  {row['threads']:5}"
            + (f" = {row['peak_payloads']:.2f} payloads" if row["values"] == LARGE else ""),
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
