"""The card beside an adapter: where it comes from, and whether it is private."""

from __future__ import annotations

import json
from typing import Any

from fedpriv import __version__
from fedpriv.config.run import JobSection
from fedpriv.models.begin import Begin
from fedpriv.privacy.config import PrivacySection


def card(
    job: JobSection,
    model: str,
    privacy: PrivacySection,
    info: dict[str, Any],
    begin: Begin | None = None,
) -> str:
    """Markdown with the header that model hubs read.

    Args:
        model: the base, by name.
        begin: the adapter that the job began at.
        info: of the run: ``job_id``, and ``private``, which is false where noise came from a seed.
    """
    base = [f"base_model: {json.dumps(model)}"] if model != "embedded" else []
    header = "\n".join(["---", "library_name: peft", *base, "tags: [lora, fedpriv]", "---"])
    if info["private"]:
        claim = (
            f"Each site was asked for ε = {privacy.epsilon:g} at δ = {privacy.delta:g}, for adding"
            f" or removing one unit ({privacy.unit}). What each has paid, in this job and in its"
            " life, is in its signed budget report."
        )
    else:
        claim = "**NOT PRIVATE**: samples and noise were drawn from a seed that others may know."
    began = ""
    if begin is not None:
        how = "merged into the base, without which this one computes something else"
        began = f"\n\nIt began at another adapter, {begin.digest}"
        began += f", {how}." if begin.merged else ", whose values are continued here."
    return (
        f"{header}\n\n# {job.name}\n\n"
        f"A LoRA adapter of {model}, trained by fedpriv {__version__} in job `{info['job_id']}`:"
        f" {job.rounds} rounds, method {job.method}.{began}\n\n{claim}\n"
    )
