"""`fedpriv report`: the page of a run, written anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(run: Annotated[Path, typer.Argument(help="Run directory.")]) -> None:
    """Check the signatures of a run's budget reports and write its report.html anew."""
    from fedpriv.process import is_running
    from fedpriv.report import budget, received
    from fedpriv.report.html import write_report

    for path in sorted(run.glob("sites/*/budget.json")):
        received.verify(budget.read(path))
    print(write_report(run, alive=is_running(run)))
