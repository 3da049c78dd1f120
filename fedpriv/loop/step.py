"""Private steps for a training loop that you write by hand."""

from __future__ import annotations

import secrets
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedpriv.arguments import PathName, checked
from fedpriv.data.in_memory import KEY, Records, check_records, columns_of
from fedpriv.data.spec import DataSpec
from fedpriv.errors import ConfigError, SlotError
from fedpriv.files import canonical_json, sha256
from fedpriv.loop.ledger import check_stated, ledger_for, not_stated, open_lasting
from fedpriv.loop.model import (
    computing,
    forwards,
    held,
    refuse_more,
    refuse_other_numbers,
    section_of,
    worker_of,
)
from fedpriv.loop.records import own_units, public_examples, spec_of
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.models.vector import Vector, check_vector
from fedpriv.plain_training.scores import Scores, score
from fedpriv.privacy import usual
from fedpriv.privacy.accounting.accountant import epsilon_upper
from fedpriv.privacy.accounting.planning import plan
from fedpriv.privacy.ledger.ledger import Ledger, Plan, Reservation
from fedpriv.privacy.ledger.unit_index import Identity, UnitIndex
from fedpriv.privacy.mechanism.csprng import RandomSource, SystemCsprng
from fedpriv.privacy.mechanism.execution import PlanExecution
from fedpriv.privacy.mechanism.privatised import Privatised, post_process
from fedpriv.privacy.usual import Numerics
from fedpriv.private_training.batch_invariance import try_lengths
from fedpriv.private_training.private_step import private_step
from fedpriv.private_training.released import GradientSum
from fedpriv.private_training.worker import Worker
from fedpriv.progress import telling
from fedpriv.protocol import values_digest

METHOD = "dp-lora"


class PrivateStep:
    """DP-SGD on the records of one site, in place of ``loss.backward()``.

    `backward` draws a secret sample, clips each unit's gradient, adds noise, and leaves the result
    in the ``.grad`` of the trained parameters. Any torch optimiser goes on from there. A ledger
    pays for each step before it is computed, and for the whole plan before the first step.

    ```python
    step = PrivateStep(
        model, tokenizer, notes, epsilon=4, delta=1e-5, size=2000, batch=64, steps=200
    )
    while step.left:
        step.backward()
        optimizer.step()
        optimizer.zero_grad()
    ```

    Args:
        model: a model of transformers, with a peft adapter (LoRA without dropout), or with linear
            layers that are trained whole. It is used as it is, not copied, and trained in place.
            A head that transformers drew belongs in the adapter (``task_type="SEQ_CLS"``), else
            the adapter's file lacks the values of the head.
        tokenizer: the model's tokenizer.
        records: a data set, or its rows, with the columns ``text``; ``prompt`` and ``completion``;
            ``messages``; or ``text`` and ``label``.
        steps: number of steps of the whole plan.
        epsilon: the most that the plan may cost; or give the noise itself as `noise_multiplier`.
        sample_rate: chance of each unit to be in a step; or give their expected number as `batch`.
        delta, size: δ, below 1 / `size`, and the declared number of units, which is public and so
            never counted from the records. A lasting ledger has both.
        clip_norm: the greatest L2 norm that a unit's gradient may have. The default is 10 for a
            classifier and 0.1 for a language model.
        normalise: give each adapter's part of a unit's gradient a fixed length, in place of
            clipping the whole (`fedpriv.gradients.normalise`). For plans of thousands of steps.
        unit: what is protected: ``record``, or the column of an id, such as a patient's.
        max_records_per_unit: how many records, or windows of a long text, of a unit are used.
        columns: one of the column names above → the name that your column has.
        labels: labels of a classifier, in the order of its outputs. If the model has names for them
            (``config.id2label``), they have to be the same.
        max_length: tokens in a window.
        numerics: with ``strict``, each record is computed alone and sums are whole numbers.
        ledger: file of a ledger that `fedpriv ledger init` made, with the budget that these people
            have for life. Without one, the account of the steps is gone when they end.
        witness: witness of that ledger, if it was made with one.
        job: name of the plan in the ledger. A name that exists goes on with that plan.
        microbatch: the most records that are computed at once.
        engine: which library makes the gradients of single records. ``opacus`` knows more layers,
            and ``auto`` uses it only for those.
        max_empty: the largest share of the records that may give no example, such as conversations
            without an answer. If more give none, or all, nothing is spent.

    Attributes:
        plan: the plan, with its noise multiplier.
        taken: the number of steps paid for, even if they gave no result.
        ledger: the ledger that pays.

    Raises:
        ConfigError, DataError: a setting or records can't be used; no error quotes a record.
        ModelError: the model is not for the task, the labels or the tokenizer.
        NotPrivateError: a record's gradient would not be a function of that record alone, or
            another `PrivateStep` holds the model.
        BudgetError: the ledger does not pay for so much. Nothing was spent.
        OverlapError: another ledger beside this one covers some of the same units.

    Privacy:
        What `backward` gives over the life of the plan, and all that is made of it, the trained
        model included, is (ε, δ)-differentially private for adding or removing one unit, with the
        plan's ε at the ledger's δ. The values that the model begins with must be public, or paid
        for: an adapter that a site trained for itself is neither. Each step is one
        `PlanExecution.step`: a Poisson-subsampled Gaussian mechanism of sensitivity C. The sum is
        divided by sample rate × declared size and never by how many were drawn. A lasting ledger
        adds up all plans for the same people. Without one the claim is about this object alone. A
        person who makes a second one with the same records has to add up by hand. What a script
        computes from the records or from their losses by other means is not covered. How long a
        step takes is not covered. With numerics other than ``strict``, it is an assumption that a
        gradient computed beside others does not depend on them; see docs/explanation/privacy.md.
    """

    @checked
    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        records: Records,
        *,
        steps: int,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        sample_rate: float | None = None,
        batch: float | None = None,
        delta: float | None = None,
        size: int | None = None,
        clip_norm: float | None = None,
        normalise: bool = False,
        unit: str = usual.UNIT,
        max_records_per_unit: int = usual.MAX_RECORDS_PER_UNIT,
        columns: Mapping[str, str] | None = None,
        labels: Sequence[str | bool | int] = (),
        max_length: int = 128,
        numerics: Numerics = "default",
        ledger: PathName | None = None,
        witness: PathName | None = None,
        job: str | None = None,
        microbatch: int | None = None,
        engine: Literal["auto", "fedpriv", "opacus"] = "auto",
        max_empty: Annotated[float, Field(ge=0, le=1)] = usual.MAX_EMPTY,
    ) -> None:
        clip_norm = usual.clip_norm_of(bool(labels)) if clip_norm is None else clip_norm
        _check_one_is_given("epsilon or noise_multiplier", epsilon, noise_multiplier)
        _check_one_is_given("sample_rate or batch", sample_rate, batch)
        if not usual.MIN_CLIP <= clip_norm <= usual.MAX_CLIP:
            problem = f"must be from {usual.MIN_CLIP:g} to {usual.MAX_CLIP:g}"
            raise ConfigError(problem, key="clip_norm", value=clip_norm)
        for key, stated in (("size", size), ("delta", delta)):
            if ledger is None and stated is None:
                raise not_stated(key)
        self._lock = threading.Lock()  # else threads would mix their gradients of records
        resources = ExitStack()
        self.close = weakref.finalize(self, resources.close)  # at the latest when it is collected
        try:
            resources.enter_context(held(model))
            lasting = None
            if ledger is not None:
                seen = None if witness is None else Path(witness)
                lasting = resources.enter_context(open_lasting(Path(ledger), seen))
                check_stated(lasting, size, delta, unit, max_records_per_unit)
                size, delta = lasting.terms.declared_size, lasting.terms.plan_delta
            assert size is not None and delta is not None  # else it would have been refused
            planned = plan(
                epsilon=epsilon,
                delta=delta,
                sample_rate=sample_rate,
                steps=steps,
                noise_multiplier=noise_multiplier,
                batch=batch,
                size=size,
            )
            check_records(records, KEY)
            columns = columns_of(records) if columns is None else columns
            section = section_of(model, tokenizer, labels, max_length)
            self._spec = spec_of(columns, section, unit, max_records_per_unit)
            with telling("Trying on random texts whether each record's gradient is its own"):
                self._worker = worker_of(model, tokenizer, section, engine, microbatch)
            resources.callback(self._worker.close)
            self._method = DpLora(normalise=normalise)
            values = self._method.prepare(self._worker, self._worker.vector.read())
            self.plan = Plan(
                job=job or f"loop-{secrets.token_hex(4)}",
                method=METHOD,
                sample_rate=planned.event.sample_rate,
                noise_multiplier=planned.event.noise_multiplier,
                clip_norm=clip_norm,
                steps=planned.event.count,
                proposal=_digest(self._worker, self._spec, normalise),
                numerics=numerics,
            )
            self._execution = PlanExecution(self.plan, values)
            claim = None if lasting is None else partial(_claim, lasting)
            self._population, self._own = own_units(
                records, self._spec, tokenizer, claim, max_empty
            )
            self.ledger = lasting or resources.enter_context(
                ledger_for(planned, size, unit, max_records_per_unit)
            )
            self.taken = _taken(self.ledger, self.plan)
            self._expected_units = self.plan.sample_rate * size
            if numerics != "strict":  # where each record is computed alone
                most = self._expected_units * max_records_per_unit
                with computing(model), telling("Trying how many records to compute at once"):
                    try_lengths(self._worker, most, steps)
            self._forwards = forwards(model)
        except BaseException:
            resources.close()
            raise

    @property
    def left(self) -> int:
        """The number of steps of the plan that are left."""
        return self.plan.steps - self.taken

    @property
    def epsilon(self) -> float:
        """An upper bound of the cost of the steps taken so far, by themselves.

        It is no guarantee if released values decide when to stop. The claim is `epsilon_planned`.
        """
        if not self.taken:
            return 0.0
        return epsilon_upper([self.plan.event(self.taken)], self.ledger.terms.plan_delta)

    @property
    def epsilon_planned(self) -> float:
        """An upper bound of the cost of all steps: the claim. The first step pays it."""
        return self.plan.epsilon(self.ledger.terms.plan_delta)

    def backward(self) -> Privatised[Vector]:
        """Take a step: add its gradient to the ``.grad`` of the trained parameters.

        Returns:
            The same gradient, (P,) float32, in the order of the model's parameters.

        Raises:
            SlotError: all steps of the plan were taken.
            LedgerError: the step can't be paid for; nothing was sampled.
            ProtocolError: a trained parameter is not finite; nothing was paid.
            ModelError: the model would compute in other numbers than when it was tried, as under
                autocast; nothing was paid.
            NotPrivateError: more is trained than when this was made, or a hook, a mode or a
                profiler would see gradients of single records; nothing was paid.

        Privacy:
            The step is paid on disk before anything is sampled. The result is the noisy sum of
            clipped vectors over sample rate × declared size. It is the same mechanism if nobody was
            drawn or a unit failed. An interrupt loses the step, which stays paid.
        """
        worker = self._worker
        with self._lock:
            refuse_more(worker.model, worker.vector.names)
            worker.refuse_onlookers()
            refuse_other_numbers(worker.model, self._forwards)
            parameters = worker.vector.read()
            check_vector(parameters, worker.vector.size)
            paid = self._pay(parameters)
            with computing(worker.model):
                try:
                    total = private_step(
                        self._execution,
                        self._method,
                        worker,
                        self._population,
                        parameters,
                        paid,
                        self._csprng(paid.slot),
                    )
                finally:  # a forward pass may have changed what is trained
                    worker.vector.write(parameters)
            # A digest alone is kept, because nobody asks for the values again as a server might.
            self.ledger.release(paid, sha256(total.value.values.tobytes()).encode())
            gradient = post_process(self._mean, total)
            worker.vector.add_gradient(gradient.value)
            return gradient

    def _pay(self, parameters: Vector) -> Reservation:
        """Pay for the next step, on disk, with the public parameters that it is computed with."""
        if not self.left:
            raise SlotError(
                f"All {self.plan.steps} steps of {self.plan.job!r} were taken. Further ones need a"
                " plan of their own, and are paid for as such."
            )
        slot = self.taken
        asked = sha256(canonical_json([self.plan.job, slot, values_digest(parameters)]))
        [paid] = self.ledger.pay(self.plan, range(slot, slot + 1), asked)
        self.taken += 1
        return paid

    def _mean(self, total: GradientSum) -> Vector:
        return total.values / np.float32(self._expected_units)

    def _csprng(self, slot: int) -> RandomSource:
        return SystemCsprng()

    def evaluate(self, records: Records, *, data_is_public: bool) -> Scores:
        """Measure how good the model is on records that are not private.

        Args:
            data_is_public: the caller states that the records are public, or their own to show.

        Raises:
            ConfigError: the caller does not state it.
            DataError: some are among the records that train, or there is nothing to evaluate.

        Privacy:
            A loss on private records is a figure that nobody paid for. Only copies of the training
            records are noticed. For the rest, this rests on the caller's word.
        """
        if not data_is_public:
            raise ConfigError(
                "would print what nobody paid for: a loss on private records",
                key="data_is_public",
                value=data_is_public,
                fix="Evaluate on public records and say so, or ask a federation for a look at"
                " held-out ones ([evaluation.sites]).",
            )
        worker = self._worker
        examples = public_examples(records, self._spec, worker.base.tokenizer, self._own)
        with self._lock, computing(worker.model):
            return score(worker, examples, worker.vector.read())


def _digest(worker: Worker, spec: DataSpec, normalise: bool) -> str:
    """Return a digest of what no plan says, such as how records become examples."""
    settings = {**asdict(spec), "columns": dict(spec.columns)}
    settings |= {"normalise": True} if normalise else {}
    return sha256(canonical_json([worker.vector.digest, settings]))


def _taken(ledger: Ledger, plan: Plan) -> int:
    """Return how many steps of a plan were paid for earlier. They may have been used.

    Raises:
        BudgetError: the ledger does not pay for the plan. Nothing was spent.
        ConfigError: the ledger has another plan of that name.
    """
    known = ledger.plan(plan.job)
    if known is not None and known != plan:
        raise ConfigError(
            "is the name of a plan with other settings",
            file=ledger.path,
            key="job",
            value=plan.job,
            fix="A plan can't change once it is committed: use the same settings, or a new name.",
        )
    ledger.check(plan)
    return len(ledger.slots(plan.job))


def _claim(ledger: Ledger, units: Iterable[Sequence[Identity]]) -> None:
    """Claim the units for a ledger, so that no other ledger beside it pays for the same people."""
    path = ledger.path.resolve()
    UnitIndex(path.parent).claim(ledger.terms.dataset_id, units, file=path.name, begun=ledger.begun)


def _check_one_is_given(pair: str, one: float | None, other: float | None) -> None:
    """Raise ConfigError unless one of two settings is given, and not the other."""
    if (one is None) == (other is None):
        problem = f"expected one of two settings, got {'neither' if one is None else 'both'}"
        raise ConfigError(problem, key=pair, fix="Give exactly one.")
