"""A real PostgreSQL server in a folder of its own, for a test; it is gone afterwards."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import CEILING, free_port

PASSWORD = "correct horse"
OWNERS = ("postgres", "nobody")  # whom the server runs as, where the test is root's


@dataclass(frozen=True)
class Server:
    """Where it listens, and its superuser."""

    port: int
    user: str = "owner"

    def url(self, *, user: str | None = None, password: str = "") -> str:
        """As SQLAlchemy writes it."""
        secret = f":{password}" if password else ""
        return f"postgresql+psycopg://{user or self.user}{secret}@127.0.0.1:{self.port}/postgres"


def missing() -> str | None:
    """Why no server can be started here, if none can."""
    if _programs() is None:
        return "no PostgreSQL server is installed (apt-get install postgresql)"
    if os.geteuid() == 0 and _owner() is None:
        return f"PostgreSQL refuses to run as root, and there is no user {' or '.join(OWNERS)}"
    return None


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """Start one, with a password for its superuser; stop it and remove its folder at the end."""
    programs, owner = _programs(), _owner()
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="fedpriv-postgres-"))
    try:
        secret, log, data = folder / "password", folder / "log", folder / "data"
        secret.write_text(PASSWORD)
        if owner is not None:
            for path in (folder, secret):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        port = free_port()

        def call(program: str, *arguments: str | Path) -> None:
            command = [str(programs / program), "-D", str(data), *map(str, arguments)]
            as_whom = {} if owner is None else {"user": owner.pw_uid, "group": owner.pw_gid}
            subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, **as_whom)

        server = Server(port)
        call("initdb", "-U", server.user, "-A", "scram-sha-256", f"--pwfile={secret}", "-E", "UTF8")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        call("pg_ctl", "-w", "-t", f"{CEILING:.0f}", "-l", log, "-o", options, "start")
        try:
            yield server
        finally:
            call("pg_ctl", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


def _programs() -> Path | None:
    """Where initdb and pg_ctl are; Debian keeps them out of PATH, one folder a version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def _owner() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    for name in OWNERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return None
