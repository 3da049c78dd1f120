"""Check what any machine of fedpriv needs: packages, a device, a clock, ports, disk space."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import shutil
import socket
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedpriv import __version__
from fedpriv.distribution import needed
from fedpriv.doctor.finding import DoubtError
from fedpriv.errors import ConfigError
from fedpriv.models.config import ModelSection
from fedpriv.private_training.config import ComputeSection

_SHOWN = ("torch", "transformers", "peft", "flwr")
_UNSYNCHRONISED = 5  # what adjtimex(2) returns if nothing synchronises the clock
_TIMEX_BYTES = 512  # more than struct timex has anywhere
TAKEN = "See who has it (ss -ltnp), or name another port."
_PORT_FIXES = {
    errno.EADDRINUSE: TAKEN,
    errno.EACCES: "Name a port above 1023, or allow this one (CAP_NET_BIND_SERVICE).",
}


def packages() -> str:
    """Return the versions of the packages that fedpriv needs, each within its allowed range.

    Raises:
        ConfigError: a package is missing, or has another version.
    """
    has, needs = [], []
    for requirement in needed():
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            found = "none"
        if found == "none" or not requirement.specifier.contains(found, prereleases=True):
            has.append(f"{requirement.name} {found}")
            needs.append(f"'{requirement.name}{requirement.specifier}'")
    if needs:
        problem, fix = (
            "not the packages that fedpriv was made for",
            f"pip install {' '.join(needs)}",
        )
        raise ConfigError(problem, value=", ".join(has), fix=fix)
    return f"Python {platform.python_version()}, fedpriv {__version__}, " + ", ".join(
        f"{name} {version(name)}" for name in _SHOWN
    )


def device(compute: ComputeSection) -> str:
    """Return the device or devices that compute steps.

    Raises:
        ConfigError: there is no such device, or there are fewer than are asked for.
    """
    import torch

    from fedpriv.private_training.team import devices_after
    from fedpriv.private_training.worker import device_of

    first = device_of(compute.device)
    others = devices_after(first, compute.devices, torch.cuda.device_count())
    if first == "cpu":
        team = f", {1 + len(others)} processes" if others else ""
        return f"cpu, {torch.get_num_threads()} threads{team}"
    shown = []
    for name in (first, *others):
        free, there = (size / 1e9 for size in torch.cuda.mem_get_info(name))
        named = f"{name} {torch.cuda.get_device_name(name)}"
        shown.append(f"{named}, {free:.1f} of {there:.1f} GB free")
    return "; ".join(shown)


def number_format(model: ModelSection, compute: ComputeSection) -> str:
    """Say how fast this machine is at the number format of the file.

    Raises:
        DoubtError: it is slower than float32.
        ModelError, ConfigError: as `fedpriv.doctor.number_format.time_in_halves`.
    """
    from fedpriv.doctor.number_format import time_in_halves

    ratio = time_in_halves(model, compute)
    said = (
        f"compute.dtype = {compute.dtype!r}: in bfloat16 this model's products take"
        f" {ratio:.2g} times as long on this machine as in float32"
    )
    if ratio > 1:
        raise DoubtError(f'{said}. Use "float32".')
    return said


def clock() -> str:
    """Say whether something synchronises this machine's clock.

    Raises:
        DoubtError: nothing does, or the system does not say. The clock may still be right, and the
            server says when it is not.
    """
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        state = -1
    if state == -1:
        raise DoubtError("the system does not say whether anything synchronises it")
    if state == _UNSYNCHRONISED:
        raise DoubtError(
            "nothing synchronises it, as far as the system knows; requests are refused when it is 5"
            " s fast or 300 s slow. Turn on NTP: timedatectl set-ntp true"
        )
    return "synchronised by the system"


def port(address: str, key: str) -> str:
    """Check that a host:port of this machine can be listened on. Nothing stays listening.

    Raises:
        ConfigError: the address is not this machine's, is in use, or is not allowed for this user.
    """
    host, _, number = address.rpartition(":")
    host = host.strip("[]")
    try:
        family, *_, where = socket.getaddrinfo(
            host, int(number), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            probe.listen(1)
    except OSError as error:
        fix = _PORT_FIXES.get(error.errno or 0, "Name an address of this machine.")
        problem = f"can't listen there: {error.strerror}"
        raise ConfigError(problem, key=key, value=address, fix=fix) from None
    return f"{address} is free"


def disk(folder: Path, needed: float, key: str) -> str:
    """Check that a folder can be written to and has room. A missing folder is not made.

    Args:
        needed: bytes.

    Raises:
        ConfigError: it is read-only, somebody else's, or on a disk that is too full.
    """
    there = folder
    try:
        there = _existing(folder)
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(b"fedpriv")
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        problem = f"can't be written to: {error.strerror}"
        fix = "Name a folder on a disk that this user may write to, or mount it so."
        raise ConfigError(problem, key=key, value=str(there), fix=fix) from None
    if free(folder) < needed:
        problem = f"has {free(folder) / 1e9:.2f} GB free, and {needed / 1e9:.2f} GB are needed"
        fix = "Make room, or name another disk."
        raise ConfigError(problem, key=key, value=str(there), fix=fix)
    return f"{there}: {free(folder) / 1e9:.1f} GB free, {needed / 1e9:.2f} GB needed"


def free(folder: Path) -> int:
    """Return the free bytes of the disk on which a folder is, or will be."""
    return shutil.disk_usage(_existing(folder)).free


def _existing(folder: Path) -> Path:
    """Return the folder, or else the nearest folder above it that exists."""
    there = folder.absolute()
    return next(one for one in (there, *there.parents) if one.exists())
