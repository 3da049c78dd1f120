"""What steers training accepts privatised values only: told by mypy, and again at run time.

Each call passes a raw array. Strict mypy checks this file too and reports an ignore that it does
not need, so it goes red as soon as one of them accepts a raw value; pytest makes the same calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from fedpriv.errors import RawValueError
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.noise_share import Whole
from fedpriv.privacy.mechanism.noisy_share import NoisyShare
from fedpriv.privacy.mechanism.privatised import (
    Privatised,
    post_process,
    public,
    require_privatised,
)
from fedpriv.public_update.config import OptimizerSection
from fedpriv.public_update.update import Tensors, VectorOptimizer
from fedpriv.wire import Blocks
from fedpriv_server.checkpoint import Checkpoint
from fedpriv_server.evaluation import evaluate
from fedpriv_strategies.aggregate import SiteSum, WeightedMean
from fedpriv_strategies.messages import as_arrays

if TYPE_CHECKING:
    from fedpriv.private_training.worker import Worker

RAW: Vector = np.ones(3, dtype=np.float32)
RAW_TENSORS: Tensors = {}
WHOLE: Whole = np.ones(3, dtype=np.int64)
SHARE = NoisyShare(WHOLE)
BLOCKS = Blocks(lambda name: b"", [], 3, "float32")
SETTINGS = OptimizerSection(name="sgd", lr=0.1)
WORKER = cast("Worker", None)  # what is refused does not get as far


def optimizer() -> VectorOptimizer:
    return VectorOptimizer(SETTINGS, public(RAW))


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("by hand", lambda: Privatised(RAW)),  # type: ignore[arg-type]
    ("argument", lambda: require_privatised(RAW, "argument")),  # type: ignore[arg-type]
    ("post_process", lambda: post_process(np.sum, RAW)),  # type: ignore[arg-type]
    ("post_process", lambda: post_process(np.add, public(RAW), RAW)),  # type: ignore[arg-type]
    ("initial", lambda: VectorOptimizer(SETTINGS, RAW)),  # type: ignore[arg-type]
    ("gradient", lambda: optimizer().step(RAW)),  # type: ignore[arg-type]
    ("state", lambda: optimizer().restore(RAW_TENSORS)),  # type: ignore[arg-type]
    ("SiteSum.value", lambda: WeightedMean(3).add(SiteSum(BLOCKS, 1.0, 1.0, 1.0))),  # type: ignore[arg-type]
    ("vector", lambda: as_arrays(RAW)),  # type: ignore[arg-type]
    ("vector", lambda: as_arrays(SHARE)),  # type: ignore[arg-type]
    ("post_process", lambda: post_process(np.sum, SHARE)),  # type: ignore[arg-type]
    ("vector", lambda: evaluate(WORKER, [], RAW)),  # type: ignore[arg-type]
    ("Checkpoint.tensors", lambda: Checkpoint("job", 1, RAW_TENSORS, {})),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("name", "call"), REFUSED)
def test_a_raw_value_is_refused(name: str, call: Callable[[], object]) -> None:
    with pytest.raises(RawValueError, match=name):
        call()
