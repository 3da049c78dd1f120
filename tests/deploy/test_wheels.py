"""The distributions of a part each: it has all that it runs, and nothing of another part."""

from __future__ import annotations

import ast
import configparser
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedpriv import distribution
from fedpriv.software import software

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
# What a distribution is imported as, where that is not its name.
IMPORTED = {
    "grpcio": "grpc",
    "grpcio_health_checking": "grpc_health",
    "mlflow_skinny": "mlflow",
    "uvicorn": "uvicorn",
    "psycopg": "psycopg",
}
# Comes with a distribution that is declared.
BROUGHT = {
    "huggingface_hub": "transformers",
    "markupsafe": "jinja2",
    "starlette": "fastapi",
    "jax": "",
    "flax": "",
}
EVERY = """
import importlib, sys
from importlib import metadata
from pathlib import Path
root, *unwanted = sys.argv[1:]
[own] = metadata.distributions(path=[root])
metadata.entry_points = own.entry_points.select  # not those of the whole, which is installed here
of_name = metadata.Distribution.from_name
metadata.Distribution.from_name = lambda name: of_name("no-such" if name == "fedpriv" else name)
for path in sorted(Path(root).glob("fedpriv*/**/*.py")):
    module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    importlib.import_module(module)
import fedpriv
assert Path(fedpriv.__file__).is_relative_to(root), fedpriv.__file__
print(*sorted({*unwanted} & sys.modules.keys()))
if "fedpriv.doctor.machine" in sys.modules:  # what asks which versions are here
    sys.modules["fedpriv.doctor.machine"].packages()
    assert sys.modules["fedpriv.kept"]._machine()["fedpriv"] == fedpriv.__version__
"""


@dataclass(frozen=True)
class Part:
    """What a distribution has to be like.

    Attributes:
        folder: of its pyproject.toml.
        packages: in its wheel.
        lacks: of the library.
        unwanted: packages that no module of it imports before it is asked for what they do.
        entry_points: how many.
    """

    folder: str
    packages: set[str]
    lacks: set[str]
    unwanted: set[str]
    entry_points: int


LABORATORY = {"loop"}
PARTS = [
    Part(
        "client",
        {"fedpriv", "fedpriv_client"},
        LABORATORY
        | {"auditing", "cli.py", "dossier", "hub", "recipes", "report/html.py", "assets/clinics"},
        {"matplotlib", "sqlalchemy", "torchmetrics"},
        21,
    ),
    Part(
        "server",
        {"fedpriv", "fedpriv_server", "fedpriv_strategies"},
        LABORATORY | {"commands/ledger.py", "data/fhir.py", "data/omop.py", "personal"},
        {"datasets", "matplotlib", "mlflow", "torchmetrics", "wandb"},
        26,
    ),
    Part(
        "verify",
        {"fedpriv"},
        LABORATORY | {"assets", "gradients", "hub", "personal", "privacy/mechanism", "wire.py"},
        {"torch", "transformers", "peft", "datasets", "pyarrow", "matplotlib", "flwr", "mpmath"},
        5,
    ),
]
COMMANDS = {  # of `fedpriv`, or as `fedpriv-client` has them
    "client": {"__init__", "doctor", "ledger", "roster"},
    "server": {"__init__", "doctor", "dossier", "init", "plan", "report", "roster"},
    "verify": {"__init__", "dossier"},
}


@pytest.fixture(scope="module", params=PARTS, ids=lambda part: part.folder)
def part(request: pytest.FixtureRequest) -> Part:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def unpacked(part: Part, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    pip += ["--no-build-isolation", "--wheel-dir", str(folder), str(ROOT / part.folder)]
    subprocess.run(pip, check=True, capture_output=True)
    [wheel] = folder.glob(f"{project(part.folder)['name'].replace('-', '_')}-*.whl")
    assert [*folder.iterdir()] == [wheel]
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def project(folder: str) -> dict[str, Any]:
    with (ROOT / folder / "pyproject.toml").open("rb") as stream:
        found: dict[str, Any] = tomllib.load(stream)["project"]
    return found


def wanted(folder: str) -> dict[str, str]:
    """The requirements of a distribution and of its extras, by name."""
    found = project(folder)
    every = [*found["dependencies"]]
    for group in found.get("optional-dependencies", {}).values():
        every += group
    return {re.split(r"[\[<>=]", one)[0]: one for one in every}


def run_in(folder: Path, code: str, *arguments: str) -> str:
    """What a process says in which the only fedpriv is the one in a folder."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_has_nothing_of_another_part(part: Part, unpacked: Path) -> None:
    found = {path.name for path in unpacked.iterdir() if "dist-info" not in path.name}
    assert found == part.packages
    assert [name for name in part.lacks if (unpacked / "fedpriv" / name).exists()] == []
    assert [name for name in part.lacks if not (ROOT / "fedpriv" / name).exists()] == []
    commands = {path.stem for path in (unpacked / "fedpriv/commands").iterdir()}
    assert commands == COMMANDS[part.folder]
    [metadata] = unpacked.glob("*.dist-info")
    assert {"LICENSE", "NOTICE"} <= {path.name for path in metadata.rglob("*")}
    weights = unpacked / "fedpriv/assets/base/model.safetensors"
    assert weights.exists() == (part.folder != "verify")


def test_every_module_of_it_can_be_imported(part: Part, unpacked: Path) -> None:
    assert run_in(unpacked, EVERY, str(unpacked), *part.unwanted).split() == []


def test_it_declares_what_it_imports(part: Part, unpacked: Path) -> None:
    names = [name.replace("-", "_") for name in wanted(part.folder)]
    known = {IMPORTED.get(name, name).lower() for name in names} | part.packages
    if part.folder == "verify":
        known.add("torch")  # in fedpriv/environment.py, for whoever loads a model
    used = set()
    for path in unpacked.glob("fedpriv*/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                used.add(str(node.module).partition(".")[0])
            elif isinstance(node, ast.Import):
                used.update(name.name.partition(".")[0] for name in node.names)
    used -= set(sys.stdlib_module_names) | BROUGHT.keys()
    assert used <= known, used - known


def test_it_has_the_versions_that_the_whole_has(part: Part) -> None:
    """One repository, one version of everything."""
    whole = wanted(".")
    for name, one in wanted(part.folder).items():
        assert one.partition(">")[2] == whole[name].partition(">")[2], name


def test_its_entry_points_are_in_it_and_are_those_of_the_whole(part: Part, unpacked: Path) -> None:
    [file] = unpacked.glob("*.dist-info/entry_points.txt")
    parser, whole = configparser.ConfigParser(), project(".")
    parser.read(file)
    named = {"console_scripts": whole["scripts"], **whole["entry-points"]}
    targets = []
    for section in parser.sections():
        assert parser[section].items() <= {k.lower(): v for k, v in named[section].items()}.items()
        targets += parser[section].values()
    assert len(targets) == part.entry_points
    for target in targets:
        module = target.partition(":")[0].replace(".", "/")
        assert any((unpacked / f"{module}{end}").exists() for end in (".py", "/__init__.py"))


def test_it_is_the_same_fedpriv_for_a_dossier(part: Part, unpacked: Path) -> None:
    """Or a page made by one part would count as made by a stranger's fedpriv at another."""
    assert project(part.folder)["name"] in distribution.NAMES
    if part.folder == "client":
        assert not (unpacked / "fedpriv/software.py").exists()
        return
    code = "from fedpriv.software import software; print(software()['fedpriv'].digest)"
    here = software()["fedpriv"].digest
    assert run_in(unpacked, code).strip() == here
    changed = unpacked / "fedpriv/software.py"
    before = changed.read_bytes()
    changed.write_bytes(before + b"\n")
    try:
        assert run_in(unpacked, code).strip() != here
    finally:
        changed.write_bytes(before)
