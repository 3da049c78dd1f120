"""TensorBoard: event files in the run directory."""

from __future__ import annotations

from fedpriv_server.tracking.public import Figures, Tracked


class TensorBoard:
    """Writes a new event file; of an earlier one of the run, TensorBoard drops what is told again.

    Args:
        tracked: the run.
    """

    def __init__(self, tracked: Tracked) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(tracked.folder / "tensorboard"), purge_step=0)
        rows = "".join(f"| {name} | {value} |\n" for name, value in tracked.settings.items())
        stamp = "" if tracked.private else "**NOT PRIVATE**: seeded noise.\n\n"
        self._writer.add_text("settings", f"{stamp}| setting | value |\n|---|---|\n{rows}", 0)

    def log(self, step: int, figures: Figures) -> None:
        """Add a point to each curve."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, *, finished: bool) -> None:
        """Let go of the file; TensorBoard knows no state of a run."""
        self._writer.close()
