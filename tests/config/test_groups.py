"""What a decision may say, on the wire and anywhere else."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from fedpriv.config.groups import MAX_GROUPS, Decision, GroupTerms

GOOD: dict[str, Any] = {"clip_norms": (1.0, 2.0), "weights": (0.25, 0.75)}


def test_a_decision_comes_back_from_the_wire_as_it_was() -> None:
    third = 1 / 3
    decision = Decision(clip_norms=(0.1,) * 3, weights=(third,) * 3)
    assert Decision.model_validate_json(decision.model_dump_json()) == decision


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"clip_norms": (1.0,)}, "weights"),
        ({"clip_norms": (), "weights": ()}, "clip_norms"),
        ({"weights": (0.25, 0.75 + 2e-9)}, "weights"),
        ({"weights": (0.25, 0.5)}, "weights"),
        ({"weights": (0.0, 1.0)}, "weights.0"),
        ({"weights": (-0.5, 1.5)}, "weights.0"),
        ({"weights": (math.nan, 1.0)}, "weights.0"),
        ({"clip_norms": (0.0, 1.0)}, "clip_norms.0"),
        ({"clip_norms": (1.0, math.nan)}, "clip_norms.1"),
        ({"clip_norms": (1.0, math.inf)}, "clip_norms.1"),
        ({"clip_norms": (1.0, 1.1e6)}, "clip_norms.1"),
        ({"clip_norms": (1.0, 0.9e-6)}, "clip_norms.1"),
        ({"other": 1}, "other"),
        ({"clip_norms": (1.0,) * (MAX_GROUPS + 1)}, "clip_norms"),
    ],
)
def test_what_is_no_decision_is_refused_by_key(changed: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Decision(**{**GOOD, **changed})
    first = caught.value.errors()[0]
    where = ".".join(map(str, first["loc"]))
    assert where == key or first["msg"].startswith(f"Value error, {key}:")


def test_weights_may_be_as_far_from_one_as_rounding_makes_them() -> None:
    assert Decision(clip_norms=(1.0, 1.0), weights=(0.25, 0.75 + 0.5e-9))
    assert Decision(clip_norms=(1.0,) * MAX_GROUPS, weights=(1 / MAX_GROUPS,) * MAX_GROUPS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"by": "rows", "count": 1},
        {"by": "model", "count": 2},
        {"by": "layers", "count": 0},
        {"by": "layers", "count": MAX_GROUPS + 1},
        {"by": "layers", "count": 2, "bits": 0.51},
        {"by": "layers", "count": 2, "bits": -0.1},
        {"by": "layers", "count": 2, "bits": math.nan},
        {"by": "layers", "count": 2, "adaptive": True},
    ],
)
def test_what_are_no_groups_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        GroupTerms(**wrong)


def test_groups_without_more_are_clipped_each_by_itself() -> None:
    terms = GroupTerms(by="adapters", count=24)
    assert (terms.together, terms.bits, terms.adaptive) == (False, 0.0, False)
