"""`fedpriv.compare`: compare methods, as a function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from rich.console import Console

from fedpriv.arguments import PathName, checked
from fedpriv.environment import set_environment
from fedpriv.one_line import one_line
from fedpriv.progress import is_watched
from fedpriv.terminal import use_readable_output


@dataclass(frozen=True)
class Comparison:
    """Hold the result of a comparison.

    Attributes:
        rows: a row for each variant, as `pandas.json_normalize` takes them.
        report: path of compare.md, which has the same as a table. The chart compare.svg is beside
            it.
    """

    rows: list[dict[str, Any]]
    report: Path

    __repr__ = one_line


@checked
def compare(
    file: PathName | None = None,
    methods: Sequence[str] = ("base", "lora", "dp-lora"),
    overrides: Sequence[str] = (),
    *,
    grid: Sequence[str] = (),
    seeds: int = 3,
    tuning_seeds: int = 1,
    baseline: str | None = None,
    held_out: float | None = None,
    new_sites: Sequence[Annotated[int, Field(ge=0)]] = (),
    leave_one_site_out: bool = False,
    out: PathName = "comparison",
    parallel: int = 1,
    quiet: bool = False,
) -> Comparison:
    """Compare methods on public data, each with settings chosen for it.

    The same call goes on where it was stopped.

    Args:
        file: a federation file. None is the embedded one.
        methods, grid: as `fedpriv compare` takes ``--methods`` and ``--grid``.
        overrides: ``a.b=value`` texts for the keys of the file, in all runs.
        seeds: runs of each method that are reported.
        tuning_seeds: other runs, which judge each setting of a grid.
        baseline: the method that the others are compared with. The default is dp-lora, if it is
            among them.
        held_out: share of units to test on, at each site that names none itself.
        new_sites: numbers of units that a new site trains on at each outside site.
        leave_one_site_out: make each site an outside site in turn.
        out: folder where results are kept and found again.
        parallel: how many runs at once.
        quiet: show nothing. Otherwise there is a bar on a terminal and in a notebook.

    Raises:
        FedprivError: a setting can't be used.
        KeyboardInterrupt: somebody stops it. All finished runs are kept.

    Privacy:
        None: samples and noise are drawn from seeds. Only data that is marked as public is
        accepted.
    """
    set_environment()
    from fedpriv_comparison import comparison
    from fedpriv_comparison.run_comparison import run_comparison
    from fedpriv_comparison.variants import rows_of

    use_readable_output()
    console = Console(highlight=False)
    console.quiet = quiet or not is_watched(console)
    path = None if file is None else Path(file)
    said = {"methods": methods, "overrides": overrides, "grid": grid, "seeds": seeds}
    shown = ", ".join(f"{key}={value!r}" for key, value in said.items())
    command = f"fedpriv.compare({None if file is None else str(file)!r}, {shown})"
    rows, place = rows_of(",".join(methods), grid), Path(out)
    asked = comparison.Comparison.of(
        path, overrides, rows, seeds, tuning_seeds, held_out, new_sites, leave_one_site_out
    )
    found = run_comparison(
        asked, baseline=baseline, out=place, parallel=parallel, console=console, command=command
    )
    return Comparison(found.document["rows"], found.report)
