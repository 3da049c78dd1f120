"""Check a model's outputs against labels, and its tokens against its rows, before any record."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedpriv.errors import ConfigError, FedprivError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from fedpriv.models.config import ModelSection

log = logging.getLogger(__name__)
_TRIED = 8  # tokens
_SAYS_NOTHING = re.compile(r"label_\d+", re.I)  # what transformers calls a class without a name
_ONE_OF_THEM = (None, "single_label_classification")


def check_tokens(model: Any, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Check that each token has a row of the embeddings.

    Raises:
        ModelError: one has none.
    """
    tokens = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=0))
    rows = len(model.get_input_embeddings().weight)
    if tokens > rows:
        raise ModelError(
            f"model.name: the tokenizer of {name!r} knows {tokens} tokens, the"
            f" model {rows}. Use the tokenizer the model was trained with."
        )


def check_outputs(model: Any, tokenizer: PreTrainedTokenizerBase, section: ModelSection) -> None:
    """Check by the outputs for a few tokens that a model fits the task and the labels.

    Raises:
        ModelError, ConfigError: it does not. The error says what to do.
    """
    import torch

    from fedpriv.models.trial import random_texts

    check_tokens(model, tokenizer, section.name)
    [text] = random_texts(model, tokenizer, [min(_TRIED, section.max_length)])
    ids = text.ids[None].to(model.get_input_embeddings().weight.device)
    try:
        with torch.no_grad():
            shape = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.shape
    except FedprivError:
        raise
    except Exception as error:  # any model may fail in any way; the tokens are nobody's
        raise ModelError(
            f"{section.name}: gives no logits for a text ({type(error).__name__}: {error})."
            f" Use a model for {section.task}."
        ) from None
    if section.task == "classification":
        _check_classes(model, shape, section.labels)
        if section.pooling == "own":
            check_problem(model.config.problem_type)
    elif len(shape) != 3:
        raise ModelError(
            f"{section.name}: gives one output a text, as a classifier does, and no labels are"
            " named. Name them, with a column label, or use a language model."
        )
    elif len(tokenizer) > shape[2]:
        raise ModelError(
            f"{section.name}: the tokenizer knows {len(tokenizer)} tokens, and the model predicts"
            f" {shape[2]}. Use the tokenizer the model was trained with."
        )


def _check_classes(model: Any, shape: tuple[int, ...], labels: Sequence[str]) -> None:
    if len(shape) != 2:
        raise ModelError(
            "Labels are named, and the model is no classifier: it gives an output for each token."
            " Load it with AutoModelForSequenceClassification, or leave the labels out."
        )
    if shape[1] != len(labels):
        problem = f"are {len(labels)}, and the model has {shape[1]} outputs"
        fix = f"Name a label for each output, or load the model with num_labels = {len(labels)}."
        raise ConfigError(problem, key="labels", value=list(labels), fix=fix)
    names = stored_names(model.config.id2label)
    if names and not agree(names, labels):
        raise ConfigError(
            f"are not those of the model, {', '.join(names)}",
            key="labels",
            value=list(labels),
            fix="Name the model's own, or set its config.id2label.",
        )


def check_problem(problem: str | None) -> None:
    """Refuse a head that does not choose one of its classes: the loss here is for such a head.

    Raises:
        ModelError: it is for a regression, or for several labels at once.
    """
    if problem not in _ONE_OF_THEM:
        raise ModelError(
            f"The model's problem_type is {problem!r}, and what is learned here is to give a text"
            f' one of its labels. Set problem_type to "{_ONE_OF_THEM[1]}" in its configuration.'
        )


def stored_names(id2label: Any) -> list[str]:
    """Return a configuration's names of the classes, in the order of the outputs; [] without any.

    Args:
        id2label: as `json` or transformers reads it.
    """
    try:
        names = [str(id2label[key]) for key in sorted(id2label, key=int)]
    except (TypeError, ValueError):
        return []
    return [] if all(_SAYS_NOTHING.fullmatch(name) for name in names) else names


def agree(stored: Sequence[str], labels: Sequence[str]) -> bool:
    """Tell whether the classes of a stored head are those declared, in the same order.

    Case and the spaces around a name make no difference.

    Raises:
        ConfigError: they are the same in another order.
    """
    there, declared = ([name.strip().casefold() for name in names] for names in (stored, labels))
    if there != declared and sorted(there) == sorted(declared):
        problem = "are those of the model's own classifier, in another order than its outputs"
        fix = f"Write them in its order: {list(stored)}."
        raise ConfigError(problem, key="labels", value=list(labels), fix=fix)
    return there == declared


def other_head(
    model: PreTrainedModel, new: set[str], stored: Sequence[str], labels: Sequence[str]
) -> set[str]:
    """Return the parameters of a head for other classes, to draw anew; none if it is kept.

    Args:
        new: names of the parameters that its files don't hold, or hold in other shapes.
        stored: see `stored_names`.

    Raises:
        ConfigError: its classes are those that are declared, in another order.
    """
    prefix, count = f"{model.base_model_prefix}.", len(labels)
    head = {name for name, p in model.named_parameters() if p.shape[0] == count}
    head = {name for name in head if not name.startswith(prefix)}
    if not stored or (len(stored) == count and (head & new or agree(stored, labels))):
        return set()
    log.warning(
        "The model's own classifier is for %s. Its output layer is drawn anew, for %s.",
        *(", ".join(names) for names in (stored, labels)),
    )
    return head
