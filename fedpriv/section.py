"""What all tables of files and all bodies of messages have in common."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer


class Section(BaseModel):
    """A table of a file. Unknown keys are refused, and values can't be changed afterwards.

    Attributes:
        later: fields that older versions don't know. If one is None or empty, it is not written at
            all. So older versions read the rest, and digests and signatures of older files stay
            valid.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    later: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _as_older_versions_read_it(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        return {k: v for k, v in fields.items() if k not in self.later or v not in (None, (), [])}
