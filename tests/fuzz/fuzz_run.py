"""One case after the other, and what came of it."""

from __future__ import annotations

import hashlib
import resource
import shutil
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from fedpriv.errors import FedprivError
from tests.fuzz.fuzz_target import Target

SLOW = 2.0  # processor seconds of a case, whatever else the machine does
GREEDY = 256 << 20  # bytes by which a case may raise the highest memory so far
ROOM = 6 << 30  # bytes of addresses beyond what the process has: what asks for more fails


@dataclass
class Finding:
    """An input that did something else than be accepted or refused by name.

    Attributes:
        kind: of the exception, or slow or greedy.
        place: where it came from; findings of one kind and place are one.
    """

    target: str
    kind: str
    place: str
    data: bytes
    text: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.target, self.kind, self.place

    @property
    def file_name(self) -> str:
        return f"{self.kind}-{hashlib.sha256(self.data).hexdigest()[:10]}".lower()


@dataclass
class Tally:
    """What came of the cases of a target."""

    cases: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    findings: dict[tuple[str, str, str], Finding] = field(default_factory=dict)


class Runner:
    """Runs cases of one target in a folder of its own, and counts.

    Args:
        folder: for what a case writes.
    """

    def __init__(self, target: Target, folder: Path) -> None:
        self.target, self.tally = target, Tally()
        self.folder = folder

    def case(self, data: bytes) -> Finding | None:
        """Run one; gives what was found, if that is new."""
        tally, before = self.tally, _memory()
        found, taken = self._attempt(data)
        grown = _memory() - before
        if found is None and taken > SLOW:
            found = "slow", "", f"{taken:.1f} s"
        if found is None and grown > GREEDY:
            found = "greedy", "", f"{grown >> 20} MiB"
        tally.cases += 1
        tally.seconds += taken
        if found is None:
            return None
        finding = Finding(self.target.name, found[0], found[1], data, found[2])
        known = tally.findings.get(finding.key)
        if known is None or len(data) < len(known.data):
            tally.findings[finding.key] = finding
        return finding if known is None else None

    def _attempt(self, data: bytes) -> tuple[tuple[str, str, str] | None, float]:
        """What was found, as kind, place and text; and processor seconds."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        began, found = time.process_time(), None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                warnings.filterwarnings("error", category=RuntimeWarning, module="fedpriv")
                self.target.run(data, self.folder)
            self.tally.accepted += 1
        except FedprivError as error:
            self.tally.refused[type(error).__name__] += 1
            if not str(error):
                found = "speechless", type(error).__name__, "no message"
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of a library in Rust is no Exception
            found = type(error).__name__, _place(error), traceback.format_exc()
        return found, time.process_time() - began

    def random_cases(self, cases: int, seed: object, corpus: Mapping[str, bytes]) -> None:
        """So many mutations, and mutations of mutations: mostly of seeds, as they get further."""
        random = Random(f"{self.target.name} {seed}")
        known = list(corpus.values())
        seeds = [data for name, data in corpus.items() if name.startswith("seed-")]
        for _ in range(cases):
            data = random.choice(seeds if random.random() < 0.8 else known)
            for _ in range(random.choice((1, 1, 2, 3))):
                data = self.target.mutate(data, random)
            self.case(data)

    def shrink(self, finding: Finding, tries: int = 3000) -> bytes:
        """An input that is shorter, and finds the same."""
        data, size = finding.data, len(finding.data) // 2
        trial = Runner(self.target, self.folder)
        while size and tries:
            at = 0
            while at < len(data) and tries:
                shorter, tries = data[:at] + data[at + size :], tries - 1
                trial.tally.findings.clear()
                trial.case(shorter)
                if finding.key in trial.tally.findings:
                    data = shorter
                else:
                    at += size
            size //= 2
        return data


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _place(error: BaseException) -> str:
    """The last frame of ours, and the last of all."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "fedpriv" in frame.filename.rpartition("/tests/")[2]]
    deep = isinstance(error, RecursionError | MemoryError)  # which may end anywhere
    shown = ours[-1:] if deep and ours else [*ours[-1:], *frames[-1:]]
    return " < ".join(f"{Path(frame.filename).name}:{frame.name}" for frame in shown)


@contextmanager
def bounded_memory() -> Iterator[None]:
    """A size that somebody only claims makes a MemoryError, not a machine that swaps."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def workplace() -> Iterator[Callable[[Target], Runner]]:
    """Makes runners whose files are in memory where there is such a place, and gone afterwards."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory) as made,
        bounded_memory(),
    ):
        before, tempfile.tempdir = tempfile.tempdir, made
        try:
            yield lambda target: Runner(target, Path(made) / target.name)
        finally:
            tempfile.tempdir = before
