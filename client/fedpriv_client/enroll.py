"""Make a site's key where it will be used, and the request to have it certified."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fedpriv.errors import ConfigError, EnrolmentError
from fedpriv.files import write_atomic
from fedpriv.names import Name
from fedpriv.pki.keys import fingerprint, new_key, write_key
from fedpriv.pki.points import in_groups
from fedpriv.pki.request import make_request


@dataclass(frozen=True)
class Enrollment:
    """Hold the files that were made, and say what to do with them.

    Attributes:
        key: file of the private key; it stays here.
        request: file of the request, for the coordinator.
        fingerprint: the key's, for the coordinator to compare over another channel.
    """

    key: Path
    request: Path
    fingerprint: str

    @property
    def advice(self) -> str:
        """Say in sentences which file to send where."""
        return (
            f"Send {self.request} to the coordinator, who runs fedpriv provision FILE --approve"
            f" {self.request.name}. Compare by telephone the fingerprint of your key,"
            f" {in_groups(self.fingerprint)}. Put the enrolment that comes back beside {self.key},"
            " which never leaves this machine."
        )


def enroll(folder: Path, name: str) -> Enrollment:
    """Make ``site.key`` and ``NAME.request.pem`` in `folder`.

    Args:
        name: the site's name, as in the federation file.

    Raises:
        ConfigError: no site can have this name.
        EnrolmentError: there is a key already, and it stays; or the folder can't be written.

    Privacy:
        The request holds the site's name and a public key. The key tells nothing of records.
    """
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError:
        fix = "Use the one in the federation file."
        raise ConfigError("is not a site's name", key="--name", value=name, fix=fix) from None
    key, request = new_key(), folder / f"{name}.request.pem"
    made = Enrollment(folder / "site.key", request, fingerprint(key.public_key()))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_key(made.key, key)
        write_atomic(made.request, make_request(key, name))
    except OSError as error:
        raise EnrolmentError(f"{folder}: can't be written: {error.strerror}.") from None
    return made
