"""Run the tests that compare floats as other processors would compute them.

    scripts/test --processors [--quick] [further arguments of pytest]

No machine can be another one. But libraries can be told to leave out instructions that this machine
has, and `tests/arithmetic.py` adds the terms of every product in another order. With --quick, only
some tests run, once, without vectors and with sums in another order. They are the tests with
measured tolerances, and those that hold laws about bits.
"""

from __future__ import annotations

import ast
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
LONG = "vectors of 256 bits, where there are longer ones"
PROCESSORS: dict[str, dict[str, str]] = {
    "this one": {},
    "no vectors": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OPENBLAS_CORETYPE": "Nehalem",
    },
    LONG: {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_CBWR": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
    "two threads": {"OMP_NUM_THREADS": "2"},
    # MKL counts at most as many threads as there are cores, and torch takes its count from MKL.
    "eight threads": {
        "MKL_DYNAMIC": "FALSE",
        "MKL_NUM_THREADS": "8",
        "OMP_NUM_THREADS": "8",
        "OMP_WAIT_POLICY": "PASSIVE",
    },
    "sums in another order": {"FEDPRIV_TEST_PERMUTED": "2"},
    "and in a third": {"FEDPRIV_TEST_PERMUTED": "3"},
}
QUICK = {
    "no vectors, sums in another order": PROCESSORS["no vectors"]
    | PROCESSORS["sums in another order"]
}
# Laws about bits: batch invariance and strict numerics.
BITS = (
    "test_a_row_has_the_same_bits_in_any_company",
    "test_replacing_one_record_leaves_every_other_row_bit_equal",
    "test_in_strict_numerics_a_unit_adds_the_same_integers_whatever_else_is_sampled",
    "test_a_unit_adds_the_same_integers_whatever_else_is_sampled",
)
COMPARED = re.compile(r"\bRounded\(|allclose|\bapprox\(|(torch\.|np\.array_)equal|abs\(\)\.max\(\)")


def chosen(quick: bool) -> dict[Path, list[str]]:
    """Return the tests that compare floats which torch or numpy computed, by their files."""
    found = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        tests = {
            node.name: ast.get_source_segment(text, node) or ""
            for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        }
        names = [name for name, body in tests.items() if name in BITS or "Rounded(" in body]
        if not quick and "torch" in text and COMPARED.search(text):
            names = [*tests]
        if names:
            found[path.relative_to(ROOT)] = names
    return found


def main(arguments: list[str]) -> int:
    quick = arguments[:1] == ["--quick"]
    tests = chosen(quick)
    processors = QUICK if quick else PROCESSORS
    kinds = [*processors]
    if "avx512f" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        kinds = [kind for kind in kinds if kind != LONG]  # this machine has no longer ones
    command = [sys.executable, "-m", "pytest", "-q", *arguments[quick:], *map(str, tests)]
    if quick:
        command += ["-k", " or ".join(name for names in tests.values() for name in names)]
    said, failed = [], False
    for kind in kinds:
        print(f"{kind}: {processors[kind]}", flush=True)
        before = _processor_time()
        done = subprocess.run(command, cwd=ROOT, env=os.environ | processors[kind])
        outcome = "failed" if done.returncode else "passed"
        said.append(f"{outcome}, {_processor_time() - before:4.0f} CPU s: {kind}")
        failed |= bool(done.returncode)
    print(*said, sep="\n")
    return int(failed)


def _processor_time() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
