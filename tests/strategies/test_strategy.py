"""The rounds of a federation file, driven by Flower's own `Strategy.start`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message
from safetensors.numpy import load_file

from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError, RoundError
from fedpriv_simulation.inline import FIRST_SITE, InlineGrid
from fedpriv_simulation.simulate import simulate
from fedpriv_simulation.visits import Visits
from fedpriv_strategies.messages import TRAIN
from fedpriv_strategies.strategy import PrivateRounds

Make = Callable[..., Any]
STRICT = ["privacy.numerics=strict"]  # without trials before the first step


@contextmanager
def sites(file: Path, run: Path, lost: set[int] | None = None) -> Iterator[InlineGrid]:
    """Nodes that are the sites of a file; those that are in `lost` fail at their next step."""
    visits = Visits(load_job(file, STRICT), run, 7)

    def of(number: int) -> Callable[[Message, Context], Message]:
        def answer(message: Message, context: Context) -> Message:
            if lost and number in lost and message.metadata.message_type == TRAIN:
                lost.remove(number)
                raise OSError("The power is off.")
            return visits.answer(number, message, context)

        return answer

    with InlineGrid({FIRST_SITE + number: of(number) for number in range(2)}, 1) as grid:
        yield grid


@pytest.fixture
def file(federation: Make) -> Path:
    path: Path = federation(rounds=2)
    return path


@pytest.mark.slow
def test_it_makes_the_adapter_of_a_simulation_and_asks_again_what_failed(
    file: Path, tmp_path: Path
) -> None:
    there = simulate(load_job(file, STRICT), tmp_path / "there", source=file, insecure_seed=7)
    expected = load_file(there.run.path / "adapter" / "adapter_model.safetensors")
    made, scored = PrivateRounds(load_job(file, STRICT)), list[int]()
    lost = {1}
    with sites(file, tmp_path / "here", lost) as grid:
        with pytest.raises(RoundError, match="1 usable replies, 2 are needed"):
            made.start(grid, made.arrays, num_rounds=made.left)
        assert (made.left, lost) == (2, set())
        result = made.start(
            grid,
            made.arrays,
            num_rounds=made.left,
            evaluate_fn=lambda number, arrays: scored.append(number),
        )
        with pytest.raises(RoundError, match="All 2 rounds"):
            made.start(grid, made.arrays, num_rounds=1)
    assert scored == [0, 1, 2]
    assert result.arrays == made.arrays
    found = {name: array.numpy() for name, array in made.arrays.items()}
    assert found.keys() == expected.keys()
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=1e-6)
    spent = {f"{name}.epsilon_spent": b.epsilon_spent for name, b in there.budgets.items()}
    assert dict(result.train_metrics_clientapp[2]) == spent


def test_a_site_begins_at_no_other_arrays(file: Path, tmp_path: Path) -> None:
    made = PrivateRounds(str(file))
    for other in (ArrayRecord(), ArrayRecord({"a": next(iter(made.arrays.values()))})):
        with sites(file, tmp_path / "run") as grid, pytest.raises(ConfigError) as found:
            made.start(grid, other, num_rounds=1)
        assert found.value.key == "initial_arrays"


@pytest.mark.parametrize("key", ["evaluation.sites", "privacy.trust", "synthetic"])
def test_what_it_does_not_do_is_refused_by_name(file: Path, key: str) -> None:
    config = load_job(file)
    asking = config.model_copy(update={key.partition(".")[0]: _asked(config, key)})
    with pytest.raises(ConfigError, match=f"{key}: is not supported by PrivateRounds"):
        PrivateRounds(asking)


def _asked(config: Any, key: str) -> Any:
    """The table of a file that asks for it."""
    match key:
        case "evaluation.sites":
            return config.evaluation.model_copy(update={"sites": object()})
        case "privacy.trust":
            return config.privacy.model_copy(update={"trust": "secure-sum"})
        case _:
            return object()
