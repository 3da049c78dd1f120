"""Site models as classes of transformers. Several adapters on one base answer each token together.

Privacy
    As confidential as the records, because some of the adapters were trained on them without noise.
    A site model is for its site alone, and refuses to be saved elsewhere or pushed to a hub (law
    16).
"""

from __future__ import annotations

import ctypes
import inspect
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from peft.utils import ModulesToSaveWrapper
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    DynamicCache,
    GenerationMixin,
    PreTrainedModel,
    StoppingCriteria,
)
from transformers.utils.generic import ModelOutput

from fedpriv.environment import without_hub_code
from fedpriv.errors import ConfigError
from fedpriv.personal.together import mean_of_probabilities
from fedpriv.serving.config import SiteModelConfig, refuse_to_leave
from fedpriv.serving.folder import BASE, check_folder
from fedpriv.serving.rows import AdapterRows, PackedLinear, RowsCache, SharedOutput, WholeRows

PER_TEXT = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
OF_EACH = ("output_attentions", "output_hidden_states")  # would be one adapter's, not the model's
CACHES = ("cache", "past_key_values", "cache_params")  # names in versions of transformers


class SiteModel(PreTrainedModel):  # type: ignore[no-untyped-call]
    """A base model with several adapters, whose probabilities are averaged at each token.

    Args:
        config: the configuration, with the weights.
        base: the base model with all adapters, each by its name.
        pack: lay the weights out for products of few rows, on a CPU in float32. The model can't be
            moved to another device then.

    Attributes:
        logits: the model's answers are logarithms of the mean probabilities.
    """

    config_class = SiteModelConfig
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = True
    _auto: ClassVar[Any]

    def __init__(self, config: SiteModelConfig, base: PeftModel, *, pack: bool = True) -> None:
        super().__init__(config)
        self.names = tuple(config.weights)
        self.shares = tuple(config.weights.values())
        model: Any = base.get_base_model()
        weights = model.get_input_embeddings().weight
        pack = pack and weights.device.type == "cpu" and weights.dtype == torch.float32
        pack = pack and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        _share_rows(model, self.names, pack=pack)
        model.save_pretrained = model.push_to_hub = self.save_pretrained
        self.answering = model
        self._takes = set(inspect.signature(inspect.unwrap(model.forward)).parameters)
        self._is_stateful = getattr(model, "_is_stateful", False)
        self.eval()  # type: ignore[no-untyped-call]

    @classmethod
    @without_hub_code()
    def from_pretrained(  # type: ignore[override]
        cls, pretrained_model_name_or_path: Any, *_: Any, config: Any = None, **options: Any
    ) -> Self | tuple[Self, dict[str, Any]]:
        """Load a site model from its folder.

        Args:
            options: options of transformers' own `from_pretrained`, which loads the base with them.
                `pack` is as above.

        Raises:
            ConfigError: the folder holds no site model, or a file in it was changed.
        """
        folder = Path(pretrained_model_name_or_path)
        check_folder(folder)
        config = config or SiteModelConfig.from_pretrained(folder)
        for ours in ("_from_auto", "trust_remote_code", "use_safetensors", "adapter_kwargs"):
            options.pop(ours, None)
        loads, pack = options.pop("output_loading_info", False), options.pop("pack", True)
        if options.get("dtype", "auto") == "auto":  # the base's file may have a halved type
            options["dtype"] = config.dtype
        if options.get("quantization_config") is not None:
            raise ConfigError(
                "a site model's weights can't be quantised; leave it out", key="quantization_config"
            )
        base = cls._load_base(folder / BASE, config, options)
        first, *others = config.weights
        model = PeftModel.from_pretrained(base, folder / first, adapter_name=first)
        for name in others:
            model.load_adapter(folder / name, adapter_name=name)
        made = cls(config, model, pack=pack)
        with suppress(OSError, AttributeError):  # not on glibc
            ctypes.CDLL(None).malloc_trim(0)  # frees the weights' memory from before packing
        made.name_or_path = config.name_or_path = str(folder)
        if made.can_generate():
            made.generation_config = base.generation_config
        return (made, {}) if loads else made

    @classmethod
    def _load_base(cls, folder: Path, config: SiteModelConfig, options: dict[str, Any]) -> Any:
        options |= {"use_safetensors": True, "trust_remote_code": False}
        return cls._auto.from_pretrained(folder, **options)

    def get_input_embeddings(self) -> Any:
        """Return the embeddings of the base."""
        return self.answering.get_input_embeddings()

    def get_output_embeddings(self) -> Any:
        """Return the output layer of the base."""
        return self.answering.get_output_embeddings()

    def tie_weights(self, *_: Any, **__: Any) -> None:
        """Do nothing. The base ties its own weights."""

    def save_pretrained(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to save the model elsewhere.

        Raises:
            ConfigError: always.
        """
        refuse_to_leave(self.name_or_path)

    push_to_hub = save_pretrained  # type: ignore[assignment]

    def rows(self, **batch: Any) -> Any:
        """Ask the base once, with each text (B, ...) of a batch as B·K rows.

        Return the base's answer.

        Raises:
            ConfigError: what is asked for or given differs between adapters.
        """
        for name in OF_EACH:
            if batch.get(name):
                fix = "Ask for logits alone."
                raise ConfigError("each adapter has its own", key=name, value=True, fix=fix)
        whole = isinstance(self.get_input_embeddings(), WholeRows)
        if whole and batch.get("inputs_embeds") is not None:
            problem = "each adapter has embeddings of its own"
            raise ConfigError(problem, key="inputs_embeds", fix="Give input_ids.")
        given = {
            name: _repeated(value, len(self.names)) if name in PER_TEXT else value
            for name, value in batch.items()
            if value is not None and (name in self._takes or name not in PER_TEXT)
        }
        return self.answering(**given | {"return_dict": True})

    def _mean(self, logits: Tensor) -> Tensor:
        """Average the answers of the K rows of each text, (B·K, ...) → (B, ...)."""
        answers = logits.float().view(-1, len(self.names), *logits.shape[1:]).unbind(1)
        return mean_of_probabilities(answers, self.shares)

    def _answer(self, found: Any, labels: Tensor | None, as_tuple: bool) -> Any:
        """Return the mean of the rows' answers, with its loss first, as transformers does."""
        found["logits"] = self._mean(found.logits)
        if labels is not None:
            found = type(found)(**{**found, "loss": self._loss(found.logits, labels)})
        return found.to_tuple() if as_tuple else found

    def _loss(self, logits: Tensor, labels: Tensor) -> Any:
        return nn.functional.cross_entropy(logits, labels)


class SiteModelForCausalLM(SiteModel, GenerationMixin):  # type: ignore[no-untyped-call]
    """A site model that writes texts. It averages the probabilities of the next token."""

    _auto = AutoModelForCausalLM
    _can_compile_fullgraph = False

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **others: Any,
    ) -> ModelOutput | tuple[Any, ...]:
        """Answer with the logarithms of the mean probabilities, (B, T, V), and the cache.

        Raises:
            ConfigError: the text is longer than the model reads.
        """
        as_tuple = others.pop("return_dict", True) is False
        found = self.rows(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            cache=cache,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
            **others,
        )
        return self._answer(found, labels, as_tuple)  # type: ignore[no-any-return]

    def _loss(self, logits: Tensor, labels: Tensor) -> Any:
        return self.loss_function(logits, labels, vocab_size=logits.shape[-1])

    def rows(self, **batch: Any) -> Any:
        """Ask as above, with the text's cache, which is also in the answer.

        Raises:
            ConfigError: the text is longer than the model reads.
        """
        kept = next((one for name in CACHES if (one := batch.pop(name, None)) is not None), None)
        wanted = batch.pop("use_cache", None)
        use_cache = self.config.use_cache if wanted is None else wanted
        if use_cache and kept is None:
            kept = DynamicCache(config=self.config.get_text_config())
        self._check_length(batch, kept)
        if "logits_to_keep" not in self._takes:
            batch.pop("logits_to_keep", None)
        name = next(name for name in CACHES if name in self._takes)
        seen = None if kept is None else RowsCache(kept, len(self.names))
        found = super().rows(**batch, **{name: seen, "use_cache": use_cache})
        if kept is not None:
            found[name] = kept
        return found

    def cache_of(self, found: Any) -> Any:
        """Return the cache that an answer holds."""
        return next(found[name] for name in CACHES if name in found)

    def generate(self, *given: Any, stopping_criteria: Any = None, **named: Any) -> Any:
        """Write as any model of transformers does, and stop where the model reads no further.

        Raises:
            ConfigError: the text is longer than the model reads.
        """
        ends = [*(stopping_criteria or ()), _ContextEnd(self._longest)]
        return super().generate(*given, stopping_criteria=ends, **named)

    @property
    def prepare_inputs_for_generation(self) -> Any:
        """Return the base's method, because transformers inspects its parameters."""
        return self.answering.prepare_inputs_for_generation

    @property
    def _longest(self) -> float:
        return getattr(self.config, "max_position_embeddings", None) or math.inf

    def _check_length(self, batch: Mapping[str, Any], kept: Any) -> None:
        given = batch.get("inputs_embeds")
        given = batch.get("input_ids") if given is None else given
        if given is None or math.isinf(self._longest):
            return
        length = given.shape[1] + (0 if kept is None else int(kept.get_seq_length()))
        if length > self._longest:
            problem = f"a text of {length} tokens is longer than the model reads, {self._longest}"
            raise ConfigError(problem, file=self.name_or_path, fix="Give a shorter text.")


class SiteModelForSequenceClassification(SiteModel):  # type: ignore[no-untyped-call]
    """A site model that labels texts. It averages the probabilities of the labels."""

    _auto = AutoModelForSequenceClassification

    @classmethod
    def _load_base(cls, folder: Path, config: SiteModelConfig, options: dict[str, Any]) -> Any:
        if config.pooling == "own":
            return super()._load_base(folder, config, options)
        from fedpriv.models.pooled import MeanPooledClassifier

        options |= {"use_safetensors": True, "trust_remote_code": False}
        options |= {"num_labels": len(config.id2label or ()), "output_loading_info": True}
        return MeanPooledClassifier.from_encoder(str(folder), **options)[0]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **others: Any,
    ) -> ModelOutput | tuple[Any, ...]:
        """Answer with the logarithms of the mean probabilities, (B, labels)."""
        as_tuple = others.pop("return_dict", True) is False
        found = self.rows(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **others,
        )
        return self._answer(found, labels, as_tuple)  # type: ignore[no-any-return]


class _ContextEnd(StoppingCriteria):
    def __init__(self, longest: float) -> None:
        self.longest = longest

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        ends = input_ids.shape[1] >= self.longest
        return torch.full((len(input_ids),), ends, device=input_ids.device)


def _repeated(value: Any, count: int) -> Any:
    """Repeat what is given of each text. There may be several masks, one for each kind of layer."""
    if isinstance(value, Mapping):
        return {name: _repeated(one, count) for name, one in value.items()}
    return value if value is None else value.repeat_interleave(count, 0)


def _share_rows(model: Any, names: Sequence[str], *, pack: bool) -> None:
    """Replace peft's layers by layers with an adapter for each row."""
    for path, layer in list(model.named_modules()):
        parent, _, name = path.rpartition(".")
        if isinstance(layer, LoraLayer):
            made: Any = AdapterRows(layer, names, pack=pack)
        elif isinstance(layer, ModulesToSaveWrapper):
            made = WholeRows(layer, names)
        else:
            continue
        setattr(model.get_submodule(parent), name, made)
    output = model.get_output_embeddings()
    if pack and type(output) is nn.Linear:
        shared = output.weight is model.get_input_embeddings().weight
        made = SharedOutput(output) if shared else PackedLinear(output, len(names))
        model.set_output_embeddings(made)
