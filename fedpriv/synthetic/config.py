"""The set of made-up records whose gradients PE-SGD uses to express a private one."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from fedpriv.methods.pe_sgd.config import ProjectionSection
from fedpriv.section import Section


class GeneratorSection(Section):
    """The generator of new synthetic records."""

    kind: Literal["model", "local", "endpoint"] = Field(
        "model",
        description="The trained model (model), a fixed one on the server's machine (local), or"
        " an OpenAI-compatible service that the coordinator runs or trusts (endpoint).",
    )
    model: str | None = Field(
        None, min_length=1, description="local: folder or hub name. endpoint: name at the service."
    )
    url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="endpoint: its address up to /v1, such as http://localhost/v1.",
    )
    key_env: str = Field(
        "OPENAI_API_KEY", min_length=1, description="endpoint: environment variable with its key."
    )
    timeout: float = Field(
        120.0, gt=0, le=86_400, description="endpoint: seconds to wait for an answer."
    )
    temperature: float = Field(1.0, gt=0, le=100, description="Sampling temperature of tokens.")
    describe: str | None = Field(
        None,
        min_length=1,
        description='Generator with instructions: what a record is, such as "a discharge'
        ' letter". Never learned from records.',
    )
    prompt: str | None = Field(
        None,
        min_length=1,
        description="Prompt of all generated records with prompt and completion.",
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = {"model": (), "local": ("model",), "endpoint": ("model", "url", "describe")}
        for key in needed[self.kind]:
            if getattr(self, key) is None:
                raise ValueError(f"{key}: is missing; kind {self.kind!r} needs it")
        return self


class SyntheticSection(ProjectionSection):
    """The synthetic set of pe-sgd, and how the server changes it."""

    data: Path | None = Field(
        None,
        description="First public records, columns as in [data]; the first `size` are used."
        " Without it, the generator makes them.",
    )
    generator: GeneratorSection | None = Field(
        None, description="Who makes new records. Without it, the set stays as it begins."
    )
    every: int = Field(
        1, ge=1, description="Rounds between changes of the set. Without a generator, none."
    )
    warm_start: int = Field(
        0,
        ge=0,
        le=100_000,
        description="Passes over the set before round 1, in batches of 8, without privacy cost.",
    )
    warm_start_lr: float = Field(
        3e-3, gt=0, le=1e6, description="Learning rate of these passes (adamw), falling to 0."
    )

    @model_validator(mode="after")
    def _has_a_beginning(self) -> Self:
        if self.data is None and self.generator is None:
            raise ValueError("data: is missing; without a generator, the set comes from there")
        return self

    def files(self) -> dict[str, Path]:
        """Return the files of public records, by key."""
        return {} if self.data is None else {"synthetic.data": self.data}

    @property
    def projection(self) -> ProjectionSection:
        """Return the part of the section that a site has to know."""
        known = ProjectionSection.model_fields
        return ProjectionSection(**{name: getattr(self, name) for name in known})
