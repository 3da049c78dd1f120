"""What an adapter in a folder is: its job, who may have it, and which weights it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import Field

from fedpriv.base_model import FACTS, WEIGHTS
from fedpriv.errors import ConfigError, ProtocolError
from fedpriv.files import file_digest
from fedpriv.names import Digest, OwnKind
from fedpriv.protocol import Body, Proposal

Kind = Literal["federated"] | OwnKind
AGAIN = "Get the whole folder again, unchanged, from whoever sent it."


class AdapterFacts(Body):
    """Hold what `fedpriv.json` says of the adapter beside it.

    Attributes:
        kind: who made it. A federation made it of releases; or a site trained it on its own
            records, from the federation's adapter or from the base model, and then it must not be
            handed on.
        proposal: the job's, with the base model and the shape of the adapter.
        weights_digest: the digest of the file of weights.
        held_out: what `data.held_out` was when a site trained on its own records, or kept the
            federation's adapter; None if nobody wrote it down.
        trained: how the site trained it, at which rate and for how many passes, in words.
    """

    kind: Kind
    proposal: Proposal
    weights_digest: Digest
    held_out: str | None = Field(None, max_length=4096)
    trained: str | None = Field(None, max_length=100)

    def as_text(self) -> str:
        """Return the text of the file."""
        return self.model_dump_json(indent=2) + "\n"

    @property
    def job(self) -> str:
        """The id of the job."""
        return self.proposal.job_id


def read_facts(folder: Path) -> AdapterFacts:
    """Read the facts of an adapter, and check that its weights are those it was written with.

    Raises:
        ConfigError: there is no such adapter, or it was changed.
    """
    path = folder / FACTS
    try:
        facts = AdapterFacts.parse(_of_any_version(path.read_text(encoding="utf-8")))
        found = file_digest(folder / WEIGHTS)
    except FileNotFoundError as error:
        problem = f"holds no adapter of a job: {Path(str(error.filename)).name} is missing"
        fix = f"Name a folder with adapter_config.json, {WEIGHTS} and {FACTS}."
        raise ConfigError(problem, file=folder, fix=fix) from None
    except (OSError, UnicodeDecodeError, ProtocolError) as error:
        raise ConfigError(f"can't be read ({error})", file=path, fix=AGAIN) from None
    if found != facts.weights_digest:
        problem = f"is not the file that {FACTS} names, {facts.weights_digest}"
        raise ConfigError(problem, file=folder / WEIGHTS, value=found, fix=AGAIN)
    return facts


def _of_any_version(text: str) -> str:
    """Return the facts without the groups of a controller, which version 0.2.0 had."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(found, dict) and isinstance(found.get("proposal"), dict):
        found["proposal"]["groups"] = None
    return json.dumps(found)
