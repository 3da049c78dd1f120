"""The images: what they are made from, whom they run as, and that the locks fit the project."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import fedpriv
from tests.deploy.dockerfile import FILE, ROOT, chain, entry_point, last, stages

FOLDER = FILE.parent
PROJECTS = {
    folder: tomllib.loads((ROOT / folder / "pyproject.toml").read_text())
    for folder in (".", "client", "server")
}
PROJECT = PROJECTS["."]
TARGETS = ("server", "client")
VARIANTS = ("cpu", "cuda")
CUDA = re.compile(r"nvidia-|cuda-|triton$")  # packages of that variant alone
ENVIRONMENT = {
    "python_version": "3.11",
    "python_full_version": "3.11.16",
    "sys_platform": "linux",
    "platform_machine": "x86_64",
    "platform_system": "Linux",
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}


def locked(name: str) -> dict[str, Version]:
    """The pins of a lock; every one of them exact and with a hash, and nothing else in the file."""
    text = (FOLDER / f"requirements-{name}.txt").read_text(encoding="utf-8")
    entry = re.compile(r"([a-z0-9.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")
    assert (
        not entry.sub("", text)
        .replace("\n", "")
        .removeprefix(
            "# Written by deploy/container/lock, for Python 3.11 on Linux x86_64; don't edit."
        )
    )
    pins = entry.findall(text)
    found = {canonicalize_name(package): Version(version) for package, version, _ in pins}
    assert len(found) == len(pins) > 0
    return found


@pytest.mark.parametrize(
    ("names", "needed"),
    [
        *(
            ((part, variant), PROJECTS[part]["project"]["dependencies"])
            for part in TARGETS
            for variant in VARIANTS
        ),
        (("build",), PROJECT["build-system"]["requires"]),
    ],
)
def test_a_lock_has_what_a_project_needs(names: tuple[str, ...], needed: list[str]) -> None:
    pins = {package: version for name in names for package, version in locked(name).items()}
    for requirement in map(Requirement, needed):
        if requirement.marker is None or requirement.marker.evaluate(ENVIRONMENT):
            pinned = pins[canonicalize_name(requirement.name)]
            assert pinned in requirement.specifier, requirement
    assert not [package for package, version in pins.items() if version.is_prerelease]


def test_the_variants_differ_in_torch_alone() -> None:
    cpu, cuda = locked("cpu"), locked("cuda")
    assert {package for package in cpu.keys() ^ cuda.keys() if not CUDA.match(package)} == set()
    assert {package for package in cpu if cpu[package] != cuda[package]} == {"torch"} == cpu.keys()
    assert str(cpu["torch"]) == f"{cuda['torch']}+cpu"
    assert any(package.startswith("nvidia-") for package in cuda)


def test_the_images_have_the_same_versions_and_a_site_nothing_of_its_own() -> None:
    server, client = locked("server"), locked("client")
    assert client.items() <= server.items()
    assert not {"matplotlib", "pillow", "ray"} & client.keys()
    for variant in VARIANTS:
        assert not server.keys() & locked(variant).keys()


def test_every_image_from_elsewhere_has_a_digest() -> None:
    known = stages()
    elsewhere = {stage.base for stage in known.values()} - known.keys()
    assert elsewhere
    for image in elsewhere:
        assert re.fullmatch(r"[a-z0-9./-]+:[\w.-]+@sha256:[0-9a-f]{64}", image), image
    for stage in known.values():
        for text in stage.all("COPY"):
            for source in re.findall(r"--from=(\S+)", text):
                assert source in known


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_one_command_as_nobody_in_particular(target: str) -> None:
    assert last(target, "USER") == "10001:10001"
    assert last(target, "WORKDIR") == "/fedpriv"
    assert last(target, "STOPSIGNAL") == "SIGTERM"
    (command,) = entry_point(target)
    assert command == f"fedpriv-{target}"
    assert command in PROJECTS[target]["project"]["scripts"]
    installed = " ".join(text for stage in chain(target) for text in stage.all("RUN"))
    assert "pip uninstall" in installed
    assert not re.search(r"pip install|apt|curl|gcc|sudo", installed)


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_says_what_it_is(target: str) -> None:
    labels = dict(
        pair
        for stage in chain(target)
        for text in stage.all("LABEL")
        for pair in re.findall(r'org\.opencontainers\.image\.(\S+?)="([^"]*)"', text)
    )
    assert labels["title"] == f"fedpriv-{target}"
    assert labels["licenses"] == PROJECT["project"]["license"]
    assert f"{labels['base.name']}@{labels['base.digest']}" == chain(target)[0].base
    arguments = [text for stage in chain(target) for text in stage.all("ARG")]
    assert f"VERSION={fedpriv.__version__}" in arguments


@pytest.mark.parametrize("target", TARGETS)
def test_everything_is_installed_by_hash(target: str) -> None:
    """From an index by its hashes alone; what has no hash is what was built here."""
    assert last(target, "COPY") == f"--from=build-{target} /opt/fedpriv /opt/fedpriv"
    commands = [
        command
        for stage in chain(f"build-{target}")
        for text in stage.all("RUN")
        for command in re.split(r" && | --mount=\S+ ", text)
    ]
    installs = [
        command for command in commands if re.search(r"\bpip\b.* (install|wheel) ", command)
    ]
    assert len(installs) == 4
    for command in installs:
        assert "--require-hashes" in command or "--no-deps --no-index" in command, command
    locks = f'--requirement requirements-{target}.txt --requirement "requirements-${{VARIANT}}.txt"'
    assert installs[1].endswith(locks)
    assert installs[2].endswith(f" ./{target}")


@pytest.mark.slow
def test_nothing_but_the_product_goes_into_an_image(tmp_path: Path) -> None:
    """What the build copies is what the ignore file lets through, and makes the wheels alone."""
    lines = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {line.removeprefix("!") for line in rules if line.startswith("!")}
    copied = {word for text in stages()["build"].all("COPY") for word in text.split()[:-1]}
    assert copied == allowed
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {Path(package).parts[0] for package in packages} <= copied
    assert {*PROJECT["project"]["license-files"]} <= copied
    assert all(any(ROOT.glob(name)) for name in allowed)
    for text in stages()["build"].all("COPY"):
        *sources, to = text.split()
        for source in (path for name in sources for path in ROOT.glob(name)):
            place = tmp_path / to / ("" if source.is_dir() else source.name)
            place.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, place)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    pip += ["--no-build-isolation", "--wheel-dir", "dist", "./server", "./client"]
    subprocess.run(pip, cwd=tmp_path, check=True, capture_output=True)
    made = {path.name.partition("-")[0] for path in (tmp_path / "dist").iterdir()}
    assert made == {"fedpriv_coordinator", "fedpriv_site"}
