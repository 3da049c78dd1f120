"""Wires between a site and its server that a test can cut, or let nothing through."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from pathlib import Path

from tests.waiting import CEILING

CHUNK = 1024  # bytes; small, so that a transfer has a middle
REQUEST = 4000  # bytes; only the upload of an array is longer


class Proxy:
    """Listens at `port` and passes on what comes, for as long as the test lets it.

    Attributes:
        cuts: how often an upload was cut.
    """

    def __init__(self, server_port: int) -> None:
        self._server = ("127.0.0.1", server_port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._open: list[socket.socket] = []
        self._flowing = threading.Event()
        self._flowing.set()
        self.cuts, self._to_cut = 0, 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_uploads(self, times: int) -> None:
        """Break every connection in the middle of each of the next uploads."""
        self._to_cut = times

    def cut(self) -> None:
        """Break every connection now."""
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def block(self) -> None:
        """Take what comes and pass nothing on, either way; new connections are taken too."""
        self._flowing.clear()

    def heal(self) -> None:
        """Pass on what was held back, and what comes."""
        self._flowing.set()

    def close(self) -> None:
        self._listening.close()
        self.cut()
        self.heal()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                site, _ = self._listening.accept()
                try:
                    server = socket.create_connection(self._server, timeout=CEILING)
                except OSError:
                    site.close()
                    continue
                server.settimeout(None)
                self._open += [site, server]
                sent = [0]  # by the site since the server last said something
                threading.Thread(
                    target=self._pass, args=(site, server, sent, True), daemon=True
                ).start()
                threading.Thread(
                    target=self._pass, args=(server, site, sent, False), daemon=True
                ).start()

    def _pass(self, source: socket.socket, sink: socket.socket, sent: list[int], up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                self._flowing.wait()
                sent[0] = sent[0] + len(data) if up else 0
                if sent[0] > REQUEST and self.cuts < self._to_cut:
                    self.cuts += 1
                    self.cut()
                    return
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class Cable:
    """A network of its own for a site, at the other end of a cable that can be pulled.

    Attributes:
        host: address of this end.
        namespace: what a process has to enter to be at the other.

    Raises:
        OSError: this machine lets a test make no networks.
    """

    def __init__(self) -> None:
        self._name, (self._near, self._far) = f"fp{os.getpid()}", ("fpnear", "fpfar")
        self.host = "10.213.77.1"
        self.namespace = Path("/run/netns") / self._name
        inside = f"netns exec {self._name} ip "
        try:
            for command in (
                f"netns add {self._name}",
                f"link add {self._near} type veth peer name {self._far}",
                f"link set {self._far} netns {self._name}",
                f"addr add {self.host}/30 dev {self._near}",
                f"link set {self._near} up",
                f"{inside}addr add 10.213.77.2/30 dev {self._far}",
                f"{inside}link set {self._far} up",
            ):
                _ip(command)
        except BaseException:
            self.close()
            raise

    def pull(self) -> None:
        """Nothing gets through, and nobody is told."""
        _ip(f"link set {self._near} down")

    def plug(self) -> None:
        _ip(f"link set {self._near} up")

    def close(self) -> None:
        for command in (f"link del {self._near}", f"netns del {self._name}"):
            with contextlib.suppress(OSError):
                _ip(command)


def _ip(command: str) -> None:
    done = subprocess.run(["ip", *command.split()], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {command}: {done.stderr}")
