"""Load a base model and its tokenizer from a folder or a hub name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.base_model import is_lost, source_of
from fedpriv.environment import without_hub_code
from fedpriv.errors import ConfigError, FedprivError, ModelError, NotPrivateError
from fedpriv.kept import kept
from fedpriv.models.attention import attend_alone, register_attention
from fedpriv.models.config import ModelSection
from fedpriv.models.digest import StoredBase, base_digest, find_base, quantised_digest, stored_type
from fedpriv.models.outputs import check_problem, check_tokens, other_head, stored_names
from fedpriv.plugins import load_part
from fedpriv.proxy import through_hub

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Keys of a configuration that say how many tokens a model reads. The smallest value counts.
POSITIONS = ("max_position_embeddings", "max_seq_len", "max_target_positions")


@dataclass(frozen=True)
class Base:
    """A frozen base model with its tokenizer.

    Attributes:
        source: its folder or hub name.
        digest: the digest of all of it, see `fedpriv.models.digest.base_digest` and
            `quantised_digest`.
        drawn: names of parameters that its files don't hold, such as those of a new head.
        begin_digest: the digest of the adapter that a job begins at; None without one.
        begin: gives that adapter's values to a new one; None if it was merged into the base.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: str
    digest: str
    drawn: frozenset[str] = frozenset()
    begin: Callable[[Any], None] | None = None
    begin_digest: str | None = None


@without_hub_code()
def load_base(
    settings: ModelSection, *, dtype: str = "float32", seed: int = 0, whole: Iterable[str] = ()
) -> Base:
    """Load the model of `settings` in `dtype`, on the CPU, in evaluation mode.

    With ``mixed`` it is still float32, see `fedpriv.models.mixed`. With ``settings.quantize`` it is
    packed, see `fedpriv.models.quantised.pack`. Before that it is read in the type of its files, so
    that memory holds no more than these.

    Only safetensors are read and no code of the model's repository is run. A new
    classification head is drawn from the public `seed`; its last layer is 0.

    Args:
        whole: names of layers that will be trained whole, which are not packed.

    Raises:
        ModelError: the model is not found, has no safetensors, is not for the task, or lacks
            weights; or `settings.begin` is an adapter of another model.
        NotPrivateError: its files are quantised already, or its configuration names code.
        ConfigError: a text may be longer than the model reads, its own classes are in another order
            than the labels, or the library that quantises is not installed.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    source = source_of(settings.name)
    tokenizer = load_tokenizer(settings)
    options: dict[str, Any] = {
        "output_loading_info": True,
        "dtype": torch.float32 if dtype == "mixed" else getattr(torch, dtype),
        "use_safetensors": True,
        "trust_remote_code": False,
    }
    factory: Any = AutoModelForCausalLM
    if settings.task == "classification":
        factory = AutoModelForSequenceClassification
        options["num_labels"] = len(settings.labels)
        options["id2label"] = dict(enumerate(settings.labels))
        options["label2id"] = {label: index for index, label in enumerate(settings.labels)}
        # A head for other labels is drawn anew; an encoder's own layers have to fit.
        options["ignore_mismatched_sizes"] = settings.pooling == "own"

    def load() -> tuple[Any, set[str]]:
        with torch.random.fork_rng(devices=[]), quiet():
            torch.manual_seed(seed)
            if settings.pooling == "mean":
                return load_part("model.pooling").from_encoder(source, **options)  # type: ignore[no-any-return]
            made, loaded = factory.from_pretrained(source, **options)
            drawn = (entry[0] for entry in loaded["mismatched_keys"])
            return made, {*loaded["missing_keys"], *drawn}

    try:
        stored = find_base(source)
        refuse_code(settings.name, stored.settings)
        options["revision"] = stored.revision  # what is hashed below is what is loaded here
        if settings.quantize is not None:
            quantised = load_part("model.quantize")
            quantised.bitsandbytes(settings.quantize)  # before a large file is read in vain
            options["dtype"] = getattr(torch, stored_type(stored))
        model, new = load()
        if settings.quantize is not None and any(
            b.dtype in (torch.bfloat16, torch.float16) for b in model.buffers()
        ):
            options["dtype"] = torch.float32  # a constant that the model computes was rounded
            model, new = load()
    except FedprivError:
        raise
    except Exception as error:  # from files, from their content, or from what a library needs
        raise not_loaded(settings, error) from None
    _refuse_drawn(model, new, settings)
    if settings.task == "classification" and settings.pooling == "own":
        check_problem(stored.settings.get("problem_type"))
        new |= other_head(
            model, new, stored_names(stored.settings.get("id2label")), settings.labels
        )
    model.requires_grad_(False)
    model.eval()
    digest = quantised_digest(base_digest(stored, tokenizer), settings.quantize)
    tried = {
        "trial": "attention",
        "base": digest,
        "head": [settings.task, settings.pooling, sorted(new), seed],
        "max_length": settings.max_length,
        "dtype": str(options["dtype"]),
        "padding": model.config.get_text_config().pad_token_id,
    }
    compute_alone(model, tokenizer, settings.max_length, f"model.name: {settings.name!r}", tried)
    if settings.quantize is not None:
        quantised.pack(
            model, settings.quantize, (*whole, *(name.rpartition(".")[0] for name in new))
        )
    if settings.task == "classification":
        _start_at_even_odds(model, new, len(settings.labels))
    check_tokens(model, tokenizer, settings.name)
    # MPNet counts positions from padding token 1, whatever its configuration says.
    known = (None, 1 if model.config.model_type == "mpnet" else tokenizer.pad_token_id)
    if _first_position(model) not in known:
        raise ModelError(
            f"model.name: {settings.name!r} counts positions from another padding token than its"
            " tokenizer has. Set pad_token_id in config.json to the tokenizer's."
        )
    most = longest(model)
    if settings.max_length > most:
        problem = f"is more than the {most} tokens that {settings.name!r} can read"
        raise ConfigError(problem, key="model.max_length", value=settings.max_length)
    base = Base(model, tokenizer, source, digest, frozenset(new))
    return base if settings.begin is None else load_part("model.begin").begun(base, settings)


def _refuse_drawn(model: Any, new: Collection[str], settings: ModelSection) -> None:
    """Refuse a model whose files lack weights: those would be random.

    A classifier's head may be new, and so may a pooler, which no language model's files have.
    """
    within = f"{model.base_model_prefix}." if settings.task == "classification" else ""
    names = [name for name, _ in model.named_parameters() if name in new]
    lost = [name for name in names if name.startswith(within) and "pooler" not in name.split(".")]
    if lost:
        raise ModelError(
            f"model.name: files of {settings.name!r} lack weights, or have them in other shapes:"
            f" {', '.join(lost[:3])}. Name the files of a whole model for {settings.task}."
        )


def refuse_code(name: str, settings: Mapping[str, Any]) -> None:
    """Refuse a model whose configuration lets other code than transformers' compute with it.

    Args:
        settings: its config.json.

    Raises:
        NotPrivateError: its files are quantised, or attention code would be fetched and run.
    """
    if settings.get("quantization_config") or settings.get("compression_config"):
        raise NotPrivateError(
            f"model.name: {name!r} is stored quantised. Its maker chose how"
            " activations are rounded, and that may depend on the other records of a batch. Name"
            " the model in full precision, and set model.quantize to keep it in 8 or 4 bits."
        )
    for key, value in entries(settings):
        if key.endswith("_implementation") and "/" in str(value):
            raise NotPrivateError(
                f"model.name: config.json of {name!r} says {key} = {value!r}. That is code, which"
                " would be fetched from a hub and run beside the records. Take the key out."
            )


def entries(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a configuration, at any level."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            yield key, value
            yield from entries(value)


@without_hub_code()
def compute_alone(
    model: Any, tokenizer: Any, longest: int, name: str, of: dict[str, Any] | None = None
) -> None:
    """Let a model compute each record of a batch by itself, as transformers computes it alone.

    Args:
        model: as transformers loaded it, in evaluation mode.
        longest: tokens that a record may have.
        name: the model's name, for messages.
        of: all that the choice of its attention depends on, so that the choice is kept for the next
            start; None for a model that somebody made.

    Raises:
        NotPrivateError: none of its attentions does so.
    """
    model.config.use_cache = False  # code that generates asks for the cache itself
    find = partial(_tried_attention, model, tokenizer, longest, name)
    attention = kept(of, find)
    register_attention()
    if model.config._attn_implementation != attention:
        model.set_attn_implementation(attention)
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id


def _tried_attention(model: Any, tokenizer: Any, longest: int, name: str) -> str:
    """Give a model the attention by which it computes each record by itself, and return it."""
    from fedpriv.models.trial import MEANT, Trial

    kind = model.config.model_type
    try:
        trial = Trial(model, tokenizer, longest)
    except Exception as error:  # an architecture may ask for anything besides
        raise NotPrivateError(
            f"{name} ({kind}) can't compute a text by itself: {first_line(error)}."
        ) from None
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    off = attend_alone(model, trial)
    other = "Use another architecture: docs/reference/models.md has a table."
    if trial.meant < MEANT:
        raise NotPrivateError(
            f"{name} ({kind}): it is unclear whether it reads padding, as no token changes its"
            f" output for a later one. {other}"
        )
    if off > 1:
        raise NotPrivateError(
            f"{name} ({kind}) gives other results for a padded text: its logits move by"
            f" {off:.0f} times what rounding explains. {other}"
        )
    if trial.sees_later_tokens():
        raise NotPrivateError(
            f"{name} ({kind}) sees the tokens that it is to predict. Set is_decoder in its"
            f" configuration if it has that, or use a decoder."
        )
    return str(model.config._attn_implementation)


def fetch_base(settings: ModelSection) -> StoredBase:
    """Return the files of a base on this machine's disk; those of a hub are downloaded once.

    So are those of the adapter that a job begins at.

    Raises:
        ModelError, ConfigError: as `load_base`.
    """
    if settings.begin is not None:
        load_part("model.begin").find_adapter(settings.begin)
    try:
        return find_base(source_of(settings.name))
    except FAILURES as error:
        raise not_loaded(settings, error) from None


def longest(model: PreTrainedModel) -> int:
    """Return the number of tokens that a model has positions for."""
    text: Any = model.config.get_text_config()
    known = [getattr(text, name, None) for name in POSITIONS]
    offset = _first_position(model)
    return min(filter(None, known), default=2**20) - (0 if offset is None else offset + 1)


def _first_position(model: PreTrainedModel) -> int | None:
    """Return the padding token's id, after which RoBERTa and its like count; None for others."""
    embedded = [m for name, m in model.named_modules() if name.endswith("position_embeddings")]
    return getattr(embedded[0], "padding_idx", None) if embedded else None


def _start_at_even_odds(model: PreTrainedModel, new: Collection[str], labels: int) -> None:
    """Set the last layer of a new head to 0, so that all labels start equally likely.

    Random logits cost a private run its first rounds to unlearn.
    """
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in new and parameter.shape[0] == labels:
                parameter.zero_()


def load_tokenizer(settings: ModelSection) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model; one without a padding token pads with its end token.

    Raises:
        ModelError: it is not found, or has neither a padding nor an end token.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            source_of(settings.name), trust_remote_code=False
        )
    except (*FAILURES, TypeError) as error:
        raise not_loaded(settings, error) from None
    pad_with_end(tokenizer, f"model.name: the tokenizer of {settings.name!r}")
    tokenizer.truncation_side = "right"  # a long text keeps its beginning, whatever a file says
    return tokenizer  # type: ignore[no-any-return]


def pad_with_end(tokenizer: Any, name: str) -> None:
    """Give a tokenizer without a padding token its end token for one.

    Raises:
        ModelError: it has neither.
    """
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise ModelError(
                f"{name} has no padding and no end token. Add one and save the tokenizer again."
            )
        tokenizer.pad_token = tokenizer.eos_token


# Errors of files, of their content, and of the libraries that a proxy may need.
FAILURES = (OSError, ValueError, KeyError, ImportError)


def not_loaded(settings: ModelSection, error: Exception) -> ModelError:
    if is_lost(settings.name):
        return ModelError(
            f"model.name: there is no such folder: {settings.name!r}. Put the model back there, or"
            " name the folder where it is, or a hub model."
        )
    way = "" if Path(source_of(settings.name)).is_dir() else through_hub()
    return ModelError(
        f"model.name: can't load {settings.name!r} for {settings.task}: {first_line(error)}{way}."
        " Name a folder with config.json, model.safetensors and tokenizer.json, or a hub model."
    )


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else repr(error)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the loader's note about a new head, and its progress bar."""
    from transformers.utils import logging

    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(40)  # errors only
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
