"""Make a site's key where it will be used, and the request to have it certified."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fedpriv.errors import ConfigError, EnrolmentError
from fedpriv.files import write_atomic
from fedpriv.names import Name
from fedpriv.pki.keys import fingerprint, new_key, write_key
from fedpriv.pki.points import in_groups
from fedpriv.pki.request import make_request


def enroll(folder: Path, name: str) -> str:
    """Make ``site.key`` and ``NAME.request.pem`` in `folder`, and say what to do with them.

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
    key, path, request = new_key(), folder / "site.key", folder / f"{name}.request.pem"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_key(path, key)
        write_atomic(request, make_request(key, name))
    except OSError as error:
        raise EnrolmentError(f"{folder}: can't be written: {error.strerror}.") from None
    return (
        f"Made {path} and {request}.\nSend {request} to the coordinator, who runs fedpriv provision"
        f" FILE --approve {request.name}. Compare by telephone the fingerprint of your key,"
        f" {in_groups(fingerprint(key.public_key()))}. Put the enrolment that comes back beside"
        f" {path}, which never leaves this machine."
    )
