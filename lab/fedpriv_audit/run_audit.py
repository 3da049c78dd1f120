"""An audit from its settings to audit.json, for the command and for `fedpriv.audit`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from fedpriv.auditing.result import Audit, PartName
from fedpriv.errors import naming
from fedpriv.report.html import write_report
from fedpriv_audit.audit import Auditor, AuditSize, Subject
from fedpriv_audit.pipeline import Tell


def run_audit(
    subject: Subject,
    folder: Path,
    parts: Collection[PartName],
    size: AuditSize,
    *,
    source: Path,
    command: str,
    tell: Tell,
) -> Audit:
    """Audit, and keep what was found in a folder; of a run that is the run's, with its page anew.

    Args:
        source: for messages.
        command: what was asked, as the result states it.

    Raises:
        FedprivError: as `Auditor.run`. A folder that was made for it is not left behind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with naming(source):
            found = Auditor(subject, size, folder, tell).run(parts, command)
    except BaseException:
        if not any(folder.iterdir()):
            folder.rmdir()
        raise
    found.write(folder)
    if subject.run is not None:
        write_report(folder)
    return found
