"""What may be compared, and with which settings."""

from __future__ import annotations

import pytest

from fedpriv.errors import ConfigError
from fedpriv_comparison.variants import parse_variants


def test_a_name_says_method_place_and_settings() -> None:
    base, pooled, local = parse_variants(
        ["base", "dp-lora-pooled", "dp-lora-local:optimizer=sgd:lr=0.1"], []
    )
    assert (base.method, base.place, base.grid) == ("base", "federated", ((),))
    assert (pooled.method, pooled.place) == ("dp-lora", "pooled")
    assert (local.method, local.place) == ("dp-lora", "local")
    assert local.settings == ("optimizer.name=sgd", "optimizer.lr=0.1")


def test_each_has_a_grid_of_what_matters_to_it() -> None:
    base, lora, dp, fixed = parse_variants(
        ["base", "lora", "dp-lora", "dp-lora:lr=3"],
        ["lr=1,2", "clip_norm=5,6", "dp-lora:lr=7"],
    )
    assert base.grid == ((),)
    assert lora.grid == (("optimizer.lr=1",), ("optimizer.lr=2",))
    assert dp.grid == tuple(("optimizer.lr=7", f"privacy.clip_norm={c}") for c in (5, 6))
    assert fixed.grid == (("privacy.clip_norm=5",), ("privacy.clip_norm=6",))


@pytest.mark.parametrize(
    ("names", "grids", "words"),
    [
        (["no-such"], [], "no method"),
        (["lora-pooled"], [], "no method"),
        (["dp-lora", "dp-lora"], [], "twice"),
        (["dp-lora:lr"], [], "KEY=VALUE"),
        ([], [], "names no method"),
        (["dp-lora"], ["lr="], "empty grid"),
        (["dp-lora"], ["lr=,"], "empty grid"),
        (["dp-lora"], ["lr"], "empty grid"),
        (["dp-lora"], ["lora:lr=1"], "not compared"),
    ],
)
def test_what_means_nothing_is_refused_by_name(
    names: list[str], grids: list[str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_variants(names, grids)
