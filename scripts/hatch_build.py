"""Put into a distribution's wheel what its entry points reach of fedpriv, and nothing else."""

from __future__ import annotations

import hashlib
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SCRIPTS = Path(__file__).parent
ROOT = SCRIPTS.parent


class Reached(BuildHookInterface[Any]):
    """Find the files by the imports of a folder's own packages and of its entry points."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files to the wheel, at their places, with the digests of the whole source."""
        sys.path.insert(0, str(SCRIPTS))
        from trusted_path import file_of, reached

        folder, core = Path(self.root), self.metadata.core
        own = (
            ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
            for path in folder.glob("fedpriv_*/**/*.py")
        )
        groups = (core.scripts, *core.entry_points.values())
        named = (target.partition(":")[0] for group in groups for target in group.values())
        modules = reached(*own, *named)
        files = [file for module in modules if (file := file_of(module)) is not None]
        shown = ("*.j2", "clauses.toml")
        templates = {page for file in files for name in shown for page in file.parent.glob(name)}
        files += [*templates, *(ROOT / "fedpriv" / name for name in self.config["files"])]
        packages = _packages()
        build_data["force_include"] |= {
            str(file): (package.name / file.relative_to(package)).as_posix()
            for file in files
            for package in packages
            if file.is_relative_to(package) and not file.is_relative_to(folder)
        }
        build_data["extra_metadata"] = {str(ROOT / name): name for name in ("LICENSE", "NOTICE")}
        if "fedpriv.software" in modules:
            listed = Path(self.directory) / "source.json"
            listed.parent.mkdir(exist_ok=True)
            listed.write_text(json.dumps({package.name: _digests(package) for package in packages}))
            build_data["force_include"][str(listed)] = "fedpriv/source.json"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Leave nothing beside the wheel."""
        Path(self.directory, "source.json").unlink(missing_ok=True)


def _packages() -> list[Path]:
    with (ROOT / "pyproject.toml").open("rb") as stream:
        wheel = tomllib.load(stream)["tool"]["hatch"]["build"]["targets"]["wheel"]
    return [ROOT / package for package in wheel["packages"]]


def _digests(package: Path) -> dict[str, str]:
    return {
        path.relative_to(package).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
