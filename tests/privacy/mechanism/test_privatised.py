from __future__ import annotations

import ast
import copy
import pickle
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.errors import RawValueError
from fedpriv.privacy.mechanism import privatised
from fedpriv.privacy.mechanism.privatised import (
    Privatised,
    TrustModel,
    aggregated,
    post_process,
    public,
    received,
    released,
    require_privatised,
    restored,
)

ROOT = Path(__file__).parents[3]
MAKERS = {
    public: TrustModel.PUBLIC,
    released: TrustModel.LOCAL,
    received: TrustModel.RECEIVED,
    aggregated: TrustModel.AGGREGATE,
    restored: TrustModel.RESTORED,
}
# Each maker is honest in one place. `public` is a person's word: another place needs a review.
USED_IN = {
    "public": {
        "server/fedpriv_server/job.py",  # the model before any training
        "strategies/fedpriv_strategies/strategy.py",  # the same
        "server/fedpriv_server/synthetic.py",  # the set before any round
        "lab/fedpriv_comparison/public_training.py",  # the same, and data that is marked public
    },
    "released": {"fedpriv/privacy/mechanism/execution.py"},
    "received": {
        "fedpriv/private_training/local_steps.py",
        "strategies/fedpriv_strategies/messages.py",
    },
    "restored": {"server/fedpriv_server/checkpoint.py"},
    "aggregated": {"strategies/fedpriv_strategies/sum_of_set.py"},
}
privatised_values = st.builds(lambda maker: maker(1), st.sampled_from(list(MAKERS)))


def test_it_cannot_be_made_by_hand() -> None:
    forged: Any = Privatised
    for values, named in [((), {}), ((1,), {}), ((1, TrustModel.LOCAL), {}), ((), {"value": 1})]:
        with pytest.raises(RawValueError, match="by hand"):
            forged(*values, **named)


def test_it_cannot_be_given_another_value() -> None:
    value = public(1)
    with pytest.raises(FrozenInstanceError):
        value.value = 2  # type: ignore[misc]
    with pytest.raises(RawValueError):
        replace(value, value=2)


def test_a_maker_names_its_trust_model() -> None:
    for maker, trust_model in MAKERS.items():
        made = maker("v")
        assert (made.value, made.trust_model) == ("v", trust_model)
    assert len(set(MAKERS.values())) == len(MAKERS)


@given(values=st.lists(privatised_values, min_size=1, max_size=5))
def test_post_processing_rests_on_the_word_of_all(values: list[Privatised[int]]) -> None:
    made = post_process(lambda *numbers: sum(numbers), *values)
    assert made.value == len(values)
    assert set(made.trust_model) == {part for item in values for part in item.trust_model}


def test_post_processing_needs_something_to_process() -> None:
    with pytest.raises(TypeError):
        post_process(lambda: "a raw value")  # type: ignore[call-arg]


@pytest.mark.parametrize("raw", [np.ones(3), 1.0, None, "patient 7", [public(1)]])
def test_a_raw_value_is_refused_by_its_type_and_not_shown(raw: Any) -> None:
    with pytest.raises(RawValueError, match=f"^Expected gradient .*{type(raw).__name__}") as caught:
        require_privatised(raw, "gradient")
    assert "patient 7" not in str(caught.value)
    assert "public(…)" in str(caught.value)


def test_a_privatised_value_is_given_back_as_it_is() -> None:
    value = np.ones(3)
    assert require_privatised(public(value), "gradient") is value


def test_a_copy_is_privatised_too() -> None:
    for same in (copy.deepcopy(received([1])), pickle.loads(pickle.dumps(received([1])))):
        assert (same.value, same.trust_model) == ([1], TrustModel.RECEIVED)


def imported(path: Path) -> set[str]:
    """What a file takes from the module `privatised`; the module itself counts as all."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == privatised.__name__:
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "fedpriv.privacy.mechanism":
            names |= {"*" for alias in node.names if alias.name == "privatised"}
        elif isinstance(node, ast.Import):
            names |= {"*" for alias in node.names if alias.name == privatised.__name__}
    return names


def test_a_maker_is_used_only_where_it_is_honest() -> None:
    found: dict[str, set[str]] = {}
    for package in ("fedpriv", "client", "server", "strategies", "lab"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in imported(path):
                found.setdefault(name, set()).add(path.relative_to(ROOT).as_posix())
    public_names = {"Privatised", "TrustModel", "post_process", "require_privatised"}
    assert {name: found[name] for name in found.keys() - public_names} == USED_IN


@pytest.mark.parametrize(
    "source",
    [
        "from fedpriv.privacy.mechanism.privatised import released as harmless",
        "def f():\n    from fedpriv.privacy.mechanism.privatised import released",
    ],
)
def test_the_search_for_makers_finds_them(tmp_path: Path, source: str) -> None:
    (tmp_path / "x.py").write_text(source)
    assert imported(tmp_path / "x.py") == {"released"}


@pytest.mark.parametrize(
    "source",
    [
        "import fedpriv.privacy.mechanism.privatised as p",
        "from fedpriv.privacy.mechanism import privatised as p",
    ],
)
def test_the_search_for_makers_finds_the_module(tmp_path: Path, source: str) -> None:
    (tmp_path / "x.py").write_text(source)
    assert imported(tmp_path / "x.py") == {"*"}
