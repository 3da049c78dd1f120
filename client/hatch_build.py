"""Put into a site's wheel what a site reaches of `fedpriv`, and nothing else."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent
ROOT = HERE.parent
FILES = (  # that are no modules
    "assets/base",
    "py.typed",
)


class Reached(BuildHookInterface[Any]):
    """Finds the files by the imports of `fedpriv_client` and of its entry points."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add them to the wheel, at their places in the package `fedpriv`."""
        sys.path.insert(0, str(ROOT / "scripts"))
        from trusted_path import file_of, reached

        own = (
            ".".join(path.relative_to(HERE).with_suffix("").parts)
            for path in HERE.glob("fedpriv_client/**/*.py")
        )
        with (HERE / "pyproject.toml").open("rb") as stream:
            groups = tomllib.load(stream)["project"]["entry-points"].values()
        named = (target.partition(":")[0] for group in groups for target in group.values())
        modules = reached(*(name.removesuffix(".__init__") for name in own), *named)
        files = [file for module in modules if (file := file_of(module)) is not None]
        templates = {page for file in files for page in file.parent.glob("*.j2")}
        files += [*templates, *(ROOT / "fedpriv" / name for name in FILES)]
        build_data["force_include"] |= {
            str(file): file.relative_to(ROOT).as_posix()
            for file in files
            if file.is_relative_to(ROOT / "fedpriv")
        }
