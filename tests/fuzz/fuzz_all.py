"""Every target, and what is kept of inputs for it."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz import (
    fuzz_config,
    fuzz_dossier,
    fuzz_files,
    fuzz_ledger,
    fuzz_messages,
    fuzz_network,
    fuzz_pki,
)
from tests.fuzz.fuzz_target import Target

CORPUS = Path(__file__).parent / "corpus"
TARGETS: dict[str, Target] = {
    target.name: target
    for module in (
        *(fuzz_config, fuzz_pki, fuzz_ledger, fuzz_dossier),
        *(fuzz_messages, fuzz_files, fuzz_network),
    )
    for target in module.TARGETS
}


def corpus(name: str) -> dict[str, bytes]:
    """The inputs that are kept for a target, by the names of their files."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / name).iterdir())}


def shares(cases: int, names: list[str]) -> dict[str, int]:
    """So many cases, by the targets' weights, or a few more."""
    whole = sum(TARGETS[name].weight for name in names)
    return {name: -int(-cases * TARGETS[name].weight // whole) for name in names}


def write_seeds() -> None:
    """Make the seeds anew; what was found stays."""
    for name, target in TARGETS.items():
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("seed-*"):
            old.unlink()
        for seed, data in target.seeds().items():
            (folder / f"seed-{seed}").write_bytes(data)
