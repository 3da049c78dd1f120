"""What a coordinator states about a job, in words for the people who decide. All is public."""

from __future__ import annotations

from collections.abc import Iterator

from fedpriv.report.figures import when
from fedpriv_client.proposals import KeptProposal

LISTED = 20  # names of sites
SIGNED = (
    "Signed on {at} with the key of the server's certificate, for which this site's authority"
    " vouches."
)


def stated(kept: KeptProposal) -> Iterator[tuple[str, str]]:
    """Say what a job is for and who answers for it.

    Returns:
        Names, each with a sentence or two, in the coordinator's words.
    """
    said, signed = kept.proposal.statement, kept.signed
    if said is None:
        yield "What it is for", "Not stated."
    else:
        more = len(said.participants) - LISTED
        others = f", and {more} others" if more > 0 else ""
        yield "What it is for", said.purpose
        yield "Who gets the adapter", said.recipients
        yield "Who takes part", f"{', '.join(said.participants[:LISTED])}{others}."
        yield "Whom to ask", said.contact
        yield "Until when", f"It can be begun until {said.expires} (UTC)."
    yield "Whose word it is", "Not signed." if signed is None else SIGNED.format(at=when(signed.at))
