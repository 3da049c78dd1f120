"""The card beside an adapter: where it comes from, and whether it is private."""

from __future__ import annotations

import json

from fedpriv import __version__
from fedpriv.protocol import Proposal


def card(name: str, proposal: Proposal, *, private: bool) -> str:
    """Write Markdown with the header that model hubs read.

    Args:
        name: the job's name.
        private: false if the noise came from a seed.
    """
    model, privacy = proposal.model.name, proposal.privacy
    base = [f"base_model: {json.dumps(model)}"] if model != "embedded" else []
    header = "\n".join(["---", "library_name: peft", *base, "tags: [lora, fedpriv]", "---"])
    if private:
        claim = (
            f"Each site was asked for ε = {privacy.epsilon:g} at δ = {privacy.delta:g}, for adding"
            f" or removing one unit ({privacy.unit}). What each has paid, in this job and in its"
            " life, is in its signed budget report."
        )
    else:
        claim = "**NOT PRIVATE**: samples and noise were drawn from a seed that others may know."
    began = ""
    if proposal.begin_digest is not None:
        merged = "merged into the base, without which this one is of no use"
        how = merged if proposal.model.begin_as == "merged" else "which was trained further"
        began = f" It began at another adapter, {proposal.begin_digest}, {how}."
    return (
        f"{header}\n\n# {name}\n\n"
        f"A LoRA adapter of {model}, trained by fedpriv {__version__} in job `{proposal.job_id}`:"
        f" {proposal.rounds} rounds, method {proposal.method}.{began}\n\n{claim}\n"
    )
