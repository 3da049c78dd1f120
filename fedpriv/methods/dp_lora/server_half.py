"""DP-LoRA at the server: the mean of the releases is the gradient."""

from __future__ import annotations

from fedpriv.methods.server_half import ServerContext
from fedpriv.models.vector import Vector
from fedpriv.public_update.update import Aggregate
from fedpriv.synthetic.evolution import Evolved
from fedpriv.synthetic.records import SetChange


class DpLoraServer:
    """As `ServerMethod`.

    Args:
        trained: P, the number of trained parameters.
    """

    def __init__(self, trained: int) -> None:
        self.values = trained

    def start(self, parameters: Vector) -> Vector:
        """Return the parameters themselves."""
        return parameters

    def change(self, held: str | None) -> SetChange | None:
        """Change nothing: sites hold no public records."""
        return None

    def gradient(self, mean: Aggregate) -> Aggregate:
        """Return the mean itself."""
        return mean

    def advance(self, number: int) -> Evolved | None:
        """Advance nothing: there is nothing to change."""
        return None


def server_half(context: ServerContext) -> DpLoraServer:
    """Make the half of a job."""
    return DpLoraServer(context.trained)
