"""A site's own distribution: it has all that a site runs, and nothing of a server or laboratory."""

from __future__ import annotations

import ast
import configparser
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What a distribution is imported as, where that is not its name.
IMPORTED = {
    "grpcio": "grpc",
    "grpcio_health_checking": "grpc_health",
    "uvicorn": "uvicorn",
    "psycopg": "psycopg",
}
# Comes with a distribution that is declared.
BROUGHT = {"huggingface_hub": "transformers", "starlette": "fastapi", "jax": "", "flax": ""}
EVERY = """
import importlib, sys
from pathlib import Path
root = Path(sys.argv[1])
for path in sorted(root.glob("fedpriv*/**/*.py")):
    module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    importlib.import_module(module)
import fedpriv
assert Path(fedpriv.__file__).is_relative_to(root), fedpriv.__file__
print(*sorted({"matplotlib", "sqlalchemy", "torchmetrics"} & sys.modules.keys()))
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    pip += ["--no-build-isolation", "--wheel-dir", str(folder), str(ROOT / "client")]
    subprocess.run(pip, check=True, capture_output=True)
    [wheel] = folder.glob("fedpriv_site-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_it_has_nothing_of_a_server_or_of_the_laboratory(unpacked: Path) -> None:
    assert {path.name for path in unpacked.iterdir() if "dist-info" not in path.name} == {
        "fedpriv",
        "fedpriv_client",
    }
    rooms = {path.name for path in (unpacked / "fedpriv").iterdir()}
    assert not rooms & {"auditing", "cli.py", "dossier", "forecasting", "hub", "recipes"}
    commands = {path.stem for path in (unpacked / "fedpriv/commands").iterdir()}
    assert commands == {"__init__", "doctor", "ledger"}  # as fedpriv-client has them, too
    assert not (unpacked / "fedpriv/report/html.py").exists()
    assert (unpacked / "fedpriv/assets/base/model.safetensors").stat().st_size > 1e6


def test_every_module_of_it_can_be_imported(unpacked: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    command = [sys.executable, "-c", EVERY, str(unpacked)]
    done = subprocess.run(command, cwd=unpacked, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_it_declares_what_it_imports(unpacked: Path) -> None:
    with (ROOT / "client/pyproject.toml").open("rb") as stream:
        project = tomllib.load(stream)["project"]
    extras = [one for group in project["optional-dependencies"].values() for one in group]
    names = [re.split(r"[\[<>=]", one)[0].replace("-", "_") for one in project["dependencies"]]
    names += [re.split(r"[\[<>=]", one)[0].replace("-", "_") for one in extras]
    known = {IMPORTED.get(name, name).lower() for name in names}
    used = set()
    for path in unpacked.glob("fedpriv*/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                used.add(str(node.module).partition(".")[0])
            elif isinstance(node, ast.Import):
                used.update(name.name.partition(".")[0] for name in node.names)
    used -= set(sys.stdlib_module_names) | {"fedpriv", "fedpriv_client"} | BROUGHT.keys()
    assert used <= known, used - known


def test_it_has_the_versions_that_the_whole_has() -> None:
    """One repository, one version of everything."""
    both = []
    for file in ("pyproject.toml", "client/pyproject.toml"):
        with (ROOT / file).open("rb") as stream:
            project = tomllib.load(stream)["project"]
        wanted = [*project["dependencies"]]
        for group in project["optional-dependencies"].values():
            wanted += group
        both.append({re.split(r"[<>=]", one)[0].partition("[")[0]: one for one in wanted})
    whole, site = both
    for name, one in site.items():
        assert one.partition(">")[2] == whole[name].partition(">")[2], name


def test_its_entry_points_are_in_it(unpacked: Path) -> None:
    [file] = unpacked.glob("*.dist-info/entry_points.txt")
    parser = configparser.ConfigParser()
    parser.read(file)
    targets = [target for section in parser.sections() for target in parser[section].values()]
    assert len(targets) == 19
    for target in targets:
        module = target.partition(":")[0].replace(".", "/")
        assert any((unpacked / f"{module}{end}").exists() for end in (".py", "/__init__.py"))
