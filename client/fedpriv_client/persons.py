"""Who says yes or no to a job, and why: what the page and the command line ask a person."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from fedpriv.documents import malformed
from fedpriv.errors import ConfigError
from fedpriv.report.figures import when
from fedpriv_client.jobs import Job
from fedpriv_client.orders import Approval, Orders, Reason, Said
from fedpriv_client.site_settings import SiteSettings

REASONS: dict[Reason, str] = {
    "agreement": "an agreement, or that there is none",
    "ethics": "an ethics vote, or that there is none",
    "usual": "it is as other jobs were",
    "purpose": "what it is for",
    "recipients": "who gets the adapter",
    "cost": "what it costs",
    "other": "another reason",
}


def approve(settings: SiteSettings, job: Job, said: Said) -> str:
    """Record a person's yes to a proposal, and return what comes next, in a sentence.

    Raises:
        ConfigError: the person may not approve here, or gives no reason where one is needed.
        JobRefusedError: the job is refused.
    """
    allowed = settings.approvers
    if allowed and said.by not in allowed:
        fix = f"Give one of {', '.join(allowed)} (allow.approvers)."
        raise ConfigError("may not approve a job here", key="--by", value=said.by, fix=fix)
    if allowed and said.reason is None:
        fix = f"Give one: {', '.join(REASONS)}."
        raise ConfigError("is missing", key="--reason", fix=fix)
    stands = Orders.change(settings.state_dir, lambda stands: stands.approving(job.asked, said))
    if not stands.is_approved(job.asked, allowed, settings.approvals):
        return f"Job {job.name} waits for another person's approval."
    return f"Job {job.name} begins when the server asks again, within a minute or so."


def said_of(by: str, reason: str, text: str, *, agreed: bool) -> Said:
    """Check what a person typed, and return it.

    Args:
        reason: a code of `REASONS`, or empty.

    Raises:
        ConfigError: the reason is not on the list, or a name or text is longer than allowed.
    """
    try:
        said = {"by": by, "reason": reason or None, "text": text, "agreed": agreed}
        return Said.model_validate(said)
    except ValidationError as error:
        fix = "More about a reason can be said with --text, in 1,000 characters."
        wrong = malformed(error, fix=fix)
        raise wrong.but(key=f"--{wrong.key}") from None


def persons(job: Job, approvers: Sequence[str] = ()) -> list[str]:
    """Return who decided about a job, when and why, each in a few words.

    Args:
        approvers: the people whose yes counts; if empty, everybody's does.
    """
    if job.state == "refused" and job.refusal is not None:
        return [_told(job.refusal)]
    found = () if job.approval is None else job.approval.persons
    return [_told(one) for one in found if not approvers or one.by in approvers]


def _told(one: Approval) -> str:
    why = ": ".join(filter(None, (one.reason, one.text)))
    return f"{one.by}, {when(one.at)}{f' ({why})' if why else ''}"
