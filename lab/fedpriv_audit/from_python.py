"""`fedpriv.audit`: attacks on the installed code, as a function."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import InstanceOf

from fedpriv.arguments import PathName, checked
from fedpriv.auditing.result import Audit
from fedpriv.config.job import JobConfig
from fedpriv.config.load import HOSPITALS
from fedpriv.environment import set_environment


@checked
def audit(
    job: InstanceOf[JobConfig] | PathName | None = None,
    overrides: Sequence[str] = (),
    *,
    run: PathName | None = None,
    parts: Sequence[str] = ("pipeline", "one-run", "membership", "exposure"),
    quick: bool = False,
    seed: int = 0,
    out: PathName = "audit",
) -> Audit:
    """Attack a federation: measure what an attacker could tell, and if a fault would be seen.

    It takes from minutes to hours. `fedpriv audit` has options for the size of each part.

    Args:
        job: a federation file, a job that `load_job` made, or None for the four hospitals of the
            package.
        overrides: ``a.b=value`` texts for the keys of a file.
        run: a finished run in place of a job. Its settings and its adapter are audited.
        parts: the attacks to run.
        quick: run all attacks at their smallest.
        seed: seed of canaries and coins, never of noise.
        out: folder for audit.json. For a run it is the run's own folder.

    Returns:
        What audit.json holds. The result is good if it `holds` (no attack broke the claim) and is
        `sound` (every twin with less noise was caught).

    Raises:
        ConfigError: a setting can't be used.
        RunError: there is no finished run.

    Privacy:
        As for `fedpriv audit`: what needs records that are not public is refused.
    """
    set_environment()
    from fedpriv_audit.audit import QUICK, AuditSize, Subject, check_parts, run_audit

    wanted = check_parts(",".join(parts))
    file = None if job is None or isinstance(job, JobConfig) else Path(job)
    given = job if isinstance(job, JobConfig) else file
    subject = Subject.of(given, overrides, None if run is None else Path(run), key="run")
    said = f"run={str(run)!r}" if run is not None else f"{subject.config.job.name!r}"
    return run_audit(
        subject,
        Path(out if run is None else run),
        wanted,
        (QUICK if quick else AuditSize()).stated(seed),
        source=file or HOSPITALS,
        command=f"fedpriv.audit({said}, parts={list(wanted)}, quick={quick}, seed={seed})",
        tell=lambda text: None,
    )
