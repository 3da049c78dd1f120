"""The pages for who comes from opacus, Flower or NVFlare: their code runs where it is to run."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict

from fedpriv.arguments import NAMES_OF_OPACUS
from fedpriv.environment import set_environment
from fedpriv.errors import SlotError
from fedpriv.privacy.ledger.ledger import Ledger, Terms
from fedpriv.privacy.ledger.rules import RdpRule
from fedpriv_simulation.inline import set_identity
from tests.waiting import free_port, wait_until

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PAGES = ("from-opacus", "from-flower", "from-nvflare")
CODE = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
Make = Callable[..., Any]

# What a reader's own module is: a tiny model, and two sites with a ledger each.
HOSPITAL = """
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path({here!r})


def load_model():
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained({model!r}, dtype="float32")
    lora = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    return get_peft_model(base, lora), AutoTokenizer.from_pretrained({model!r})


def records_and_ledger(who):
    number = who[-1] if isinstance(who, str) else str(int(who.node_config["partition-id"]) + 1)
    rows = [{{"text": f"{{number}} has fever {{i}}"}} for i in range(20)]
    return rows, HERE / number / "ledger.db"
"""
# Of a step that is quick on few records: one by one, without trials.
LITTLE = {
    r'"batch": 50, "steps": 30, "clip_norm": 0.1': '"batch": 6, "steps": 3, "clip_norm": 0.1,'
    ' "max_length": 32, "max_records_per_unit": 1, "numerics": "strict"',
    r"num_rounds=30": "num_rounds=2",
}


def code_of(page: str, changes: Mapping[str, str]) -> dict[str, str]:
    """The blocks of a page by their first line, with every change made in at least one."""
    whole = "\0".join(CODE.findall((ROOT / f"docs/how-to/{page}.md").read_text()))
    for before, after in changes.items():
        whole, count = re.subn(re.escape(before), lambda _, after=after: after, whole)
        assert count, before
    return {block.partition("\n")[0].lstrip("# "): block for block in whole.split("\0")}


def ledger(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    terms = Terms(path.parent.name.rjust(32, "0"), 24, "record", 1, 1e-3, 20.0, simulated=False,
                  rule=RdpRule(8))  # fmt: skip
    Ledger.create(path, terms).close()
    return path


def slots(path: Path) -> list[tuple[int, bool]]:
    with Ledger.open(path, reading=True) as found:
        return found.slots("notes")


@pytest.fixture
def hospital(tmp_path: Path, model_folder: Make) -> Path:
    """A folder with the reader's module and two sites."""
    for number in ("1", "2"):
        ledger(tmp_path / number / "ledger.db")
    model = str(model_folder("llama"))
    (tmp_path / "hospital.py").write_text(HOSPITAL.format(here=str(tmp_path), model=model))
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short_and_begins_with_who_can_read_the_records(page: str) -> None:
    title, first, *_ = (ROOT / f"docs/how-to/{page}.md").read_text().split("\n\n")
    assert title.startswith("# ")
    assert re.match(
        r"The author of an? \w+ can read the records\. The claim covers only what a private step"
        r"\s+releases\.",
        first,
    )
    prose = re.sub(
        r"^```.*?^```$", "", (ROOT / f"docs/how-to/{page}.md").read_text(), flags=re.M | re.S
    )
    assert len(prose.split()) < 600


def test_the_page_on_opacus_has_each_name() -> None:
    page = (ROOT / "docs/how-to/from-opacus.md").read_text()
    told = re.findall(r"^\| `(\w+)` \| (.*?) \|$", page, re.M)
    shown = {k: f"`{v}`" if v.isidentifier() else v for k, v in NAMES_OF_OPACUS.items()}
    assert told == list(shown.items())


@pytest.mark.slow
def test_the_lines_for_who_comes_from_opacus_run(tmp_path: Path) -> None:
    little = {"steps=20": 'steps=2, numerics="strict"', "range(300)": "range(30)"}
    [script] = code_of("from-opacus", little).values()
    done = run(["-c", script], tmp_path)
    assert 0 < float(done.stdout) < 4


def run(words: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


# In an app of Flower


def loaded(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the page, with the reader's own beside it."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "hospital", raising=False)
    spec = importlib.util.spec_from_loader("page", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    exec(compile(text, "page", "exec"), vars(module))
    return module


def asked(arrays: ArrayRecord) -> tuple[Message, Context]:
    set_identity()
    message = Message(RecordDict({"arrays": arrays}), dst_node_id=2, message_type="train")
    message.metadata.__dict__["_message_id"] = "1"
    node = {"partition-id": 0}
    return message, Context(
        run_id=1, node_id=2, node_config=node, state=RecordDict(), run_config={}
    )


def test_an_app_that_steps_twice_in_a_round_uses_two_steps_of_its_plan(
    hospital: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And when they are used up it says why to its own log, and nothing to the server."""
    once = "        step.backward()\n"
    twice = LITTLE | {once: 2 * once}
    module = loaded(code_of("from-flower", twice)["client_app.py"], hospital, monkeypatch)
    from peft import get_peft_model_state_dict

    arrays = ArrayRecord(get_peft_model_state_dict(module.load_model()[0]))
    path = hospital / "1" / "ledger.db"
    reply = module.app(*asked(arrays))
    assert slots(path) == [(0, True), (1, True)]
    assert set(reply.content) == {"arrays", "metrics"}
    assert dict(reply.content["metrics"]) == {"num-examples": 1}
    with pytest.raises(RuntimeError, match=r"^no step was taken$") as found:
        module.app(*asked(reply.content["arrays"]))
    assert isinstance(found.value.__cause__, SlotError)
    assert slots(path) == [(0, True), (1, True), (2, True)]


@pytest.fixture
def flower(tmp_path: Path) -> Iterator[dict[str, str]]:
    """What Flower finds in its environment: a home of its own, and no calls home."""
    set_environment()
    home = tmp_path / "flower"
    home.mkdir()
    yield {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_ADDRESS": "local",
        "RAY_worker_niceness": "0",  # or a busy machine has no time for them
        "UV_OFFLINE": "1",
    }


SIMULATION = """
from flwr.simulation import run_simulation
from client_app import app as client
from server_app import app as server

config = {"client_resources": {"num_cpus": 2}}
run_simulation(server, client, num_supernodes=2, backend_config=config)
"""


@pytest.mark.nightly
def test_a_private_step_in_a_simulation_of_flower(hospital: Path, flower: dict[str, str]) -> None:
    blocks = code_of("from-flower", LITTLE)
    for name in ("client_app.py", "server_app.py"):
        (hospital / name).write_text(blocks[name])
    run(["-c", SIMULATION], hospital, PYTHONPATH=str(hospital), **flower)
    for number in ("1", "2"):
        assert slots(hospital / number / "ledger.db") == [(0, True), (1, True)]
    assert torch.load(hospital / "adapter.pt")


PROJECT = """
[project]
name = "notes"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "us"
[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"
"""


@contextmanager
def superlink(folder: Path, nodes: list[str], flower: dict[str, str]) -> Iterator[None]:
    """A SuperLink that `flwr run … here` finds, and SuperNodes with these node configs."""
    port, environment = free_port(), os.environ | flower
    address = f"127.0.0.1:{port}"
    (Path(flower["FLWR_HOME"]) / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    )
    link = ["flower-superlink", "--insecure", "--port", str(port)]
    commands = [[*link, "--disable-runtime-dependency-installation"]]
    for node in nodes:
        own = ["--port", str(free_port()), "--node-config", node]
        commands.append(["flower-supernode", "--insecure", "--superlink", address, *own])
    with ExitStack() as stack:
        for number, (program, *words) in enumerate(commands):
            log = stack.enter_context((folder / f"{number}.log").open("w"))
            process = subprocess.Popen(
                [str(BIN / program), *words],
                cwd=folder,
                env=environment | {"FLWR_HOME": f"{flower['FLWR_HOME']}/{number}"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            stack.callback(process.wait)
            stack.callback(os.killpg, process.pid, signal.SIGKILL)  # and what it has started
            if not number:
                wait_until(lambda: "Uvicorn running" in (folder / "0.log").read_text())
        yield


@pytest.mark.slow
def test_a_private_step_with_a_superlink_and_supernodes(
    hospital: Path, flower: dict[str, str]
) -> None:
    out = hospital / "adapter.pt"
    blocks = code_of("from-flower", LITTLE | {'"adapter.pt"': f'"{out}"'})
    bundle(hospital / "app", blocks["client_app.py"], blocks["server_app.py"])
    (hospital / "app" / "hospital.py").write_text((hospital / "hospital.py").read_text())
    with superlink(hospital, ["partition-id=0", "partition-id=1"], flower):
        stream(hospital / "app", flower, out)
    for number in ("1", "2"):
        assert slots(hospital / number / "ledger.db") == [(0, True), (1, True)]


def bundle(folder: Path, client: str, server: str) -> None:
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "client_app.py").write_text(client)
    (folder / "server_app.py").write_text(server)


def stream(app: Path, flower: dict[str, str], made: Path) -> None:
    """`flwr run` of an app, to its end, and what it is to make."""
    done = subprocess.run(
        [str(BIN / "flwr"), "run", str(app), "here", "--stream"],
        env=os.environ | flower,
        capture_output=True,
        text=True,
    )
    logs = "".join(log.read_text() for log in sorted(app.parent.glob("?.log")))
    assert done.returncode == 0 and made.exists(), done.stdout + done.stderr + logs
    assert torch.load(made)


# Between receive and send of NVFlare


class StandIn(ModuleType):
    """The four calls of `nvflare.client` that the page uses; what is sent is received next."""

    def __init__(self, rounds: int, start: Any) -> None:
        super().__init__("nvflare.client")
        self._left, self.sent = rounds, [start]
        self.FLModel = SimpleNamespace

    def init(self) -> None:
        """There is nothing to be done."""

    def get_site_name(self) -> str:
        return "site-1"

    def is_running(self) -> bool:
        return self._left > 0

    def receive(self) -> SimpleNamespace:
        return SimpleNamespace(params={"numpy_key": self.sent[-1]})

    def send(self, model: SimpleNamespace) -> None:
        self._left -= 1
        self.sent.append(model.params["numpy_key"].copy())


def test_the_lines_between_receive_and_send(
    hospital: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flare = StandIn(2, np.full(256, 0.01, dtype=np.float32))
    package = ModuleType("nvflare")
    package.client = flare  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nvflare", package)
    monkeypatch.setitem(sys.modules, "nvflare.client", flare)
    loaded(code_of("from-nvflare", LITTLE)["client.py"], hospital, monkeypatch)
    assert slots(hospital / "1" / "ledger.db") == [(0, True), (1, True)]
    first, second, third = flare.sent
    assert first.shape == second.shape == third.shape
    assert not np.array_equal(first, second) and not np.array_equal(second, third)


@pytest.mark.slow
def test_the_lines_run_in_the_simulator_of_nvflare(hospital: Path) -> None:
    if importlib.util.find_spec("nvflare") is None:
        pytest.skip("NVFlare is not installed: pip install nvflare==2.9.0")
    blocks = code_of("from-nvflare", LITTLE)
    for name in ("client.py", "job.py"):
        (hospital / name).write_text(blocks[name])
    run(["job.py"], hospital, PYTHONPATH=str(hospital))
    for number in ("1", "2"):
        assert slots(hospital / number / "ledger.db") == [(0, True), (1, True)]
    assert list(hospital.glob("workspace/**/server.npy"))
