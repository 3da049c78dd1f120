"""The ledger, the accountant and the command line must not pay for torch."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_package_is_light() -> None:
    heavy = "{'torch', 'transformers', 'datasets', 'pyarrow'}"
    code = f"import sys, fedpriv.data; sys.exit(str({heavy} & set(sys.modules) or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
