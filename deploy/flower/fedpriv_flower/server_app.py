"""The server: the job of `fedpriv simulate`, on the grid of Flower's simulation."""

from __future__ import annotations

import time
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from fedpriv.errors import ConfigError
from fedpriv_flower.settings import Settings
from fedpriv_simulation.command import show
from fedpriv_simulation.simulate import Progress, simulate

START = 10.0  # seconds in which Flower makes its nodes, while this is running already

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the job of the federation file, and leave a run directory."""
    settings = Settings.of(context)
    config = settings.job()
    _expect_nodes(grid, len(config.sites))
    print(f"{len(config.sites)} sites, {config.job.rounds} rounds; run directory {settings.out}")
    outcome = simulate(  # one that was stopped takes seconds to end, and has its folder until then
        config,
        settings.out,
        source=settings.federation,
        resume=settings.resume,
        insecure_seed=settings.insecure_seed,
        progress=Progress(round_done=_tell),
        grid=grid,
    )
    show(outcome, Console())


def _expect_nodes(grid: Grid, sites: int) -> None:
    """Wait until there is a node for each site: node i is the i-th site of the file.

    Raises:
        ConfigError: Flower has more nodes or fewer.
    """
    until = time.monotonic() + START
    while (nodes := len(list(grid.get_node_ids()))) != sites:
        if time.monotonic() > until:
            raise ConfigError(
                f"Flower has {nodes} nodes for the {sites} sites of the file",
                fix=f'Type: flwr run … --federation-config "num-supernodes={sites}"',
            )
        time.sleep(0.1)


def _tell(metrics: dict[str, Any]) -> None:
    shown = "" if metrics["eval_loss"] is None else f"  loss {metrics['eval_loss']:.3f}"
    print(f"round {metrics['round']:4}{shown}")
