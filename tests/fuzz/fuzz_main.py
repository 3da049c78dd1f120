"""Fuzz what reads files and messages: `scripts/fuzz [TARGET …] [--cases N] [--seed S]`.

An input is accepted, or refused with an error of `fedpriv.errors`. Anything else is a finding:
another exception, an invariant of something accepted that does not hold, more than two seconds,
more than a quarter of a gigabyte. Findings are shrunk and shown; `--keep` puts them into
`tests/fuzz/corpus`, which every run begins with and the tests replay. Exit code 1 if there are any.

`--guided` (with `pip install '.[fuzz]'`) keeps what reaches new code, by atheris.
"""

from __future__ import annotations

import argparse
import logging
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

from fedpriv.environment import set_environment

set_environment()
os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is asked of anybody

from tests.fuzz.fuzz_all import CORPUS, TARGETS, corpus, shares, write_seeds  # noqa: E402
from tests.fuzz.fuzz_run import Runner, Tally, workplace  # noqa: E402


def main() -> int:
    options = _options()
    logging.disable(logging.WARNING)  # a server tells of every refusal
    if options.write_seeds:
        write_seeds()
        return 0
    names = options.targets or list(TARGETS)
    cases, found = shares(options.cases, names), 0
    with workplace() as make:
        for name in names:
            runner = make(TARGETS[name])
            if options.guided:
                runner.tally = _guided(name, cases[name], options.seed)
            else:
                kept = corpus(name)
                for data in kept.values():
                    runner.case(data)
                runner.random_cases(cases[name], options.seed, kept)
            _show(name, runner.tally)
            _tell(runner, keep=options.keep)
            found += len(runner.tally.findings)
    return 1 if found else 0


def _options() -> argparse.Namespace:
    summary = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary[0],
        epilog=summary[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--cases", type=int, default=10_000, help="in all, shared out by weight")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--guided", action="store_true", help="by coverage, with atheris")
    parser.add_argument("--keep", action="store_true", help="put what is found into the corpus")
    parser.add_argument("--write-seeds", action="store_true", help="make the seeds anew")
    options = parser.parse_args()
    for name in options.targets:
        if name not in TARGETS:
            parser.error(f"{name!r} is no target; there are {', '.join(TARGETS)}")
    return options


def _guided(name: str, cases: int, seed: int) -> Tally:
    with tempfile.NamedTemporaryFile() as result:
        module = [sys.executable, "-m", "tests.fuzz.fuzz_guided"]
        command = [*module, name, str(cases), str(seed), result.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name}: the fuzzer itself failed.\n{done.stderr[-4000:]}")
        tally: Tally = pickle.loads(Path(result.name).read_bytes())
        return tally


def _show(name: str, tally: Tally) -> None:
    refused = ", ".join(f"{kind} {count}" for kind, count in tally.refused.most_common())
    print(
        f"{name:11} {tally.cases:7} cases, {tally.accepted:6} accepted, {tally.seconds:6.1f} s;"
        f" {refused or 'none refused'}",
        flush=True,
    )


def _tell(runner: Runner, *, keep: bool) -> None:
    for finding in runner.tally.findings.values():
        finding.data = runner.shrink(finding)
        print(f"  {finding.kind} at {finding.place}: {finding.data[:300]!r}")
        print("    " + "\n    ".join(finding.text.strip().splitlines()[-6:]), flush=True)
        if keep:
            folder = CORPUS / finding.target
            folder.mkdir(parents=True, exist_ok=True)
            (folder / finding.file_name).write_bytes(finding.data)


if __name__ == "__main__":
    sys.exit(main())
