"""A small model goes on from nothing and from a prefix; the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from fedpriv.errors import RoundError
from fedpriv.synthetic.config import GeneratorSection
from fedpriv.synthetic.language_model import LanguageModelGenerator

Make = Callable[..., Any]


@pytest.fixture
def generator(make_worker: Make) -> Make:
    worker = make_worker("llama", dtype="float32")

    @contextmanager
    def model() -> Iterator[tuple[Any, Any]]:
        yield worker.model, worker.base.tokenizer

    def make(*fields: str, max_length: int = 24, **settings: Any) -> LanguageModelGenerator:
        section = GeneratorSection(**settings)
        return LanguageModelGenerator(model, section, fields, max_length)

    return make


def test_it_samples_from_nothing(generator: Make) -> None:
    made = generator("text").random(5, "a")
    assert [set(record) for record in made] == [{"text"}] * 5
    assert len({record["text"] for record in made}) == 5


def test_the_same_seed_makes_the_same_and_leaves_torch_alone(generator: Make) -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    maker = generator("text")
    assert maker.random(3, "a") == maker.random(3, "a") != maker.random(3, "b")
    assert torch.equal(torch.rand(1), expected)


def test_a_variation_keeps_a_beginning(generator: Make) -> None:
    seeds = [{"text": "abcdefghij"}, {"text": "zyxwvutsrqponmlkjihg"}]
    for low, high in ((0.5, 0.5), (0.0, 0.0)):
        made = generator("text", keep=(low, high)).variations(seeds, "s")
        for seed, record in zip(seeds, made, strict=True):
            kept = seed["text"][: int(low * len(seed["text"]))]
            assert record["text"].startswith(kept)
            assert record["text"] != seed["text"]


def test_the_share_that_is_kept_is_drawn_between_the_two(generator: Make) -> None:
    seed = {"text": "abcdefghijklmnopqrst"}
    made = generator("text", keep=(0.2, 0.8), max_length=30).variations([seed] * 40, "s")
    kept = [
        next((i for i, (a, b) in enumerate(zip(one["text"], seed["text"], strict=False)) if a != b),
             20)
        for one in made
    ]  # fmt: skip
    assert min(kept) < 8 and max(kept) > 12


def test_a_prompt_is_kept_and_the_completion_varies(generator: Make) -> None:
    record = {"prompt": "name[X], food[Y]", "completion": "X serves Y."}
    [made] = generator("prompt", "completion", max_length=48, keep=(0.5, 0.5)).variations(
        [record], "s"
    )
    assert made["prompt"] == record["prompt"]
    assert made["completion"].startswith("X ser")
    assert made["completion"] != record["completion"]


def test_new_records_are_written_after_the_prompt_of_all(generator: Make) -> None:
    made = generator("prompt", "completion", max_length=20, prompt="Write one:").random(4, "a")
    assert {one["prompt"] for one in made} == {"Write one:"}
    assert len({one["completion"] for one in made}) == 4
    assert all(0 < len(one["completion"]) <= 20 for one in made)
    other = generator("prompt", "completion", max_length=20, prompt="Another:").random(4, "a")
    assert [one["completion"] for one in other] != [one["completion"] for one in made]
    with pytest.raises(RoundError, match=r"set synthetic\.generator\.prompt"):
        generator("prompt", "completion").random(1, "a")


def test_a_record_as_long_as_the_window_still_varies(generator: Make) -> None:
    record = {"text": "a" * 100}
    [made] = generator("text", max_length=16, keep=(0.9, 0.9)).variations([record], "s")
    assert made["text"].startswith("a" * 14)
    assert made["text"] != record["text"]


@pytest.mark.parametrize("length", [40, 62, 64, 500])
def test_a_prompt_that_fills_the_window_leaves_room(generator: Make, length: int) -> None:
    record = {"prompt": "p" * length, "completion": "old words " * 20}
    [made] = generator("prompt", "completion", max_length=64).variations([record], "s")
    assert made["prompt"] == record["prompt"]
    assert made["completion"] != record["completion"].strip()
    assert len(made["completion"]) < 64
