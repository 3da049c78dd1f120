"""What a run reads besides its settings, by content: so that a result is known by what made it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedpriv.config.job import JobConfig
from fedpriv.errors import ConfigError
from fedpriv.models.stored import digest_of
from fedpriv.stored_adapter import find_adapter


class Inputs:
    """Digests of files, folders and base models, each computed once.

    Attributes:
        digests: what is named in a federation file → its digest.
    """

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}

    def add(self, config: JobConfig) -> None:
        """Add everything that a job reads.

        Raises:
            ConfigError: a file can't be read.
            ModelError: there is no such base.
        """
        for key, path in config.files().items():
            if str(path) in self.digests:
                continue
            try:
                self.digests[str(path)] = _digest(path)
            except OSError as error:
                problem = f"can't be read: {error.strerror}"
                raise ConfigError(problem, key=key, value=str(path)) from None
        models = [config.model.name]
        if config.synthetic and config.synthetic.generator:
            made_by = config.synthetic.generator
            models += [made_by.model] if made_by.kind == "local" and made_by.model else []
        for name in models:
            if name not in self.digests:
                self.digests[name] = digest_of(name)
        if config.model.begin is not None:
            self.digests[config.model.begin] = find_adapter(config.model.begin).digest


def _digest(path: Path) -> str:
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.relative_to(path)}\0".encode())
        with file.open("rb") as stream:
            total.update(hashlib.file_digest(stream, "sha256").digest())
    return "sha256:" + total.hexdigest()
