"""What server and site say to each other, once it is a text or an array: bodies, vectors, sets."""

from __future__ import annotations

import io
import json
from pathlib import Path
from random import Random
from typing import Any, get_args

import numpy as np

from fedpriv.errors import FedprivError, ProtocolError
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.names import Wire
from fedpriv.privacy.config import PrivacySection
from fedpriv.protocol import (
    FAILED,
    Body,
    Handover,
    LocalSteps,
    Offer,
    Proposal,
    Received,
    Refusal,
    ReportRequest,
    StepReply,
    StepRequest,
)
from fedpriv.public_update.config import DenoiseSection, OptimizerSection
from fedpriv.synthetic.records import MAX_BYTES, SetChange, SyntheticSet
from fedpriv.wire import Blocks, decode_text, encode, encode_text
from fedpriv_strategies.messages import parse_answer
from tests.fuzz.fuzz_mutate import VALUES, json_bytes, mutate_bytes
from tests.fuzz.fuzz_target import Target, packed, parts, raw, refuses

KINDS: tuple[type[Body], ...] = (
    Proposal,
    Offer,
    StepRequest,
    StepReply,
    Refusal,
    ReportRequest,
    Handover,
    Received,
)
HASH = "sha256:" + "a" * 64
PROPOSAL = Proposal(
    job_id="job-1",
    method="dp-lora",
    steps=20,
    seed=7,
    fields=("text",),
    model=ModelSection(),
    lora=LoraSection(),
    privacy=PrivacySection(),
    base_digest=HASH,
    vector_digest=HASH,
    wire="int8",
    local=LocalSteps(count=2, optimizer=OptimizerSection(), denoise=DenoiseSection()),
    settings={"size": 20, "ridge": 1e-3, "bound": "normalised"},
    public_records=20,
)
OFFER = Offer(
    site="cardiology",
    dataset_id="0" * 32,
    declared_size=250,
    delta=1e-5,
    noise_multiplier=2.0,
    epsilon=3.0,
    budget=4.0,
    ledger_rows=1,
    ledger_head="b" * 64,
)
REQUEST = StepRequest(
    job_id="job-1", slot=3, set_digest=HASH, witness_rows=5, witness_head="c" * 64
)
REPLY = StepReply(
    kind="gradient-sum",
    slot=3,
    epsilon_spent=1.0,
    epsilon_committed=2.0,
    ledger_rows=7,
    ledger_head="d" * 64,
)
HANDOVER = Handover(proposal=PROPOSAL, values_digest=HASH)
BODIES = (PROPOSAL, OFFER, REQUEST, REPLY, FAILED, ReportRequest(job_id="job-1"), HANDOVER)
VECTOR = np.linspace(-2, 2, 300, dtype=np.float32)


def bodies(data: bytes, folder: Path) -> None:
    """A body as each kind; it is refused if it is of none."""
    text = data.decode("utf-8", "replace")
    problem: ProtocolError | None = None
    taken = False
    for kind in KINDS:
        try:
            found = kind.parse(text)
        except ProtocolError as error:
            problem = error
            continue
        taken = True
        refuses(kind.parse(found.model_dump_json()) == found, "another body when it is read again")
        _use(found)
    for kind in (Offer, StepReply):
        try:
            parse_answer(kind, text)
        except ProtocolError as error:
            problem = error
    if not taken and problem is not None:
        raise problem


def _use(found: Body) -> None:
    match found:
        case Proposal():
            found.digest()
            looks = 0 if found.evaluation is None else found.evaluation.steps
            training = found.rounds * found.round_steps
            refuses(training + looks == found.steps, "no whole rounds")
        case StepRequest():
            found.digest(VECTOR)
            refuses(found.witness.rows == found.witness_rows, "another witness")
        case Refusal():
            str(found.reason)


def update(data: bytes, folder: Path) -> None:
    """The arrays of a vector, in one of the wire's formats."""
    found = parts(data, arrays={}, size=300, wire="float32")
    wire = found["wire"] if found["wire"] in get_args(Wire) else "float32"
    size = found["size"] if type(found["size"]) is int else 300
    arrays = found["arrays"] if isinstance(found["arrays"], dict) else {}
    stored = {name: raw(value) for name, value in arrays.items()}
    blocks = Blocks(stored.__getitem__, stored.keys(), size, wire)
    vector = blocks.vector()
    refuses(vector.shape == (size,) and vector.dtype == np.float32, "another size")
    refuses(bool(np.isfinite(vector).all()), "not finite")
    refuses(blocks.bytes_read == sum(map(len, stored.values())), "other bytes were read")
    again = {name: _npy(array) for name, array in encode(vector, "float32")}
    other = Blocks(again.__getitem__, again.keys(), size, "float32").vector()
    refuses(
        np.array_equal(other.view("u4"), vector.view("u4")), "another vector when it is sent on"
    )


def _npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def updates() -> dict[str, bytes]:
    found = {}
    for wire in get_args(Wire):
        arrays = {name: _npy(array).decode("latin-1") for name, array in encode(VECTOR, wire)}
        found[wire] = packed(arrays=arrays, size=300, wire=wire)
    return found


def mutate_update(data: bytes, random: Random) -> bytes:
    """Mostly an array of it, that stays as long as it was."""
    if random.random() < 0.3:
        return json_bytes(data, random)
    found = parts(data, arrays={}, size=300, wire="float32")
    arrays = found["arrays"]
    if not isinstance(arrays, dict) or not arrays:
        return mutate_bytes(data, random)
    name = random.choice(list(arrays))
    content = bytearray(raw(arrays[name]))
    for _ in range(random.choice((1, 2, 4))):
        if content:
            at = random.randrange(len(content))
            value = np.float32(random.choice((np.nan, np.inf, 3e38, -3e38, 1e-45, 0, 1)))
            new = random.choice(
                (bytes([random.randrange(256)]), value.tobytes(), b"\x80", b"\xff\x7f")
            )
            content[at : at + len(new)] = new
    arrays[name] = bytes(content).decode("latin-1")
    if random.random() < 0.2:
        found["size"] = random.choice((*VALUES, 299, 301, 256, 257))
    if random.random() < 0.2:
        found["wire"] = random.choice(get_args(Wire))
    return packed(**found)


def change(data: bytes, folder: Path) -> None:
    """What changes a synthetic set; `true`, its digest is that of the set it makes."""
    found = parts(data, change={}, base=None, true=False)
    shown = dict(found["change"]) if isinstance(found["change"], dict) else found["change"]
    if found["true"] and isinstance(shown, dict):
        shown["digest"] = _digest(shown)
    text = json.dumps(shown)
    arrays = {name: _npy(block) for name, block in encode_text(text)}
    parsed = SetChange.parse(decode_text(arrays.__getitem__, arrays.keys(), MAX_BYTES))
    refuses(SetChange.parse(parsed.model_dump_json()) == parsed, "another change")
    made = parsed.apply(None)
    refuses(len(made) == parsed.size and made.digest == parsed.digest, "another set")
    refuses(SetChange.between(None, made).apply(None).digest == made.digest, "not the same again")
    other = SyntheticSet([{"text": "x"}] * len(made))
    refuses(SetChange.between(other, made).apply(other).digest == made.digest, "not from another")


def _digest(shown: dict[str, Any]) -> str:
    try:
        parsed = SetChange.parse(json.dumps({**shown, "digest": HASH}))
        records = {int(place): dict(record) for place, record in parsed.records.items()}
        return SyntheticSet(records[place] for place in sorted(records)).digest
    except FedprivError:
        return HASH


def changes() -> dict[str, bytes]:
    two = SyntheticSet([{"prompt": "a", "completion": "é"}, {"prompt": "b", "completion": ""}])
    whole = SetChange.between(None, two).model_dump(mode="json")
    return {"two": packed(change=whole, true=True), "one": packed(change={**whole, "size": 1})}


def mutate_change(data: bytes, random: Random) -> bytes:
    found = parts(data, change={}, base=None, true=False)
    found["change"] = json.loads(json.dumps(found["change"]))
    changed = json_bytes(json.dumps(found["change"]).encode(), random)
    try:
        return packed(change=json.loads(changed), true=random.random() < 0.8)
    except (ValueError, RecursionError):
        return changed


TARGETS = (
    Target(
        "bodies",
        bodies,
        lambda: {type(body).__name__.lower(): body.model_dump_json().encode() for body in BODIES},
        json_bytes,
        2.0,
    ),
    Target("update", update, updates, mutate_update, 2.0),
    Target("set", change, changes, mutate_change),
)
