"""One target under atheris: mutations that reach code which none before reached are kept.

libFuzzer has the process for itself and never gives it back, so this is a program of its own:
`fuzz_main` starts it. Modules have to be instrumented when they are imported, so what is fuzzed
is imported here alone.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random

import atheris

INSTRUMENTED = ["fedpriv", "fedpriv_client", "fedpriv_server", "fedpriv_strategies", "tomllib"]


def main(name: str, cases: int, seed: int, result: Path) -> None:
    """Run so many cases of a target, and pickle what came of them into `result`."""
    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzz.fuzz_all import CORPUS, TARGETS, corpus
        from tests.fuzz.fuzz_run import workplace
    target = TARGETS[name]
    with workplace() as make, tempfile.TemporaryDirectory() as found:
        runner = make(target)

        def one(data: bytes) -> None:
            runner.case(data)
            if runner.tally.cases >= cases:
                result.write_bytes(pickle.dumps(runner.tally))
                shutil.rmtree(runner.folder.parent, ignore_errors=True)  # with all that is in it
                os._exit(0)

        seeds = [data for key, data in corpus(name).items() if key.startswith("seed-")]

        def mutate(data: bytes, largest: int, number: int) -> bytes:
            """Half the time of a seed: most of what reaches new code is refused at the door."""
            random = Random(number)
            if random.random() < 0.5:
                data = target.mutate(random.choice(seeds), random)
            return target.mutate(data, random)[:largest]

        atheris.Setup(
            [
                *("fuzz", f"-seed={seed + 1}", "-max_len=32768", "-len_control=0", "-timeout=600"),
                *("-rss_limit_mb=0", "-print_final_stats=0", "-verbosity=0"),
                *(found, str(CORPUS / name)),
            ],
            one,
            custom_mutator=mutate,
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
