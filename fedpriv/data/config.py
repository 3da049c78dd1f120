"""`[data]`: which columns of the records are used."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedpriv.config.task import Task
from fedpriv.privacy import usual
from fedpriv.section import Section

FieldName = Literal["text", "label", "prompt", "completion", "messages"]
SHAPES = {
    "causal-lm": ({"text"}, {"prompt", "completion"}, {"messages"}),
    "classification": ({"text", "label"},),
}


class DataSection(Section):
    """The columns of the records that every site uses."""

    columns: dict[str, str] = Field(
        {"text": "text"},
        description="The column of each field: text; prompt and completion; messages; or, to"
        " classify, text and label.",
    )
    max_empty: float = Field(
        usual.MAX_EMPTY,
        ge=0,
        le=1,
        description="Largest share of a site's records with nothing to learn from. Above it, or"
        " if all are empty, the site does not start, and spends nothing.",
    )

    def check_task(self, task: Task) -> None:
        """Check that the fields are those of a task.

        Raises:
            ValueError: they aren't. The error names the key.
        """
        if set(self.columns) not in SHAPES[task]:
            shapes = " or ".join(" + ".join(sorted(shape)) for shape in SHAPES[task])
            named = " + ".join(sorted(self.columns))
            raise ValueError(f"data.columns: task {task!r} needs {shapes}, not {named}")
