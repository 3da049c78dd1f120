"""Let a hospital's models answer together, by transformers' own means.

After this package is imported, transformers' auto classes know site models. So `pipeline`,
`generate`, evaluation harnesses and `transformers serve` accept one as any other model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from fedpriv.serving.config import SiteModelConfig
from fedpriv.serving.folder import read_site_model
from fedpriv.serving.model import (
    SiteModel,
    SiteModelForCausalLM,
    SiteModelForSequenceClassification,
)

AutoConfig.register(SiteModelConfig.model_type, SiteModelConfig, exist_ok=True)
AutoModelForCausalLM.register(SiteModelConfig, SiteModelForCausalLM, exist_ok=True)
AutoModelForSequenceClassification.register(
    SiteModelConfig, SiteModelForSequenceClassification, exist_ok=True
)


def load_site_model(folder: str | Path, **options: Any) -> SiteModel:
    """Load the site model that `fedpriv-client personalise` made.

    Args:
        folder: folder of the site model.
        options: options of transformers' `from_pretrained`.

    Raises:
        ConfigError: the folder holds no site model, or a file in it was changed.

    Privacy:
        As confidential as the site's records (law 16).
    """
    read_site_model(Path(folder))
    settings = SiteModelConfig.from_pretrained(folder)
    found: Any = SiteModelForCausalLM if settings.writes else SiteModelForSequenceClassification
    return found.from_pretrained(folder, config=settings, **options)  # type: ignore[no-any-return]
