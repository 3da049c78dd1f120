"""Four hospitals with some 240 notes each: the federation of docs/results/four-hospitals.md."""

from __future__ import annotations

import shutil
from pathlib import Path


def write_records(folder: Path) -> None:
    """Copy the notes of each hospital, those that are held out, and the federation's file."""
    from fedpriv.config.load import HOSPITALS

    shutil.copytree(HOSPITALS.parent, folder, dirs_exist_ok=True)
