"""A site's folder with a ledger and proposals, as its process leaves them; without a model."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedpriv.config.load import load_site
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.privacy.config import PrivacySection
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.protocol import Proposal, SharedNoise
from fedpriv_client.held_space import HeldSpace
from fedpriv_client.init import init_site
from fedpriv_client.jobs import Jobs, jobs_of
from fedpriv_client.orders import Asked, Orders
from fedpriv_client.proposals import KeptProposal, keep_proposal
from fedpriv_client.settings import site_settings

BASE = "sha256:" + "b" * 64
PROPOSAL = Proposal(
    job_id="notes-1a2b3c4d",
    method="dp-lora",
    steps=30,
    seed=0,
    fields=("text",),
    model=ModelSection(),
    lora=LoraSection(),
    privacy=PrivacySection(epsilon=3.0, delta=1e-5, sample_rate=0.05, max_records_per_unit=1),
    base_digest=BASE,
    vector_digest="sha256:" + "c" * 64,
)
ROSTER = "sha256:" + "d" * 64


class Place:
    """A site's folder.

    Args:
        alone: ε for life if all others of a secure sum worked with the server, if it has that.
    """

    def __init__(self, folder: Path, *, approve: str = "ask", alone: float | None = None) -> None:
        self.config = folder / "site.toml"
        second = "" if alone is None else f"epsilon_alone = {alone}"
        self.config.write_text(
            f"""
[site]
name = "surgery"
[server]
address = "localhost:8443"
key = "site.key"
plain = true
[data]
path = "notes.jsonl"
columns = {{ text = "note" }}
size = 250
max_records_per_unit = 1
[budget]
epsilon = 12.0
delta = 1e-5
per_job = 3.0
{second}
[allow]
approve = "{approve}"
model_digest = "{BASE}"
"""
        )
        self.file = load_site(self.config)
        init_site(self.file, self.config)
        self.settings = site_settings(self.file, self.config)
        self.state = self.settings.state_dir

    def ledger(self) -> Ledger:
        return Ledger.open(self.settings.ledger)

    @property
    def jobs(self) -> Jobs:
        return jobs_of(self.settings)

    def propose(self, proposal: Proposal = PROPOSAL, **changes: Any) -> Proposal:
        """Let a server have proposed something that this site could accept."""
        proposal = proposal.model_copy(update=changes)
        with self.ledger() as ledger:
            plan = self.settings.limits.calibrated(proposal, ledger.terms)
            allocated, alone = ledger.check_both(plan)
        came = KeptProposal(
            server=str(self.settings.server),
            first=datetime.now(UTC).replace(microsecond=0),
            committed=plan.as_row(),
            allocated=allocated,
            allocated_alone=alone,
            proposal=proposal,
        )
        keep_proposal(self.settings, HeldSpace(self.state, 0, lambda: 0), came, lambda _: True)
        return proposal

    def shared(self) -> dict[str, Any]:
        """What makes a proposal one of a secure sum."""
        noise = SharedNoise(max_colluding=1, sites=4, roster=ROSTER, noise_multiplier=3.0)
        return {"shared": noise}

    def run(self, proposal: Proposal, steps: int) -> None:
        """Let a job have had so many steps."""
        with self.ledger() as ledger:
            plan = self.settings.limits.calibrated(proposal, ledger.terms)
            ledger.commit(plan)
            for slot in range(steps):
                paid = ledger.reserve(plan.job, slot, f"sha256:{slot:064d}")
                assert not isinstance(paid, bytes)
                ledger.release(paid, b"released")

    def approve(self, proposal: Proposal) -> None:
        asked = self.asked(proposal)
        Orders.change(self.state, lambda stands: stands.approving(asked, "a person"))

    def plan(self, proposal: Proposal = PROPOSAL) -> Plan:
        """What the site would commit to for a proposal."""
        with self.ledger() as ledger:
            return self.settings.limits.calibrated(proposal, ledger.terms)

    def asked(self, proposal: Proposal = PROPOSAL) -> Asked:
        """What a person would approve."""
        with self.ledger() as ledger:
            terms = ledger.terms
        return Asked(self.plan(proposal), terms.dataset_id, terms.delta)

    def with_history(self) -> Place:
        """With a finished job, one that runs, a refused one, and one that waits."""
        privacy = PROPOSAL.privacy.model_copy(update={"epsilon": 1.0})
        first = self.propose(job_id="spring-77aa0000", privacy=privacy)
        self.approve(first)
        self.run(first, 30)
        second = self.propose(job_id="summer-12ab34cd", steps=40, privacy=privacy)
        self.approve(second)
        self.run(second, 12)
        self.propose(job_id="nonsense-00000001", seed=3)
        Orders.change(self.state, lambda stands: stands.refusing("nonsense"))
        self.propose()
        return self
