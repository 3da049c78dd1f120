"""`[server]` of a federation file: where the sites find the server."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from fedpriv.config.duration import Duration
from fedpriv.names import METRICS, Address, Port
from fedpriv.section import Section


class ServerSection(Section):
    """The server's address and certificates; with `job.engine = "network"` only."""

    address: Address = Field(description="The host:port that sites dial.")
    listen: Address | None = Field(
        None,
        description="The host:port to listen at. Without it, the port of `address` on every IPv4"
        " interface.",
    )
    names: tuple[str, ...] = Field(
        (), description="Further host names and IP addresses for the server's certificate."
    )
    pki: Path = Field(
        Path("pki"), description="Folder of keys and certificates that fedpriv provision writes."
    )
    client_certificates: bool = Field(
        False, description="Mutual TLS: a site must show its certificate to connect."
    )
    health: Address | None = Field(
        None, description="The host:port of the gRPC health service. Without it, none."
    )
    metrics_port: Port | None = Field(None, description=METRICS)
    wait: Duration = Field(
        "10m",
        description="How long round 1 waits for missing sites. A server restarted after its job"
        " waits as long for missing reports.",
    )

    @property
    def bound(self) -> str:
        """The host:port to listen on."""
        return self.listen or f"0.0.0.0:{self.address.rpartition(':')[2]}"
