"""What may be compared, and with which settings."""

from __future__ import annotations

import pytest

from fedpriv.errors import ConfigError
from fedpriv_comparison.variants import listed, parse_variants, rows_of


def test_a_name_says_method_place_and_settings() -> None:
    base, pooled, local = parse_variants(
        ["base", "dp-lora-pooled", "dp-lora-local:optimizer=sgd:lr=0.1"], []
    )
    assert (base.method, base.place, base.grid) == ("base", "federated", ((),))
    assert (pooled.method, pooled.place) == ("dp-lora", "pooled")
    assert (local.method, local.place) == ("dp-lora", "local")
    assert local.settings == ("optimizer.name=sgd", "optimizer.lr=0.1")


def test_a_site_goes_on_by_itself_or_begins_by_itself() -> None:
    alone, personal = parse_variants(
        ["lora-alone", "dp-lora+personal:lr=0.1"], ["personal.rates=[1e-3],[1e-2]"]
    )
    assert (alone.method, alone.place, alone.personal) == ("base", "federated", True)
    assert (personal.method, personal.personal) == ("dp-lora", True)
    assert personal.settings == ("optimizer.lr=0.1",)
    expected = (("personal.rates=[1e-3]",), ("personal.rates=[1e-2]",))
    assert alone.grid == personal.grid == expected


def test_what_a_site_trains_with_matters_where_it_does_train() -> None:
    alone, lora = parse_variants(
        ["lora-alone", "lora"], ["personal.rates=[1e-3],[1e-2]", "lr=1,2", "lora.r=2,4"]
    )
    assert {settings[0] for settings in alone.grid} == {
        "personal.rates=[1e-3]",
        "personal.rates=[1e-2]",
    }
    assert {settings[1] for settings in alone.grid} == {"lora.r=2", "lora.r=4"}
    assert all(len(settings) == 2 for settings in alone.grid + lora.grid)
    assert {settings[0] for settings in lora.grid} == {"optimizer.lr=1", "optimizer.lr=2"}


def test_each_has_a_grid_of_what_matters_to_it() -> None:
    base, lora, dp, fixed = parse_variants(
        ["base", "lora", "dp-lora", "dp-lora:lr=3"],
        ["lr=1,2", "clip_norm=5,6", "dp-lora:lr=7"],
    )
    assert base.grid == ((),)
    assert lora.grid == (("optimizer.lr=1",), ("optimizer.lr=2",))
    assert dp.grid == tuple(("optimizer.lr=7", f"privacy.clip_norm={c}") for c in (5, 6))
    assert fixed.grid == (("privacy.clip_norm=5",), ("privacy.clip_norm=6",))


def test_grids_of_one_key_add_up_and_a_list_is_one_value() -> None:
    (found,) = parse_variants(
        ["dp-lora:privacy.epsilon=1"], ["lr=1,2", "lr=2,3", "lora.target_modules=['q','k'],auto"]
    )
    assert [settings[0][-1] for settings in found.grid] == ["1", "1", "2", "2", "3", "3"]
    assert {settings[1] for settings in found.grid} == {
        "lora.target_modules=['q','k']",
        "lora.target_modules=auto",
    }


@pytest.mark.parametrize(
    ("names", "grids", "words"),
    [
        (["no-such"], [], "not a method"),
        (["lora-pooled"], [], "not a method"),
        (["dp-lora-local+personal"], [], "not a method"),
        (["dp-lora+personnel"], [], "not a way"),
        (["dp-lora"], ["dp-lora:personal.patience=2"], "changes nothing"),
        (["dp-lora", "dp-lora"], [], "twice"),
        (["dp-lora:lr"], [], "KEY=VALUE"),
        ([], [], "names no method"),
        (["dp-lora"], ["lr="], "empty grid"),
        (["dp-lora"], ["lr=,"], "empty grid"),
        (["dp-lora"], ["lr"], "empty grid"),
        (["dp-lora"], ["lora:lr=1"], "not compared"),
        (["base", "lora"], ["base:lr=1"], "changes nothing"),
        (["lora"], ["lora:clip_norm=1,2"], "changes nothing"),
        (["dp-lora"], ["privacy.epsilon=1,8"], "not alike"),
        (["dp-lora"], ["evaluation.limit=1,8"], "not alike"),
        (["dp-lora:evaluation.limit=8"], [], "not alike"),
        (["dp-lora:sites.a.data=b.jsonl"], [], "not alike"),
        (["dp-lora:job.seed=8"], [], "not alike"),
    ],
)
def test_what_means_nothing_is_refused_by_name(
    names: list[str], grids: list[str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_variants(names, grids)


def test_a_list_of_methods_may_hold_lists() -> None:
    rows = 'lora, dp-lora:lora.target_modules=["q_proj","v_proj"],dp-lora'
    assert listed(rows) == ["lora", 'dp-lora:lora.target_modules=["q_proj","v_proj"]', "dp-lora"]


def test_each_site_alone_is_shown_beside_no_training() -> None:
    assert [row.name for row in rows_of("lora-alone", [])] == ["base", "lora-alone"]
    assert [row.name for row in rows_of("lora-alone, base", [])] == ["lora-alone", "base"]
