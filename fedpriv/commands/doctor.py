"""`fedpriv doctor`: check everything that a site's file or a federation file needs, in lines.

Each role's package says what is checked. An entry point of the group ``fedpriv.doctors``, named
``site`` or ``federation``, gives a function. It takes the file, a job to try (or None), and whether
to leave the network alone, and yields findings as it makes them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedpriv.errors import ConfigError

if TYPE_CHECKING:
    from fedpriv.doctor.finding import Finding

DOCTORS = "fedpriv.doctors"


def doctor(
    file: Annotated[Path, typer.Argument(help="A site's own file, or a federation file.")],
    job: Annotated[
        Path | None, typer.Option(help="For a site: a federation file to try without a run.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Dial nobody.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Say what is wrong before a job finds out, and what to type. Changes nothing."""
    from fedpriv.process import stop_on_terminate

    stop_on_terminate()  # else a copy of the records could be left
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    findings, console = [], Console(highlight=False)
    marks = {True: "ok   ", False: "[red]wrong[/]", None: "–    "}
    for finding in examine(file, job, offline=offline):
        findings.append(finding)
        if not as_json:  # as it is found: loading a model takes a while
            line = f"{marks[finding.ok]} [bold]{finding.what}[/]: {escape(finding.found)}"
            console.print(line, soft_wrap=True)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    wrong = [finding for finding in findings if finding.ok is False]
    if wrong:
        raise typer.Exit(wrong[0].exit_code)


def examine(file: Path, job: Path | None = None, *, offline: bool = False) -> Iterable[Finding]:
    """Examine a file with the doctor of its role, and yield the findings.

    Raises:
        ConfigError: the file can't be read, or its role is not installed here.
    """
    from fedpriv.config.load import read_toml

    role = "site" if "site" in read_toml(file) else "federation"
    for point in entry_points(group=DOCTORS, name=role):
        findings: Iterable[Finding] = point.load()(file, job, offline=offline)
        return findings
    problem = f"is the file of a {role}, and the package for that role is not installed here"
    fix = "Install that package in an environment of its own, or all of fedpriv."
    raise ConfigError(problem, file=file, fix=fix)
