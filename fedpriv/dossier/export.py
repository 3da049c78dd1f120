"""Write the dossier of a run, and read it back as a stranger would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpriv.dossier.collect import files_of
from fedpriv.dossier.facts import PAGE
from fedpriv.dossier.findings import Finding
from fedpriv.dossier.package import pack, unpack
from fedpriv.dossier.verify import Given, verify_package
from fedpriv.errors import ConfigError
from fedpriv.files import write_atomic


def export_run(
    run: Path, out: Path, key: Ed25519PrivateKey, ledgers: Mapping[str, Path] | None = None
) -> list[Finding]:
    """Write `out`, and beside it its page for people to read, with the ending ``.html``.

    What does not hold is never written: the dossier is checked first, as `fedpriv verify` does, but
    with our own accountant alone.

    Args:
        run, ledgers: as `files_of`.
        key: of the coordinator.

    Returns:
        What was found.

    Raises:
        FedprivError: as `files_of`; or the run's own reports and ledgers contradict each other.
    """
    page = out.with_suffix(".html")
    if page == out:
        raise ConfigError(
            "is where its page goes", key="--out", value=str(out), fix="Name it *.zip, say."
        )
    content = pack(files_of(run, ledgers), key)
    package = unpack(content, out)
    found = list(
        verify_package(package, out, Given(adapter=run / "adapter", second=None, third=None))
    )
    write_atomic(out, content)
    write_atomic(page, package.files[PAGE])
    return found
