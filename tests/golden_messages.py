"""One message of each kind, as the newest version writes them: `golden_messages.json` keeps them.

    python -m tests.golden_messages > tests/golden_messages.json

Write the file anew only to add a message: what an older version wrote stays as it was.
"""

from __future__ import annotations

import json

from fedpriv.config.looks import LooksSection
from fedpriv.errors import PausedError
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.privacy.config import PrivacySection
from fedpriv.protocol import (
    Body,
    Centres,
    Handover,
    LocalSteps,
    Offer,
    Proposal,
    Ready,
    Received,
    Refusal,
    ReportRequest,
    SetRequest,
    SharedNoise,
    StepReply,
    StepRequest,
)
from fedpriv.public_update.config import DenoiseSection, OptimizerSection
from fedpriv.report.budget import BudgetEvent, BudgetReport
from fedpriv.section import Section
from fedpriv.secure_sum.ready import Member
from fedpriv.secure_sum.roster import Roster, RosterEntry

A, B = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
KEY = "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29"  # of 32 zeros
OTHER = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"  # RFC 8032, test 1
EXCHANGE = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"  # RFC 7748, 6.1
PRIVACY = PrivacySection(epsilon=3.0, delta=1e-5, sample_rate=0.05, max_records_per_unit=1)
PROPOSAL = Proposal(
    job_id="notes-1a2b3c4d",
    method="dp-lora",
    steps=30,
    seed=0,
    fields=("text",),
    model=ModelSection(),
    lora=LoraSection(),
    privacy=PRIVACY,
    base_digest=A,
    vector_digest=B,
)
SHARED = SharedNoise(max_colluding=1, sites=4, roster=A, noise_multiplier=3.0, spare_slots=2)
LOCAL = LocalSteps(count=5, optimizer=OptimizerSection(), denoise=DenoiseSection())
REPORT = BudgetReport(
    site="north",
    dataset_id="0" * 32,
    unit="record",
    max_records_per_unit=1,
    delta=1e-5,
    declared_size=250,
    rule="rdp",
    accountant="PRV",
    private=True,
    simulated=False,
    guarantee="all plans of this ledger",
    epsilon_spent=0.25,
    epsilon_allocated=1.5,
    epsilon_committed=12.0,
    budget=12.0,
    events=(BudgetEvent(job="n-1", round=1, sample_rate=0.05, noise_multiplier=1.5, count=4),),
    ledger_head="c" * 64,
    ledger_rows=9,
    job="n-1",
)
MESSAGES: dict[str, Body | Section] = {
    "proposal": PROPOSAL,
    "proposal of local steps": PROPOSAL.model_copy(update={"local": LOCAL}),
    "proposal of a secure sum": PROPOSAL.model_copy(update={"shared": SHARED, "steps": 32}),
    "proposal of looks": PROPOSAL.model_copy(update={"evaluation": LooksSection(looks=1)}),
    "proposal that normalises": PROPOSAL.model_copy(
        update={"privacy": PRIVACY.model_copy(update={"normalise": "adapters"})}
    ),
    "offer": Offer(
        site="north",
        dataset_id="0" * 32,
        declared_size=250,
        delta=1e-5,
        noise_multiplier=1.5,
        epsilon=3.0,
        budget=12.0,
        ledger_rows=2,
        ledger_head="c" * 64,
    ),
    "refusal": Refusal.of(PausedError("paused")),
    "step request": StepRequest(job_id="n-1", slot=3),
    "step request of a look": StepRequest(
        job_id="n-1", slot=3, set_digest=A, centres=Centres(loss=2.5, accuracy=0.5)
    ),
    "ready": Ready(slot=3, member=Member(name="north", key=EXCHANGE, signature="d" * 128)),
    "set request": SetRequest(
        job_id="n-1",
        slot=3,
        bits=32,
        members=(Member(name="north", key=EXCHANGE, signature="d" * 128),),
    ),
    "step reply": StepReply(
        kind="gradient-sum",
        slot=3,
        epsilon_spent=0.25,
        epsilon_committed=12.0,
        ledger_rows=9,
        ledger_head="c" * 64,
    ),
    "report request": ReportRequest(job_id="n-1"),
    "handover": Handover(proposal=PROPOSAL, values_digest=B),
    "received": Received(),
    "budget report": REPORT,
    "roster": Roster.of(
        [RosterEntry(name="north", public_key=KEY), RosterEntry(name="south", public_key=OTHER)]
    ),
}


def digests() -> dict[str, str]:
    """What signatures and ledgers name of them."""
    found = {name: one for name, one in MESSAGES.items() if isinstance(one, Proposal | Roster)}
    return {
        name: one.digest() if isinstance(one, Proposal) else one.digest
        for name, one in found.items()
    }


if __name__ == "__main__":
    kept = {name: one.model_dump_json() for name, one in MESSAGES.items()}
    print(json.dumps({"messages": kept, "digests": digests()}, indent=1))
