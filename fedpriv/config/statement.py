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
    """What a job is for and who answers for it: sites are shown it, and may demand one."""

    purpose: Line = Field(description="What the adapter is for.")
    recipients: Line = Field(description="Who gets the adapter.")
    contact: Line = Field(description="Whom a site can ask, such as a name with a telephone.")
    expires: Annotated[date, Field(json_schema_extra={"maxLength": 10})] = Field(
        description="The last day, in UTC, on which a site may begin the job. One that has begun"
        " goes on."
    )
    participants: tuple[Name, ...] = Field(
        (),
        max_length=MAX_MEMBERS,
        description="Names of the sites that take part. Without it, those of `[[sites]]`.",
    )
