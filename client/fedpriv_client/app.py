"""Run a site as a Flower ClientApp: it only turns messages into calls and replies."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpriv import protocol
from fedpriv.errors import FedprivError, PausedError, ProtocolError
from fedpriv.models.vector import Vector
from fedpriv.private_training.released import HeldOutSum
from fedpriv.report.budget import BudgetReport
from fedpriv.synthetic.records import SetChange
from fedpriv.wire import BLOCK, Blocks, encode, encode_masked
from fedpriv_client.report import signed_report, write_report
from fedpriv_client.site import Site

log = logging.getLogger(__name__)
Answer = protocol.Body | BudgetReport
Result = tuple[Answer, ArrayRecord | None]
Permit = Callable[[str], None]
Work = Callable[[Site, Permit, Message], Result]


def client_app(site: Site, permit: Permit = lambda job: None) -> ClientApp:
    """Serve a site to a server.

    `query` messages carry proposals, `train` messages carry step requests, and `train.set` messages
    carry the set of a secure sum. `query.report` asks for the budget report of a job.
    `query.adapter` brings the adapter of a finished job.

    Args:
        permit: called with the job's id before each answer; raises if it forbids that.
    """

    def answering(work: Work) -> Callable[[Message, Context], Message]:
        def answer(message: Message, context: Context) -> Message:
            try:
                body, arrays = work(site, permit, message)
            except Exception as error:
                return refusal(message, error)
            return _reply(message, body, arrays)

        return answer

    app = ClientApp()
    app.query()(answering(_consider))
    app.query("report")(answering(_report))
    app.query("adapter")(answering(_take_adapter))
    app.train()(answering(_step))
    app.train("set")(answering(_share))
    return app


def _consider(site: Site, permit: Permit, message: Message) -> Result:
    proposal = protocol.Proposal.parse(_body(message))
    permit(proposal.job_id)
    signature = _body(message, protocol.SIGNED)
    signed = None if signature is None else protocol.Signed.parse(signature)
    offer, steps = site.consider(proposal, signed), proposal.steps
    log.info("Job %s: offered %d steps at ε = %.3f in all.", proposal.job_id, steps, offer.epsilon)
    return offer, None


def _step(site: Site, permit: Permit, message: Message) -> Result:
    request = protocol.StepRequest.parse(_body(message))
    permit(request.job_id)
    answer = site.step(request, _vector(message, _most(site)), _change(message))
    if isinstance(answer, protocol.Ready):
        log.info("Job %s: ready for slot %d.", request.job_id, request.slot)
        return answer, None
    body, released = answer
    _tell_of(site, request.job_id, body)
    # The two values of a look differ in size, and are not rounded together.
    wire = "float32" if isinstance(released, HeldOutSum) else site.wire
    arrays = {name: Array(block) for name, block in encode(released.values, wire)}
    return body, ArrayRecord(arrays, keep_input=False)


def _share(site: Site, permit: Permit, message: Message) -> Result:
    request = protocol.SetRequest.parse(_body(message))
    permit(request.job_id)
    body, share = site.share(request)
    _tell_of(site, request.job_id, body)
    arrays = {name: Array(block) for name, block in encode_masked(share.values)}
    return body, ArrayRecord(arrays, keep_input=False)


def _tell_of(site: Site, job: str, body: protocol.StepReply) -> None:
    """Write what was spent to budget report and log. The reply leaves even if that fails."""
    try:
        _keep(site, signed_report(site, job))
    except FedprivError as error:
        log.error("There is no budget report: %s", error)
    log.info("Job %s: slot %d, ε = %.3f spent.", job, body.slot, body.epsilon_spent)


def _keep(site: Site, report: BudgetReport) -> None:
    """Write a report for people. Only this site's log says what is wrong with the disk (law 18)."""
    try:
        write_report(site, report)
    except (OSError, FedprivError) as error:
        log.error("The budget report was not written: %s", error)


def _report(site: Site, permit: Permit, message: Message) -> Result:
    """Answer with a report. It needs no permit: it says what was spent, and costs nothing."""
    request = protocol.ReportRequest.parse(_body(message))
    if site.ledger.plan(request.job_id) is None:
        raise ProtocolError(f"This site has spent nothing on job {request.job_id!r}.")
    report = signed_report(site, request.job_id)
    _keep(site, report)
    return report if request.life else signed_report(site, request.job_id, life=False), None


def _take_adapter(site: Site, permit: Permit, message: Message) -> Result:
    """Keep an adapter if possible. Only this site's log says what is wrong.

    Privacy:
        Free disk and memory depend on the records, so the answer depends on nothing (law 18).
    """
    try:
        handover = protocol.Handover.parse(_body(message))
        permit(handover.proposal.job_id)
        kept = site.take_adapter(handover, _vector(message, _most(site)))
        log.info("Job %s: its adapter is in %s.", handover.proposal.job_id, kept)
    except FedprivError as error:
        log.error("An adapter was not kept: %s", error)
    except OSError as error:
        log.error("An adapter was not kept: %s.", error.strerror)
    except Exception as error:
        log.error("An adapter was not kept: %s", type(error).__name__, exc_info=error)
    return protocol.Received(), None


def refusal(message: Message, error: Exception) -> Message:
    """Answer with an error's code and class. Its text does not leave; it is logged here."""
    body = protocol.Refusal.of(error) if isinstance(error, FedprivError) else protocol.FAILED
    if isinstance(error, PausedError):
        log.info("Waiting for a person: %s", error)
    elif isinstance(error, FedprivError):
        log.error("Refused (%s): %s", body.refused, error)
    else:
        log.error("Failed: %s", type(error).__name__, exc_info=error)
    return _reply(message, body, None)


def _reply(message: Message, body: Answer, arrays: ArrayRecord | None) -> Message:
    content = RecordDict({protocol.BODY: ConfigRecord({"body": body.model_dump_json()})})
    if arrays is not None:
        content[protocol.VECTOR] = arrays
    return Message(content, reply_to=message)


def _body(message: Message, part: str = "body") -> object:
    record = message.content.config_records.get(protocol.BODY)
    return None if record is None else record.get(part)


def _change(message: Message) -> SetChange | None:
    """Return the change of the site's synthetic set; None if the request names no set."""
    record = message.content.array_records.get(protocol.SYNTHETIC)
    return None if record is None else SetChange.decode(record)


def _most(site: Site) -> int:
    return site.settings.limits.max_trainable


def _vector(message: Message, most: int) -> Vector:
    """Read the vector of a request. Its arrays state its length, which the site checks.

    Args:
        most: the most values that it may have; checked before memory is taken for them.
    """
    record = message.content.array_records.get(protocol.VECTOR)
    if not record:
        raise ProtocolError("The request has no arrays.")
    size = 0
    for array in record.values():
        match array.shape:
            case (int(count),) if 0 < count <= BLOCK:
                size += count
            case _:
                raise ProtocolError("An array of the request has the wrong shape.")
    if size > most:
        raise ProtocolError(f"A vector of {size:,} values; this site allows {most:,}.")
    return Blocks(lambda name: record[name].data, record.keys(), size, "float32").vector()
