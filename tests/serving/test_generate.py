"""What transformers' `generate` makes of a site model, whatever is asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

from fedpriv.errors import ConfigError
from tests.serving.answering import Alone, Made, texts

NEW = {"max_new_tokens": 6, "eos_token_id": None, "pad_token_id": 0}
GREEDY = {"do_sample": False, **NEW}


@pytest.fixture(scope="module")
def model(llama: Made) -> Any:
    return AutoModelForCausalLM.from_pretrained(llama.folder)


@pytest.fixture(scope="module")
def alone(llama: Made) -> Alone:
    return Alone(llama)


@pytest.fixture(scope="module")
def expected(alone: Alone) -> list[list[int]]:
    return alone.generate(texts(), use_cache=False, **GREEDY).tolist()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"cache_implementation": "dynamic"},
        {"attention_mask": torch.ones(2, 9, dtype=torch.long)},
    ],
    ids=str,
)
def test_the_likeliest_tokens_are_those_of_the_mean(
    options: dict[str, Any], model: Any, expected: list[list[int]]
) -> None:
    assert model.generate(texts(), **GREEDY, **options).tolist() == expected


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 1.5},
        {"num_beams": 3, "length_penalty": -2.0, "eos_token_id": 7, "early_stopping": True},
        {"num_beams": 2, "do_sample": True, "top_k": 20, "temperature": 0.7},
        {"do_sample": True, "top_p": 0.8, "num_return_sequences": 2},
        {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
        {"cache_implementation": "static", "num_beams": 2},
    ],
    ids=str,
)
def test_searches_and_draws_are_those_of_the_mean(
    options: dict[str, Any], model: Any, alone: Alone
) -> None:
    options = GREEDY | options
    torch.manual_seed(1)
    found = model.generate(texts(), **options)
    options = {name: value for name, value in options.items() if name != "cache_implementation"}
    torch.manual_seed(1)
    assert found.tolist() == alone.generate(texts(), use_cache=False, **options).tolist()


def test_drawn_tokens_are_drawn_by_the_mean(model: Any, llama: Made) -> None:
    torch.manual_seed(2)
    found = model.generate(texts(), do_sample=True, top_k=0, **NEW)
    torch.manual_seed(2)
    row = texts()
    for _ in range(NEW["max_new_tokens"]):
        share = llama.mean(input_ids=row)[:, -1].exp().float()
        row = torch.cat([row, torch.multinomial(share, 1)], 1)
    assert found.tolist() == row.tolist()


def test_a_text_is_continued_alike_beside_a_longer_one(
    model: Any, expected: list[list[int]]
) -> None:
    short, long = texts()[0], texts(3)[2].repeat(2)
    padded = torch.stack([torch.cat([torch.zeros(9, dtype=torch.long), short]), long])
    found = model.generate(padded, attention_mask=(padded > 0).long(), **GREEDY)
    assert found[0, 9:].tolist() == expected[0]


def test_looked_up_tokens_change_nothing(model: Any, expected: list[list[int]]) -> None:
    found = model.generate(texts()[:1], prompt_lookup_num_tokens=3, **GREEDY)
    assert found.tolist() == expected[:1]


def test_a_text_may_be_given_as_embeddings(model: Any, expected: list[list[int]]) -> None:
    given = model.get_input_embeddings()(texts())
    found = model.generate(inputs_embeds=given, **GREEDY)
    assert found.tolist() == [row[9:] for row in expected]


def test_scores_are_logarithms_of_the_mean_probabilities(model: Any, alone: Alone) -> None:
    options = {"output_logits": True, "return_dict_in_generate": True, **GREEDY}
    found = model.generate(texts(), **options)
    expected = alone.generate(texts(), use_cache=False, **options)
    for one, other in zip(found.logits, expected.logits, strict=True):
        assert torch.allclose(one.exp().sum(-1), torch.ones(2))
        assert one.argmax(-1).tolist() == other.argmax(-1).tolist()


def test_hidden_states_of_each_adapter_are_refused_by_name(model: Any) -> None:
    with pytest.raises(ConfigError, match=r"output_hidden_states: each adapter has its own"):
        model.generate(texts(), output_hidden_states=True, **GREEDY)


def test_it_writes_as_it_goes_and_stops_at_a_word(
    model: Any, llama: Made, expected: list[list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(llama.folder)
    streamer = TextStreamer(tokenizer, skip_prompt=True)
    model.generate(texts()[:1], streamer=streamer, **GREEDY)
    assert capsys.readouterr().out.strip() == tokenizer.decode(expected[0][9:]).strip()
    long = GREEDY | {"max_new_tokens": 60}
    row = model.generate(texts()[:1], **long)[0].tolist()
    words = [tokenizer.decode(token) for token in row]
    place = next(i for i in range(9, len(row)) if words[i].isalpha() and words[i].isascii())
    found = model.generate(texts()[:1], stop_strings=[words[place]], tokenizer=tokenizer, **long)
    assert found[0].tolist() == row[: place + 1]


def test_it_stops_where_the_model_reads_no_further(model: Any) -> None:
    found = model.generate(texts(1, 120), **(GREEDY | {"max_new_tokens": 1000}))
    assert found.shape == (1, 128)


def test_a_text_that_is_too_long_is_refused(model: Any) -> None:
    with pytest.raises(ConfigError, match=r"129 tokens is longer than the model reads, 128"):
        model.generate(texts(1, 129), **GREEDY)
