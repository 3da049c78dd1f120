"""Files that are read again: checkpoint, run directory, orders, answers; models and records."""

from __future__ import annotations

import gzip
import io
import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from random import Random

import httpx
import pyarrow
import torch
from pyarrow import parquet
from safetensors.torch import save

from fedpriv.base_model import CONFIG, WEIGHTS
from fedpriv.base_model import FACTS as ADAPTER_FACTS
from fedpriv.config.load import HOSPITALS, digest, load_job
from fedpriv.config.looks import LooksSection
from fedpriv.data.formats import LOADED, READERS
from fedpriv.data.read import read_records
from fedpriv.errors import FedprivError, ProtocolError
from fedpriv.files import private_folder
from fedpriv.model_size import parameters_of
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.process import read_status
from fedpriv.report.rundir import read_run
from fedpriv.stored_adapter import find_adapter
from fedpriv.synthetic.endpoint import _answer
from fedpriv_client.job_words import described
from fedpriv_client.jobs import Job
from fedpriv_client.orders import Asked, Orders
from fedpriv_client.proposals import KeptProposal, kept_proposals
from fedpriv_server.checkpoint import Checkpoint
from fedpriv_server.run_directory import RunDirectory
from tests.fuzz.fuzz_messages import PROPOSAL
from tests.fuzz.fuzz_mutate import json_bytes, mutate_bytes, text_bytes
from tests.fuzz.fuzz_target import Target, packed, parts, raw, refuses


def checkpoint(data: bytes, folder: Path) -> None:
    path = folder / "latest.safetensors"
    path.write_bytes(data)
    found = Checkpoint.read(path)
    refuses(found.round >= 0, "a round below 0")
    refuses(all(isinstance(h.rows, int) and h.rows >= 0 for h in found.heads.values()), "no rows")
    refuses(all(isinstance(h.hash, str) for h in found.heads.values()), "no hash")
    for record in () if found.synthetic is None else found.synthetic.value:
        refuses(all(isinstance(text, str) for text in record.values()), "no record")
    found.write(path)
    again = Checkpoint.read(path)
    refuses((again.job_id, again.round) == (found.job_id, found.round), "another round")
    refuses(again.heads == found.heads, "other heads")
    refuses(again.tensors.value.keys() == found.tensors.value.keys(), "other tensors")


def checkpoints() -> dict[str, bytes]:
    tensors = {"vector": torch.zeros(8), "m": torch.ones(8), "step": torch.tensor(3)}
    heads = {"cardiology": [7, "a" * 64], "surgery": [0, "0" * 64]}
    meta = {"job_id": "j", "round": "3", "heads": json.dumps(heads)}
    text = torch.frombuffer(bytearray(b'[{"text": "a"}]'), dtype=torch.uint8)
    return {
        "plain": save(tensors, meta),
        "synthetic": save({**tensors, "synthetic set": text}, meta),
    }


def mutate_tensors(data: bytes, random: Random) -> bytes:
    """Its head, written with the length that it has."""
    if random.random() < 0.2 or len(data) < 8:
        return mutate_bytes(data, random)
    length = int.from_bytes(data[:8], "little")
    text, rest = data[8 : 8 + length], data[8 + length :]
    try:
        tree = json.loads(text)
        if random.random() < 0.4 and isinstance(tree.get("__metadata__"), dict):
            meta = tree["__metadata__"]
            name = random.choice(list(meta))
            meta[name] = json_bytes(str(meta[name]).encode(), random).decode("utf-8", "replace")
            text = json.dumps(tree).encode()
        else:
            text = json_bytes(text, random)
    except (ValueError, AttributeError, IndexError, RecursionError):
        text = json_bytes(text, random)
    if random.random() < 0.1:
        rest = mutate_bytes(rest, random)
    return len(text).to_bytes(8, "little") + text + rest


def run(data: bytes, folder: Path) -> None:
    """A run that is gone on with, and one that a report is made of."""
    found = parts(data, run="", metrics="", budget="")
    config = load_job(HOSPITALS)
    said = raw(found["run"])
    for name, value in _here().items():
        said = said.replace(name.encode(), value.encode())
    (folder / "run.json").write_bytes(said)
    (folder / "metrics.jsonl").write_bytes(raw(found["metrics"]))
    (folder / "sites" / "surgery").mkdir(parents=True)
    if found["budget"]:
        (folder / "sites" / "surgery" / "budget.json").write_bytes(raw(found["budget"]))
    problem: FedprivError | None = None
    try:
        read_run(folder)
    except FedprivError as error:
        problem = error
    for opened in (
        lambda: RunDirectory.resume(folder, config, insecure_seed=None),
        lambda: RunDirectory.open(folder, config),
    ):
        try:
            directory = opened()
            directory.checkpoint()
            rounds = directory.rounds(3)
            refuses(all(row["round"] <= 3 for row in rounds), "rounds that are not done")
            refuses(directory.rounds(3) == rounds, "other rounds when they are read again")
        except FedprivError as error:
            problem = error
    if problem is not None:
        raise problem


def _here() -> dict[str, str]:
    """What stands for what differs between machines."""
    return {"<folder>": str(HOSPITALS.parent), "<digest>": digest(load_job(HOSPITALS))}


@cache
def run_info() -> str:
    with tempfile.TemporaryDirectory() as folder:
        made = RunDirectory.create(Path(folder) / "run", load_job(HOSPITALS), insecure_seed=None)
        made.ready(model={"name": "m", "task": "causal-lm", "digest": "d", "trainable": 8})
        text = (made.path / "run.json").read_text()
    for name, value in _here().items():
        text = text.replace(value, name)
    return text


def runs() -> dict[str, bytes]:
    site = {"status": "ok", "epsilon_spent": 1.0, "epsilon_committed": 2.0, "noise_multiplier": 2.0}
    row = {"round": 1, "eval_loss": 2.0, "bytes_up": 1, "bytes_down": 1, "seconds": 0.1}
    lines = [{**row, "round": number, "sites": {"surgery": site}} for number in (1, 2, 3, 4)]
    return {"begun": packed(run=run_info(), metrics="".join(json.dumps(i) + "\n" for i in lines))}


def mutate_run(data: bytes, random: Random) -> bytes:
    found = parts(data, run="", metrics="", budget="")
    if random.random() < 0.5:
        found["run"] = json_bytes(raw(found["run"]), random).decode("latin-1")
    else:
        lines = str(found["metrics"]).split("\n")
        at = random.randrange(len(lines))
        lines[at] = json_bytes(raw(lines[at]), random).decode("latin-1")
        found["metrics"] = "\n".join(lines)
    return packed(**found)


def orders(data: bytes, folder: Path) -> None:
    """What stands in a site's folder: orders, and what a process said last."""
    (folder / "status.json").write_bytes(data)
    refuses(read_status(folder)["running"] is False, "nobody runs")
    (folder / "orders.json").write_bytes(data)
    found = Orders.read(folder)
    refuses(isinstance(found.paused, bool), "no order")
    for proposed, yes in found.approved.items():
        asked = Asked(Plan("job-1", "dp-lora", 0.1, 1.0, 0.1, 10, proposed), "ledger", 1e-5)
        counts = any(one.plan == asked.digest for one in yes.persons)
        refuses(found.is_approved(asked) == counts, "a yes to another plan")
    found.write(folder)
    refuses(Orders.read(folder) == found, "other orders when they are read again")
    with suppress(FedprivError):
        found.check("job-1")


def proposal(data: bytes, folder: Path) -> None:
    """A proposal that a site keeps, under the name that it gives itself."""
    named = "0" * 64
    with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        named = str(json.loads(data)["committed"]["proposal"])[7:]
    with suppress(OSError, ValueError):  # a name that no file can have
        private_folder(folder / "proposals")
        (folder / "proposals" / f"{named}.json").write_bytes(data)
    found = list(kept_proposals(folder))
    if not found:
        raise ProtocolError("It is left out.")
    [kept] = found
    refuses(kept.digest == kept.proposal.digest(), "another digest")
    job = Job(kept.plan, "not begun", kept, 0, None, {})
    refuses(all(text for _, text in described(job, 250)), "no words")


def proposed() -> dict[str, bytes]:
    made = {}
    for name, changes in (("plain", {}), ("looks", {"evaluation": LooksSection(looks=1, slots=4)})):
        proposal = PROPOSAL.model_copy(update=changes)
        plan = Plan(proposal.job_id, "dp-lora", 0.1, 2.0, 1.0, proposal.steps, proposal.digest())
        kept = KeptProposal(
            server="localhost:8443",
            first=datetime(2026, 1, 1, tzinfo=UTC),
            committed=plan.as_row(),
            allocated=1.5,
            proposal=proposal,
        )
        made[name] = kept.model_dump_json().encode()
    return made


def weights(data: bytes, folder: Path) -> None:
    """The folder of a base model, asked for its size."""
    found = parts(data, model="", index="")
    (folder / "model.safetensors").write_bytes(raw(found["model"]))
    if found["index"]:
        (folder / "model.safetensors.index.json").write_bytes(raw(found["index"]))
    count = parameters_of(str(folder))
    refuses(count is None or (isinstance(count, int) and count >= 0), f"a size of {count!r}")


def models() -> dict[str, bytes]:
    made = save({"a": torch.zeros(2, 3), "b": torch.zeros(5)})
    index = json.dumps({"weight_map": {"a": "model.safetensors", "b": "model.safetensors"}})
    return {"alone": packed(model=made), "listed": packed(model=made, index=index)}


def mutate_model(data: bytes, random: Random) -> bytes:
    found = parts(data, model="", index="")
    if found["index"] and random.random() < 0.4:
        found["index"] = json_bytes(raw(found["index"]), random)
    else:
        found["model"] = mutate_tensors(raw(found["model"]), random)
    return packed(**found)


def adapter(data: bytes, folder: Path) -> None:
    """The folder of an adapter that a job is to begin at."""
    found = parts(data, config="", model="", facts="")
    (folder / CONFIG).write_bytes(raw(found["config"]))
    (folder / WEIGHTS).write_bytes(raw(found["model"]))
    if found["facts"]:
        (folder / ADAPTER_FACTS).write_bytes(raw(found["facts"]))
    lora = find_adapter(str(folder)).lora
    refuses(0 < lora.r <= 1024 and lora.alpha > 0, f"a rank of {lora.r} with {lora.alpha}")


def adapters() -> dict[str, bytes]:
    said = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q", "v"]}
    named = said | {"target_modules": ".*q", "init_lora_weights": True, "bias": "none"}
    made = save({"base_model.model.q.lora_A.weight": torch.zeros(2, 3)}, {"fedpriv.kind": "none"})
    facts = json.dumps({"kind": "federated"})
    return {
        "alone": packed(config=json.dumps(said), model=made),
        "pattern": packed(config=json.dumps(named), model=made, facts=facts),
    }


def mutate_adapter(data: bytes, random: Random) -> bytes:
    found = parts(data, config="", model="", facts="")
    name = random.choice(("config", "model", "facts"))
    change = mutate_tensors if name == "model" else json_bytes
    found[name] = change(raw(found[name] or "{}"), random)
    return packed(**found)


def records(data: bytes, folder: Path) -> None:
    """A file of records: its name's end, a line, then its content."""
    name, _, content = data.partition(b"\n")
    suffix = name.decode("ascii", "replace")
    path = folder / f"notes{suffix if suffix in SUFFIXES else '.jsonl'}"
    path.write_bytes(content)
    table = read_records(
        path, {"text": "note"}, unit="patient", cache_dir=folder / "cache", key="data.path"
    )
    for row in table:
        refuses(row["unit"], "a record of nobody")
        refuses(row["text"] is None or isinstance(row["text"], str), "a record that is no text")


ROWS = [
    {"note": "é fever", "patient": 7},
    {"note": None, "patient": " 8"},
    {"note": 1.0, "patient": 9},
]
SUFFIXES = (*READERS, *LOADED, ".jsonl.gz", ".csv.gz")


def files() -> dict[str, bytes]:
    texts = [{key: None if value is None else str(value) for key, value in r.items()} for r in ROWS]
    table, stream, arrow = pyarrow.Table.from_pylist(texts), io.BytesIO(), io.BytesIO()
    parquet.write_table(table, stream, compression="none")
    with pyarrow.ipc.new_stream(arrow, table.schema) as writer:
        writer.write_table(table)
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    csv = b'note,patient\n"a ""b"", c",7\nd,8\n'
    return {
        "lines": b".jsonl\n" + lines,
        "array": b".json\n" + json.dumps(ROWS).encode(),
        "csv": b".csv\n" + csv,
        "tsv": b".tsv\n" + csv.replace(b",", b"\t"),
        "gz": b".jsonl.gz\n" + gzip.compress(lines, mtime=0),
        "parquet": b".parquet\n" + stream.getvalue(),
        "arrow": b".arrow\n" + arrow.getvalue(),
    }


def mutate_records(data: bytes, random: Random) -> bytes:
    name, _, content = data.partition(b"\n")
    change: Callable[[bytes, Random], bytes] = mutate_bytes
    if name in (b".jsonl", b".json", b".csv", b".tsv"):
        change = json_bytes if name == b".json" else text_bytes
    if name == b".jsonl.gz" and random.random() < 0.3:
        return name + b"\n" + gzip.compress(text_bytes(b'{"note": "a"}\n' * 2, random), mtime=0)
    return name + b"\n" + change(content, random)


def answer(data: bytes, folder: Path) -> None:
    """What a service that makes records answers, and what was kept of it."""
    found = parts(data, content="", kept="")
    client = httpx.Client(
        transport=httpx.MockTransport(lambda _: httpx.Response(200, content=raw(found["content"])))
    )
    with client:
        text = _answer(client, "http://localhost/v1", {"seed": 1}, folder, 0.0)
        refuses(_answer(client, "http://localhost/v1", {"seed": 1}, folder, 0.0) == text, "another")
        text.encode()
        (kept,) = folder.iterdir()
        kept.write_bytes(raw(found["kept"] or found["content"]))
        _answer(client, "http://localhost/v1", {"seed": 1}, folder, 0.0).encode()


def answers() -> dict[str, bytes]:
    text = json.dumps({"choices": [{"message": {"content": "a note é"}}]})
    return {"usual": packed(content=text, kept=text)}


def mutate_answer(data: bytes, random: Random) -> bytes:
    found = parts(data, content="", kept="")
    name = random.choice(("content", "kept"))
    found[name] = json_bytes(raw(found[name]), random)
    return packed(**found)


def standing() -> dict[str, bytes]:
    yes = {"job": "job-1", "at": "2026-01-01T08:00:00+00:00", "by": "somebody"}
    approved = {"paused": False, "refused": [], "approved": {"sha256:" + "0" * 64: yes}}
    return {
        "paused": json.dumps({"paused": True, "refused": ["job-1", "job-2"]}).encode(),
        "approved": json.dumps(approved).encode(),
    }


TARGETS = (
    Target("checkpoint", checkpoint, checkpoints, mutate_tensors),
    Target("run", run, runs, mutate_run),
    Target("orders", orders, standing, json_bytes),
    Target("proposal", proposal, proposed, json_bytes),
    Target("weights", weights, models, mutate_model),
    Target("adapter", adapter, adapters, mutate_adapter),
    Target("records", records, files, mutate_records, 0.1),
    Target("answer", answer, answers, mutate_answer, 0.5),
)
