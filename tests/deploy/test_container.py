"""The images: what they are made from, whom they run as, and that the locks fit the project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from dockerfile import FILE, ROOT, chain, entry_point, last, stages
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import fedpriv

FOLDER = FILE.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TARGETS = ("server", "client")
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
    ("name", "needed"),
    [
        ("cpu", PROJECT["project"]["dependencies"]),
        ("cuda", PROJECT["project"]["dependencies"]),
        ("build", PROJECT["build-system"]["requires"]),
    ],
)
def test_a_lock_has_what_the_project_needs(name: str, needed: list[str]) -> None:
    pins = locked(name)
    for requirement in map(Requirement, needed):
        if requirement.marker is None or requirement.marker.evaluate(ENVIRONMENT):
            pinned = pins[canonicalize_name(requirement.name)]
            assert pinned in requirement.specifier, requirement
    assert not [package for package, version in pins.items() if version.is_prerelease]


def test_the_variants_differ_in_torch_alone() -> None:
    cpu, cuda = locked("cpu"), locked("cuda")
    assert {package for package in cpu.keys() ^ cuda.keys() if not CUDA.match(package)} == set()
    assert {package for package in cpu if cpu[package] != cuda[package]} == {"torch"}
    assert str(cpu["torch"]) == f"{cuda['torch']}+cpu"
    assert any(package.startswith("nvidia-") for package in cuda)


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
    assert command in PROJECT["project"]["scripts"]
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


def test_everything_is_installed_by_hash() -> None:
    """From an index by its hashes alone; what has no hash is what was built here."""
    commands = [
        command
        for text in stages()["build"].all("RUN")
        for command in re.split(r" && | --mount=\S+ ", text)
    ]
    installs = [
        command for command in commands if re.search(r"\bpip\b.* (install|wheel) ", command)
    ]
    assert len(installs) == 4
    for command in installs:
        assert "--require-hashes" in command or "--no-deps --no-index" in command, command


def test_nothing_but_the_product_goes_into_an_image() -> None:
    """What the build copies is what the ignore file lets through, and it is all there."""
    lines = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {line.removeprefix("!") for line in rules if line.startswith("!")}
    copied: set[str] = set()
    for text in stages()["build"].all("COPY"):
        copied |= {re.sub(r"\$\{VARIANT\}|build(?=\.txt)", "*", word) for word in text.split()[:-1]}
    assert copied == allowed
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {Path(package).parts[0] for package in packages} <= copied
    assert {*PROJECT["project"]["license-files"], PROJECT["project"]["readme"]} <= copied
    assert all(any(ROOT.glob(name)) for name in allowed)
