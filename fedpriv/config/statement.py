"""`[statement]`: what a job is for and who answers for it. Sites are shown it before a yes."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from pydantic import Field

from fedpriv.names import Name
from fedpriv.privacy.usual import MAX_MEMBERS
from fedpriv.section import Section

# No line breaks and nothing invisible: it is shown at a terminal.
Line = Annotated[str, Field(pattern=r"^[^\p{C}\p{Zl}\p{Zp}]+$", max_length=1000)]


class StatementSection(Section):
    """What a job is for and who answers for it. Sites see it, and may demand it."""

    purpose: Line = Field(description="What the adapter is for.")
    recipients: Line = Field(description="Who gets the adapter.")
    contact: Line = Field(description="Whom a site can ask, such as a name with a telephone.")
    expires: Annotated[date, Field(json_schema_extra={"maxLength": 10})] = Field(
        description="Last day, in UTC, to begin the job. A begun job continues."
    )
    participants: tuple[Name, ...] = Field(
        (),
        max_length=MAX_MEMBERS,
        description="Sites that take part. Without it, those of `[[sites]]`.",
    )
