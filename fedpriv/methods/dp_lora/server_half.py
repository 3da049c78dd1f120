"""DP-LoRA at the server: the mean of the releases is the gradient."""

from __future__ import annotations

from fedpriv.methods.server_half import ServerContext, ServerMethod


class DpLoraServer(ServerMethod):
    """A `ServerMethod` with all its defaults: sites hold no public records.

    Args:
        trained: P, the number of trained parameters.
    """

    def __init__(self, trained: int) -> None:
        self.values = trained


def server_half(context: ServerContext) -> DpLoraServer:
    """Make the half of a job."""
    return DpLoraServer(context.trained)
