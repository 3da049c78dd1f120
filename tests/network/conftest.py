"""A federation of real processes on loopback, with TLS and keys."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.network.network_federation import ROUNDS, UNITS, WORDS, Federation
from tests.network.network_processes import forking
from tests.waiting import free_port

Make = Callable[..., Any]


def note(seed: int) -> str:
    """A short note of made-up text, the same for a seed."""
    return " ".join(random.Random(seed).choices(WORDS, k=4))


@pytest.fixture(scope="session")
def context() -> Any:
    return forking()


@pytest.fixture(scope="session")
def origin(tmp_path_factory: pytest.TempPathFactory, model_folder: Make) -> Path:
    """A federation file with its certificates and enrolments, to be copied by every test."""
    from typer.testing import CliRunner

    from fedpriv.cli import app
    from fedpriv.models.stored import digest_of
    from fedpriv_server.provision_command import provision

    folder = tmp_path_factory.mktemp("federation")
    model = model_folder("llama")
    rows = [{"note": note(7000 + i)} for i in range(UNITS)]
    (folder / "held-out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tables = "".join(f'[[sites]]\nname = "site-{i}"\n' for i in range(3))
    (folder / "federation.toml").write_text(
        f"""
[job]
name = "test"
rounds = {ROUNDS}
engine = "network"
min_sites = 1
round_timeout = "1h"
[model]
name = "{model}"
max_length = 32
[data]
columns = {{ text = "note" }}
[lora]
r = 8
alpha = 16
[privacy]
epsilon = 6.0
delta = 1e-3
sample_rate = 0.3
max_records_per_unit = 1
[optimizer]
lr = 1e-2
[evaluation]
data = "held-out.jsonl"
every = 100
[server]
address = "localhost:{free_port()}"
wait = "1h"
{tables}"""
    )
    if "provision" not in {command.name for command in app.registered_commands}:
        app.command("provision")(provision)
    made = CliRunner().invoke(app, ["provision", str(folder / "federation.toml")])
    assert made.exit_code == 0, made.output
    digest = digest_of(str(model))
    for index in range(3):
        enrolment = folder / "pki" / "enrolments" / f"site-{index}"
        rows = [{"note": note(100 * index + i)} for i in range(UNITS)]
        (enrolment / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        text = (enrolment / "site.toml").read_text()
        # Disk space is held for as many, and temporary folders may be in memory.
        text = text.replace("[allow]\n", "[allow]\nmax_trainable = 1_000_000\n")
        text = text.replace("[site]\n", "[site]\npreparation = 1\n")  # seconds, for few records
        for key, value in {
            "path": '"notes.jsonl"',
            "size": str(UNITS),
            "epsilon": "20.0",
            "per_job": "6.0",
            "model_digest": f'"{digest}"',
        }.items():
            lines = text.splitlines()
            at = next(i for i, line in enumerate(lines) if line.startswith(f"#! {key} "))
            lines[at] = f"{key} = {value}"
            text = "\n".join(lines) + "\n"
        text = "\n".join(
            f'model = "{model}"' if line.startswith(("model =", "#! model ")) else line
            for line in text.splitlines()
        )
        (enrolment / "site.toml").write_text(text + "\n")
    return folder


@pytest.fixture
def federation(origin: Path, tmp_path: Path, context: Any) -> Iterator[Federation]:
    folder = tmp_path / "federation"
    shutil.copytree(origin, folder)
    made = Federation(folder, context)
    for index in range(3):
        made.init(index)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def expected(
    origin: Path, tmp_path_factory: pytest.TempPathFactory, context: Any
) -> tuple[float, float, float, int]:
    """The totals of a site whose job went without a fault."""
    folder = tmp_path_factory.mktemp("reference") / "federation"
    shutil.copytree(origin, folder)
    reference = Federation(folder, context)
    reference.init(0)
    reference.only(1, needed=1)
    server = reference.server()
    reference.client(0)
    reference.finish(server)
    return reference.totals(0)
