"""The configuration of a site model: its base, and the weight of each adapter's answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from transformers import AutoConfig, PretrainedConfig

from fedpriv.errors import ConfigError


class SiteModelConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """Describe a site model: several adapters on one base that answer together.

    The base's configuration answers for the base model, such as its `vocab_size`.

    Attributes:
        base: the configuration of the base model.
        weights: name of an adapter, and of its folder → weight of its probabilities.
        pooling: a classifier's pooling, as in `[model]`.

    """

    model_type = "fedpriv_site_model"

    def __init__(
        self,
        base: Mapping[str, Any] | None = None,
        weights: Mapping[str, float] | None = None,
        pooling: str = "own",
        **settings: Any,
    ) -> None:
        # transformers makes a configuration without arguments.
        self.base = {"model_type": "llama"} if base is None else dict(base)
        self.weights = {"none": 1.0} if weights is None else dict(weights)
        self.pooling = pooling
        super().__init__(**settings)

    @property
    def writes(self) -> bool:
        """Tell whether the model writes texts. Otherwise it labels them."""
        return "SiteModelForCausalLM" in (self.architectures or ())

    def __getattr__(self, name: str) -> Any:
        """Take from the base model's configuration what this configuration does not have."""
        if name.startswith("_") or "base" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.get_text_config(), name)

    def get_text_config(self, *_: Any, **__: Any) -> PretrainedConfig:
        """Return the configuration of the base model's part that reads text."""
        if "of_text" not in self.__dict__:
            base: Any = AutoConfig.for_model(**self.base)
            self.__dict__["of_text"] = base.get_text_config()
        return self.__dict__["of_text"]  # type: ignore[no-any-return]

    def save_pretrained(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to save a site model elsewhere.

        Raises:
            ConfigError: always.
        """
        refuse_to_leave(self.name_or_path)

    push_to_hub = save_pretrained

    def to_dict(self) -> dict[str, Any]:
        """Return what config.json holds."""
        return {name: value for name, value in super().to_dict().items() if name != "of_text"}


def refuse_to_leave(folder: str | None) -> NoReturn:
    """Refuse to save a site model elsewhere, or to push it to a hub (law 16).

    Raises:
        ConfigError: always.
    """
    raise ConfigError(
        "a site model is as confidential as the site's records: it is not to leave this house",
        file=folder,
        fix="To move it within the house, copy its folder. What may be handed on is the adapter of"
        " the run: fedpriv export.",
    )
