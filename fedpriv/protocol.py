"""What server and site say to each other, apart from the transport.

    server → site   Proposal      the job: method, model, privacy parameters (before round 1)
                    Signed        beside it: the coordinator's signature
    site → server   Offer         the site's terms for it, all public; or Refusal
    server → site   StepRequest   one slot, with the current vector
    site → server   StepReply     the privatised vector, with the ledger's head; or Refusal
                    Ready         in a job with a secure sum, instead: its key for this slot
    server → site   SetRequest    whose sum it is, in such a job
    site → server   StepReply     the site's masked share of that sum; or Refusal
    server → site   ReportRequest after the last round
    site → server   BudgetReport  what the job cost, signed by the site; or Refusal
    server → site   Handover      the job's adapter, once the job is finished
    site → server   Received      always the same, whatever became of it

A message is a JSON body and at most one vector, in the blocks of `fedpriv.wire`. If a job has a
synthetic set, a request also has a text, `fedpriv.synthetic.records.SetChange`. The site treats all
that it receives as untrusted: types and ranges are checked here, permission by the site's own
limits. Nothing in an answer is computed from records except the privatised vector, or the masked
share, which is privatised once all shares of its set are added up (docs/explanation/secure-sum.md).
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import (
    AwareDatetime,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)

from fedpriv.config.looks import MAX_RANGE, LooksSection
from fedpriv.config.statement import StatementSection
from fedpriv.errors import LIMITS, FedprivError, LimitError, ProtocolError, StepFailedError
from fedpriv.files import canonical_json, finite_json, sha256
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.names import MAX_JOB_STEPS, MAX_SEED, Digest, Wire
from fedpriv.privacy.accounting.shares import shares_of
from fedpriv.privacy.config import PrivacySection
from fedpriv.privacy.ledger.ledger import Head
from fedpriv.privacy.usual import MAX_MEMBERS, MAX_PUBLIC_RECORDS, MAX_UNITS
from fedpriv.public_update.config import DenoiseSection, OptimizerSection
from fedpriv.section import Section
from fedpriv.secure_sum.members import Bits
from fedpriv.secure_sum.ready import Member

MAX_PROPOSAL = 1 << 17  # bytes of a proposal as canonical JSON; usual ones have 2,000
MAX_EPSILON = 1e9  # the largest that anybody may state; more can only be a mistake or a lie

# The names of a message's records: the JSON body, the vector, the change of the synthetic set.
BODY, VECTOR, SYNTHETIC = "fedpriv", "arrays", "synthetic"
SIGNED = "signed"  # beside a body
# See `fedpriv.private_training.released`.
Kind = Literal["gradient-sum", "move", "held-out-sum", "masked-share"]
JobId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Body(Section):
    """The JSON half of a message."""

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read a body that came over a wire.

        Raises:
            ProtocolError: names the first field that is wrong.
        """
        if not isinstance(text, str):
            raise ProtocolError(
                f"Expected the body of a {cls.__name__}, got {type(text).__name__}."
            )
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = repr(".".join(str(part) for part in first["loc"]))[1:-1]  # a sender's words
            raise ProtocolError(f"{cls.__name__}.{field:.100}: {first['msg']:.200}.") from None


class LocalSteps(Section):
    """The steps that a site takes by itself in a round of several private steps.

    Attributes:
        count: the number of private steps in a round.
        optimizer: applies each step's release; its state starts anew in every round.
    """

    count: int = Field(ge=2, le=1000)
    optimizer: OptimizerSection
    denoise: DenoiseSection

    @model_validator(mode="after")
    def _denoised_here_if_at_all(self) -> Self:
        if self.denoise.where not in ("off", "site"):
            raise ValueError("denoise.where: expected off or site")
        return self


class SharedNoise(Section):
    """The noise of a secure sum: sites add up under masks, each with a share of it.

    Attributes:
        max_colluding: t, the number of a sum's sites that may work with the server or add no noise.
        sites: N, the number in the roster: a sum never has more.
        roster: the roster's digest.
        noise_multiplier: σ of the sum; the same for all sites.
        spare_slots: slots with which to continue if a slot's sum could not be completed.
    """

    max_colluding: int = Field(ge=0, le=MAX_MEMBERS)
    sites: int = Field(ge=2, le=MAX_MEMBERS)
    roster: Digest
    noise_multiplier: float = Field(gt=0, le=1e9)
    spare_slots: int = Field(0, ge=0, le=MAX_JOB_STEPS)

    @model_validator(mode="after")
    def _somebody_is_honest(self) -> Self:
        if self.max_colluding >= self.sites:
            raise ValueError(f"max_colluding: expected less than {self.sites}")
        return self

    @property
    def shares(self) -> int:
        """The largest number of shares into which the noise of a slot is divided."""
        return shares_of(self.sites, self.max_colluding)


class Proposal(Body):
    """A job as the server proposes it. For its sections see the folders that they configure.

    Attributes:
        job_id: unique for this job, the same when it is resumed.
        steps: private steps, that is slots, in the whole job: first those that train, then those
            of looks.
        base_digest: the digest of the base weights.
        begin_digest: the digest of the adapter that the job begins at; None without one.
        vector_digest: the digest of the names and shapes of what is trained.
        wire: the format in which the vectors of the replies travel.
        local: the local steps; None if the server applies every private step.
        settings: the method's other settings; its site half checks them.
        public_records: the size of the synthetic set that sites must hold; 0 without one.
        evaluation: looks at held-out records; None without any.
        shared: the shared noise; None if each site adds all of its noise itself.
        groups: always None; version 0.2.0 sends it.
        statement: the job's purpose and who answers for it; older coordinators state none.
    """

    later: ClassVar[tuple[str, ...]] = ("statement",)
    job_id: JobId
    method: str = Field(max_length=64)
    steps: int = Field(ge=1, le=MAX_JOB_STEPS)
    seed: int = Field(ge=0, le=MAX_SEED)
    fields: tuple[Annotated[str, Field(max_length=64)], ...] = Field(max_length=64)
    model: ModelSection
    lora: LoraSection
    privacy: PrivacySection
    base_digest: Digest
    vector_digest: Digest
    wire: Wire = "float32"
    local: LocalSteps | None = None
    settings: dict[str, JsonValue] = Field({}, max_length=100)
    public_records: int = Field(0, ge=0, le=MAX_PUBLIC_RECORDS)
    evaluation: LooksSection | None = None
    shared: SharedNoise | None = None
    groups: None = None
    begin_digest: Digest | None = None
    statement: StatementSection | None = None

    @field_validator("settings")
    @classmethod
    def _finite(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if finite_json(value) != value:
            raise ValueError("expected finite numbers")
        return value

    @model_validator(mode="after")
    def _is_no_longer_than_any_needs(self) -> Self:
        if len(canonical_json(self.model_dump(mode="json"))) > MAX_PROPOSAL:
            raise ValueError(f"expected at most {MAX_PROPOSAL:,} bytes")
        return self

    @model_validator(mode="after")
    def _whole_rounds(self) -> Self:
        training, each = self.training_steps, self.round_steps
        if (self.model.begin is None) != (self.begin_digest is None):
            raise ValueError("begin_digest: expected one where model.begin is")
        if training < 1 or training % each:
            raise ValueError(f"steps: expected rounds of {each}, got {training}")
        if self.evaluation is not None and self.evaluation.looks > self.rounds:
            raise ValueError(f"evaluation.looks: expected at most {self.rounds}, one a round")
        for name in ("local", "evaluation", "wire") if self.shared is not None else ():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name}: is not for a job with a secure sum")
        return self

    @property
    def has_expired(self) -> bool:
        """Whether it is too late to begin the job."""
        return self.statement is not None and datetime.now(UTC).date() > self.statement.expires

    @property
    def training_steps(self) -> int:
        """The private steps that train, including spare ones. Those of looks come after them."""
        return self.steps - (0 if self.evaluation is None else self.evaluation.steps)

    @property
    def round_steps(self) -> int:
        """The private steps of a round."""
        return 1 if self.local is None else self.local.count

    @property
    def rounds(self) -> int:
        spare = 0 if self.shared is None else self.shared.spare_slots
        return (self.training_steps - spare) // self.round_steps

    @property
    def released(self) -> Kind:
        """What a site releases in a round."""
        return "gradient-sum" if self.local is None else "move"

    def digest(self) -> str:
        """Return SHA-256 of all fields; if newer ones are unused, the same as in older versions."""
        fields = self.model_dump(mode="json")
        if self.model.quantize is None:
            del fields["model"]["quantize"]
        del fields["groups"]
        if self.begin_digest is None:
            del fields["begin_digest"], fields["model"]["begin"], fields["model"]["begin_as"]
        return sha256(canonical_json(fields))


class Signed(Body):
    """The coordinator's signature of a proposal; see `fedpriv.signed_proposal`.

    Attributes:
        certificate: the server's, in PEM; the site's enrolment vouches for its key.
        signature: ECDSA, in hex.
    """

    at: AwareDatetime
    certificate: str = Field(max_length=8192)
    signature: str = Field(pattern=r"^([0-9a-f]{2}){8,128}$")


class Offer(Body):
    """A site's terms. All are public: its administrator typed them, or they follow from that.

    Attributes:
        held_out_size: the declared number of units to look at, in a job that looks at some.
        epsilon_alone: as `epsilon`, for the claim alone, if the ledger has one.
        order: always None; sites of an earlier version send it.
    """

    site: str = Field(max_length=64)
    dataset_id: str = Field(max_length=64)
    declared_size: int = Field(ge=1, le=MAX_UNITS)
    held_out_size: int | None = Field(None, ge=1, le=MAX_UNITS)
    delta: float = Field(gt=0, lt=1)
    noise_multiplier: float = Field(gt=0, le=1e9)
    epsilon: float = Field(ge=0, le=MAX_EPSILON)
    epsilon_alone: float | None = Field(None, ge=0, le=MAX_EPSILON)
    budget: float = Field(gt=0)
    order: None = None
    ledger_rows: int = Field(ge=0)
    ledger_head: Hash


class Refusal(Body):
    """The reason for a no, as one of the pairs that `fedpriv.errors` holds; never a text.

    Attributes:
        refused: the error's code.
        kind: the error's class.
    """

    refused: str = Field(pattern=r"^[a-z][a-z-]{0,63}$")
    kind: str = Field(pattern=r"^[A-Z][A-Za-z]{0,63}$")

    @classmethod
    def of(cls, error: FedprivError) -> Self:
        """Return what others may be told of an error.

        Privacy:
            It is read from `fedpriv.errors`, from the class that holds the code or the names of
            limits: not from the error itself, nor from a class whose name somebody else chose.
        """
        known = next(
            base
            for base in type(error).__mro__
            if issubclass(base, FedprivError)
            and base.__module__ == FedprivError.__module__
            and "code" in vars(base)
        )
        limit = error.limit if isinstance(error, LimitError) else None
        code = next((one for one in LIMITS if one == limit), known.code)
        return cls(refused=code, kind=known.__name__)

    @property
    def reason(self) -> str:
        return f"{self.refused} ({self.kind})"


# All that leaves a site if a step failed after its batch was sampled, or for an unknown reason.
FAILED = Refusal.of(StepFailedError())


class Centres(Section):
    """The server's scores on its own records, from which those of held-out units are measured."""

    loss: float = Field(ge=0, le=MAX_RANGE)
    accuracy: float = Field(ge=0, le=1)


class StepRequest(Body):
    """The slots of a round of a job, or those of a look at held-out records.

    Attributes:
        slot: the first slot.
        set_digest: the digest of the job's synthetic set, if it has one; the change from the
            site's set to it comes beside the vector, as a text.
        centres: if given, the request is a look; None to train.
        decision: always None; version 0.2.0 sends it.
        witness_rows, witness_head: the ledger's head that the server saw last, if any.
    """

    job_id: JobId
    slot: int = Field(ge=0)
    set_digest: Digest | None = None
    centres: Centres | None = None
    decision: None = None
    witness_rows: int = Field(0, ge=0)
    witness_head: Hash = "0" * 64

    @property
    def witness(self) -> Head:
        return Head(self.witness_rows, self.witness_head)

    def digest(self, vector: np.ndarray[tuple[int], np.dtype[np.float32]]) -> str:
        """Return a digest of what decides the computation: the vector, and all but the witness."""
        digest = hashlib.sha256(f"{self.job_id}\n{self.slot}\n".encode())
        if self.set_digest is not None:
            digest.update(f"{self.set_digest}\n".encode())
        if self.centres is not None:
            digest.update(f"{self.centres.loss!r} {self.centres.accuracy!r}\n".encode())
        digest.update(np.ascontiguousarray(vector, dtype="<f4").tobytes())
        return "sha256:" + digest.hexdigest()


class Ready(Body):
    """A site is ready for a slot, and has a key to mask its share with.

    Attributes:
        slot: as in the request.
        member: as it stands in a set.
    """

    slot: int = Field(ge=0)
    member: Member


class SetRequest(Body):
    """The sites of a slot's sum, once and for all.

    Attributes:
        slot: the slot for which they are ready.
        bits: the bits of a value that travels; sums are taken modulo 2^bits.
        members: the members, sorted by name.
    """

    job_id: JobId
    slot: int = Field(ge=0)
    bits: Bits
    members: tuple[Member, ...] = Field(min_length=1, max_length=MAX_MEMBERS)


class ReportRequest(Body):
    """Ask for the signed budget report of a job, see `fedpriv.report.budget`: public figures.

    Attributes:
        life: whether to say what the job takes of the budget for life. Older coordinators can't
            read that, and older sites don't know it.
    """

    later: ClassVar[tuple[str, ...]] = ("life",)
    job_id: JobId
    life: Literal[True] | None = None


class Handover(Body):
    """The adapter of a finished job. Its trained values come beside it, all of them released.

    Attributes:
        values_digest: the digest of the values. It shows that they arrived whole. That they are the
            job's result is only the server's word.
    """

    proposal: Proposal
    values_digest: Digest


class Received(Body):
    """A handover came. Nothing else is in it, not even whether the site could keep the adapter."""


def values_digest(vector: np.ndarray[tuple[int], np.dtype[np.float32]]) -> str:
    """Return a digest of the values of a vector (P,), as they travel."""
    return sha256(np.ascontiguousarray(vector, dtype="<f4").tobytes())


class StepReply(Body):
    """The figures beside a privatised vector. Those of the budget come from public events.

    Attributes:
        kind: the kind of what the site released.
        slot: as in the request.
    """

    kind: Kind
    slot: int = Field(ge=0)
    epsilon_spent: float = Field(ge=0, le=MAX_EPSILON)
    epsilon_committed: float = Field(ge=0, le=MAX_EPSILON)
    ledger_rows: int = Field(ge=1)
    ledger_head: Hash
