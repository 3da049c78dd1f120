"""Run a command under the seccomp filter that a systemd unit asks for, without systemd.

    python sandbox.py UNIT COMMAND...

Of the unit it takes SystemCallFilter= and RestrictAddressFamilies=. What is not allowed fails.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

ALLOW, FAIL = 0x7FFF0000, 0x00050000  # SCMP_ACT_ALLOW, SCMP_ACT_ERRNO
EQUAL = 4  # SCMP_CMP_EQ
NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def settings(unit: Path) -> dict[str, list[str]]:
    """The words of each key of a unit; of one that comes more than once, one list after another."""
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE):
        found.setdefault(key, []).extend(value.split())
    return found


def groups() -> dict[str, list[str]]:
    """The system calls, and the other groups, that this systemd has in each of its groups."""
    asked = ["systemd-analyze", "syscall-filter", "--no-pager"]
    listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {}
    for block in re.split(r"\n(?=@)", listed):
        name, *lines = block.splitlines()
        found[name.strip()] = [
            line.strip() for line in lines if line.startswith("    ") and "#" not in line
        ]
    return found


def allowed(filters: list[str]) -> set[str]:
    """The system calls that a unit's filters leave: a list of what is allowed, less some of it."""
    known = groups()

    def calls(name: str) -> set[str]:
        if not name.startswith("@"):
            return {name}
        return set().union(*(calls(member) for member in known[name]))

    more = {call for name in filters if not name.startswith("~") for call in calls(name)}
    less = {call for name in filters if name.startswith("~") for call in calls(name[1:])}
    return (more - less) | calls("@default")


def restrict(unit: Path) -> None:
    """Let this process, and what it becomes, do no more than the unit allows."""
    asked = settings(unit)
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    made = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(FAIL | errno.EPERM)))

    def allow(name: str, *comparisons: _Comparison) -> None:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:  # not of this machine
            return
        array = (_Comparison * len(comparisons))(*comparisons)
        action = ctypes.c_uint32(ALLOW)
        assert not library.seccomp_rule_add_array(made, action, number, len(array), array)

    for name in allowed(asked["SystemCallFilter"]) - {"socket"}:
        allow(name)
    for family in asked["RestrictAddressFamilies"]:
        allow("socket", _Comparison(0, EQUAL, getattr(socket, family), 0))
    assert not ctypes.CDLL(None).prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    assert not library.seccomp_load(made)


if __name__ == "__main__":
    unit, *command = sys.argv[1:]
    restrict(Path(unit))
    os.execvp(command[0], command)
