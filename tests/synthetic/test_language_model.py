"""A small model goes on from nothing and from a prefix; the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import save_tiny

from fedpriv.errors import ModelError, RoundError
from fedpriv.models.base import load_base
from fedpriv.models.config import ModelSection
from fedpriv.synthetic.config import GeneratorSection
from fedpriv.synthetic.language_model import LanguageModelGenerator, room, sample, window

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
    made = generator("text").variations(seeds, "s")
    for seed, record in zip(seeds, made, strict=True):
        assert record["text"].startswith(seed["text"][: len(seed["text"]) // 4])
        assert record["text"] != seed["text"]


def test_the_share_that_is_kept_is_drawn_between_the_two(generator: Make) -> None:
    seed = {"text": "abcdefghijklmnopqrst"}
    made = generator("text", max_length=30).variations([seed] * 40, "s")
    kept = [
        next((i for i, (a, b) in enumerate(zip(one["text"], seed["text"], strict=False)) if a != b),
             20)
        for one in made
    ]  # fmt: skip
    assert min(kept) < 8 and max(kept) > 12


def test_a_prompt_is_kept_and_the_completion_varies(generator: Make) -> None:
    record = {"prompt": "name[X], food[Y]", "completion": "X serves Y."}
    [made] = generator("prompt", "completion", max_length=48).variations([record], "s")
    assert made["prompt"] == record["prompt"]
    assert made["completion"].startswith("X ")
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


def test_a_record_as_long_as_the_window_still_varies(
    generator: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpriv.synthetic.language_model.KEPT", (0.9, 0.9))
    record = {"text": "a" * 100}
    [made] = generator("text", max_length=16).variations([record], "s")
    assert made["text"].startswith("a" * 14)
    assert made["text"] != record["text"]


def test_a_long_prompt_leaves_half_of_a_record(generator: Make) -> None:
    """63 bytes and the token before them fill the window, and 33 in a model that reads 128."""
    maker = generator("prompt", "completion", max_length=64, prompt="p" * 62)
    assert max(len(one["completion"]) for one in maker.random(8, "s")) > 16
    with maker._model() as (model, _):
        given = list(range(3, 103))
        assert window(model, given, 64) == given[-63:] and room(63, 64) == 32
        assert window(model, given, 128) == given[-64:] and room(10, 64) == 54
        assert window(model, given[:50], 64) == given[:50]


@pytest.mark.parametrize("length", [40, 62, 64, 500])
def test_a_prompt_that_fills_the_window_leaves_room(generator: Make, length: int) -> None:
    record = {"prompt": "p" * length, "completion": "old words " * 20}
    [made] = generator("prompt", "completion", max_length=64).variations([record], "s")
    assert made["prompt"] == record["prompt"]
    assert made["completion"] != record["completion"].strip()
    assert len(made["completion"]) < 64


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_text_is_as_long_as_it_is_by_itself(kind: str, make_worker: Make) -> None:
    """Beside a start of 125 tokens, where 128 is all that the model has positions for."""
    worker = make_worker(kind)
    starts = [[1, *([7 + i] * length)] for i, length in enumerate((2, 124, 60, 99))]
    for longest in (100, 128, 500):
        rooms = [longest - len(start) for start in starts]
        together = sample(worker.model, worker.base.tokenizer, starts, rooms)
        for start, most, found in zip(starts, rooms, together, strict=True):
            assert sample(worker.model, worker.base.tokenizer, [start], [most]) == [found]
            assert 1 <= len(found) <= max(1, most) and len(start) + len(found) <= 128
            assert len(found) == max(1, min(most, 128 - len(start))) or found[-1] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"repetition_penalty": 1.8},
        {"num_beams": 4, "length_penalty": 5.0},
        {"do_sample": True, "top_p": 0.01},
        {"suppress_tokens": [*range(3, 200)]},
        {"max_length": 9, "min_new_tokens": 20},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_a_model_asks_for_itself_changes_nothing(
    changes: dict[str, Any], make_worker: Make
) -> None:
    """Its `generation_config` may have anything, and stays as it was."""
    worker = make_worker("llama")
    model, tokenizer = worker.model, worker.base.tokenizer
    starts = [[1, 70, 80], [1, 90, 91, 92]]

    def texts(**how: Any) -> Any:
        return sample(model, tokenizer, starts, [24, 24], **how)

    likeliest, drawn = texts(), [texts(temperature=1.0, seed=seed) for seed in "abc"]
    assert drawn[0] != drawn[1] != drawn[2]
    inner = model.get_base_model()
    before = inner.generation_config
    inner.generation_config = type(before)(**before.to_dict() | changes)
    assert texts() == likeliest
    assert [texts(temperature=1.0, seed=seed) for seed in "abc"] == drawn
    for key, value in changes.items():
        assert getattr(inner.generation_config, key) == value
    inner.generation_config = before


def test_a_text_ends_at_any_end_that_the_model_or_its_tokenizer_has(make_worker: Make) -> None:
    """And no padding comes after it: `fedpriv-client personalise --single` learns these texts."""
    worker = make_worker("llama")
    model, tokenizer = worker.model, worker.base.tokenizer
    inner = model.get_base_model()
    starts = [[1, 70, 80]] * 40

    def texts() -> list[list[int]]:
        return sample(model, tokenizer, starts, [48] * 40, temperature=1.0, seed="s")

    others = [*range(100, 120)]
    inner.generation_config.eos_token_id = others
    found = texts()
    inner.generation_config.eos_token_id = 2
    assert {row[-1] for row in found if len(row) < 48} > {2} and min(map(len, found)) < 48
    for row in found:
        assert not {2, *others} & set(row[:-1])
        assert len(row) == 48 or row[-1] in {2, *others}


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral", "gpt_neox"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_models_write_as_they_compute(
    kind: str, dtype: str, make_worker: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are tried once, which changes nothing of what they are."""
    worker = make_worker(kind, dtype=dtype)
    model, tokenizer = worker.model, worker.base.tokenizer
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert sample(model, tokenizer, [[1, 70, 80]], [3])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {value.dtype for value in before.values()} == {p.dtype for p in model.parameters()}
    monkeypatch.setattr("fedpriv.synthetic.language_model.Trial", lambda *_: pytest.fail("twice"))
    assert sample(model, tokenizer, [[1, 70, 80]], [3])


@pytest.mark.parametrize("kind", ["roberta", "data2vec-text", "trocr", "rwkv"])
def test_a_model_that_writes_at_other_places_than_it_learned_is_refused(
    kind: str, tmp_path: Path
) -> None:
    save_tiny(kind, "causal-lm", tmp_path)
    base = load_base(ModelSection(name=str(tmp_path), max_length=32))
    with pytest.raises(ModelError, match=rf"{kind}\) can be trained and scored, but not generate"):
        sample(base.model, base.tokenizer, [[1, 70, 80]], [3])
