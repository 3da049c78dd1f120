"""Whatever is read is accepted, or refused by name; `scripts/fuzz` looks for more, and longer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from fedpriv.config import load
from fedpriv.errors import ConfigError, FedprivError
from tests.example_counts import new_seeds
from tests.fuzz import fuzz_run
from tests.fuzz.fuzz_all import CORPUS, TARGETS, corpus, shares
from tests.fuzz.fuzz_mutate import mutate_bytes
from tests.fuzz.fuzz_run import Runner, workplace
from tests.fuzz.fuzz_target import Target

QUICK, LONG = 6_000, 20_000  # cases in all, the same each time
MILLISECONDS = 15_000  # in all, with cases that are new each time
EACH = pytest.mark.parametrize("name", TARGETS)


@pytest.fixture(scope="module")
def make() -> Iterator[Callable[[Target], Runner]]:
    with workplace() as made:
        yield made


def told(runner: Runner) -> str:
    found = runner.tally.findings.values()
    return "\n".join(
        f"{one.kind} at {one.place} of {one.data[:500]!r}\n{one.text}" for one in found
    )


@EACH
def test_kept_inputs_are_accepted_or_refused_by_name(
    name: str, make: Callable[..., Runner]
) -> None:
    """The seeds, and what was found once."""
    runner = make(TARGETS[name])
    for data in corpus(name).values():
        runner.case(data)
    assert not told(runner)


@EACH
def test_seeds_get_past_the_door(name: str, make: Callable[..., Runner]) -> None:
    """Those that are kept, and those that this version makes: else nothing behind is fuzzed."""
    kept = {key: data for key, data in corpus(name).items() if key.startswith("seed-")}
    made = TARGETS[name].seeds()
    assert kept.keys() == {f"seed-{key}" for key in made}
    for seeds in (kept.values(), made.values()):
        runner = make(TARGETS[name])
        for data in seeds:
            runner.case(data)
        assert 2 * runner.tally.accepted >= len(seeds), runner.tally.refused


@pytest.mark.slow
@EACH
def test_mutations_are_accepted_or_refused_by_name(name: str, make: Callable[..., Runner]) -> None:
    runner = make(TARGETS[name])
    runner.random_cases(shares(QUICK, list(TARGETS))[name], "tests", corpus(name))
    assert not told(runner)


@pytest.mark.slow
@EACH
def test_mutations_of_a_new_seed(name: str, make: Callable[..., Runner]) -> None:
    runner = make(TARGETS[name])
    for seed in new_seeds(shares(MILLISECONDS, list(TARGETS))[name] / 1000):
        runner.random_cases(20, seed, corpus(name))
        assert not told(runner)


@pytest.mark.nightly
@EACH
def test_many_more_mutations(name: str, make: Callable[..., Runner]) -> None:
    runner = make(TARGETS[name])
    runner.random_cases(shares(LONG, list(TARGETS))[name], "slow", corpus(name))
    assert not told(runner)


def test_the_corpus_is_small() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == set(TARGETS)
    assert sum(path.stat().st_size for path in files) < 200_000


def planted(data: bytes, folder: Path) -> None:
    """A reader with faults."""
    if b"panic" in data:
        raise KeyError(data)
    if b"slow" in data:
        until = time.process_time() + 0.05
        while time.process_time() < until:
            pass
    if b"mute" in data:
        raise FedprivError("")
    if data:
        raise ConfigError("is no input", value=data)


PLANTED = Target("planted", planted, dict, mutate_bytes)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", None),
        (b"x", None),
        (b"so slow", "slow"),
        (b"a panic here", "KeyError"),
        (b"mute", "speechless"),
    ],
)
def test_every_kind_of_fault_is_found(
    data: bytes, kind: str | None, make: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_run, "SLOW", 0.02)
    finding = make(PLANTED).case(data)
    assert (finding.kind if finding else None) == kind


def test_who_takes_too_much_memory_is_found(
    make: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_run, "_memory", iter((0, 1 << 30)).__next__)
    finding = make(PLANTED).case(b"x")
    assert finding is not None and finding.kind == "greedy"


def test_what_is_found_is_shrunk(make: Callable[..., Runner]) -> None:
    runner = make(PLANTED)
    finding = runner.case(b"x" * 1000 + b"panic" + b"y" * 1000)
    assert finding is not None and runner.shrink(finding) == b"panic"


def test_the_same_seed_makes_the_same_cases() -> None:
    for name, target in TARGETS.items():
        for data in corpus(name).values():
            one, other = (target.mutate(data, Random(3)) for _ in range(2))
            assert one == other


@pytest.mark.parametrize(
    ("name", "module", "function", "broken"),
    [
        ("federation", load, "_toml", load.tomllib.loads),
        ("overrides", load, "_toml", load.tomllib.loads),
    ],
)
def test_the_corpus_remembers(
    name: str,
    module: object,
    function: str,
    broken: object,
    make: Callable[..., Runner],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a check that was made for something that was found, it is found again."""
    monkeypatch.setattr(module, function, broken)
    runner = make(TARGETS[name])
    for data in corpus(name).values():
        runner.case(data)
    assert runner.tally.findings
