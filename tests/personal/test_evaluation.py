"""What is said beside the models of a site."""

from __future__ import annotations

import pytest

from fedpriv.personal.evaluation import Row, _worse_than_base
from fedpriv.plain_training.scores import Scores


@pytest.mark.parametrize(("alone", "said"), [(0.70, True), (0.69, False), (0.6, False)])
def test_a_model_that_training_made_worse_is_told(alone: float, said: bool) -> None:
    rows = [Row("base", Scores(0.69, 0.5)), Row("alone", Scores(alone, 0.5))]
    assert bool(_worse_than_base(rows)) == said
    assert _worse_than_base(rows[:1]) == []
