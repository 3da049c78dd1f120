"""Digests of what a run reads besides its settings. So a result is known by what made it."""

from __future__ import annotations

import hashlib
from inspect import getmodule
from pathlib import Path

from fedpriv.config.job import JobConfig
from fedpriv.data.transform import find_transform
from fedpriv.errors import ConfigError
from fedpriv.files import file_digest
from fedpriv.models.stored import digest_of
from fedpriv.stored_adapter import find_adapter


def add_digests(known: dict[str, str], config: JobConfig) -> None:
    """Add the digest of everything that a job reads, by its name in the federation file.

    Args:
        known: digests from earlier jobs, which are not computed again.

    Raises:
        ConfigError: a file can't be read.
        DataError: a site's own function can't be imported.
        ModelError: there is no such base model.
    """
    for key, path in config.files().items():
        if str(path) in known:
            continue
        try:
            attached = key.endswith("fhir") and path.is_file()  # what lies beside the file
            known[str(path)] = _digest(path.parent if attached else path)
        except OSError as error:
            problem = f"can't be read: {error.strerror}"
            raise ConfigError(problem, key=key, value=str(path)) from None
    for site in config.everybody:
        if (name := site.transform) is not None and name not in known:
            module = getmodule(find_transform(name, f"{site.table}.{site.name}.transform"))
            file = Path(getattr(module, "__file__", __file__))
            beside = sorted(file.parent.glob("*.py"))  # which it may import
            known[name] = " ".join([name, *map(_digest, beside)])
    made_by = config.synthetic and config.synthetic.generator
    local = made_by.model if made_by and made_by.kind == "local" else None
    for name in (config.model.name, local):
        if name and name not in known:
            known[name] = digest_of(name)
    if config.model.begin is not None and config.model.begin not in known:
        known[config.model.begin] = find_adapter(config.model.begin).digest


def _digest(path: Path) -> str:
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.relative_to(path)}\0{file_digest(file)}".encode())
    return "sha256:" + total.hexdigest()
