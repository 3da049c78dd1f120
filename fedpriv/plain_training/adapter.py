"""An adapter as a folder: what peft reads, a card, and the facts that are needed to use it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.adapter_facts import AGAIN, AdapterFacts, Kind
from fedpriv.base_model import FACTS, MARK, WEIGHTS
from fedpriv.errors import ConfigError, FedprivError, ModelError, ProtocolError
from fedpriv.files import file_digest, replacing_folder, write_atomic
from fedpriv.models.vector import TrainableVector, Vector
from fedpriv.protocol import Proposal

if TYPE_CHECKING:
    from peft import PeftModel

    from fedpriv.private_training.worker import Worker

CARD = "README.md"


def write_adapter(
    folder: Path,
    worker: Worker,
    values: Vector,
    proposal: Proposal,
    card: str,
    *,
    kind: Kind,
    held_out: str | None = None,
    trained: str | None = None,
) -> AdapterFacts:
    """Write an adapter with these trained values (P,). Another one in its place is replaced.

    It is written as a whole or not at all, for its owner alone.

    Args:
        worker: the worker that holds the model that the proposal trains.
        card: text of README.md, which says what the adapter is and who may have it.

    Raises:
        ProtocolError: the values are not for this model.
        OSError: there is no room, or the disk fails.
    """
    worker.vector.write(values)
    with replacing_folder(folder) as made:
        worker.model.save_pretrained(made, save_embedding_layers=False)
        if kind != "federated":
            from safetensors.torch import load, save_file

            path, known = made / WEIGHTS, {"format": "pt", MARK: kind}  # wherever the file goes
            save_file(load(path.read_bytes()), path, known)
        (made / CARD).write_text(card, encoding="utf-8")  # peft's own card says nothing
        return write_facts(made, proposal, kind=kind, held_out=held_out, trained=trained)


def check_saved(model: Any, drawn: Collection[str], source: str, fix: str) -> None:
    """Refuse a model if an adapter's file alone would load as something else.

    Args:
        drawn: names of the base's parameters that are in no file of `source`.

    Raises:
        ModelError: names the parameters that the adapter's file would not hold either.
    """
    from peft import get_peft_model_state_dict

    held = get_peft_model_state_dict(model, save_embedding_layers=False)
    lost = sorted(name for name in drawn if f"base_model.model.{name}" not in held)
    if lost:
        said = f"{', '.join(lost)} was in no file of {source!r}, so it was drawn at random"
        raise ModelError(f"{said}, and others would draw other values. {fix}")


def saved_bytes(worker: Worker) -> int:
    """Return the bytes of an adapter's tensors in its file, with those that are not trained."""
    from peft import get_peft_model_state_dict

    tensors = get_peft_model_state_dict(worker.model, save_embedding_layers=False).values()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def write_facts(
    folder: Path,
    proposal: Proposal,
    *,
    kind: Kind,
    held_out: str | None = None,
    trained: str | None = None,
) -> AdapterFacts:
    """Write down what the adapter in a folder is."""
    digest, own = file_digest(folder / WEIGHTS), {"held_out": held_out, "trained": trained}
    facts = AdapterFacts(kind=kind, proposal=proposal, weights_digest=digest, **own)
    write_atomic(folder / FACTS, facts.as_text())
    return facts


def read_values(folder: Path, worker: Worker, facts: AdapterFacts) -> Vector:
    """Read the trained values (P,) of an adapter into the worker's model.

    Raises:
        ConfigError: the adapter has another shape than the worker's.
    """
    return read_into(worker.model, folder, facts)


def read_into(model: PeftModel, folder: Path, facts: AdapterFacts) -> Vector:
    """Read the trained values (P,) of an adapter into a model.

    Args:
        model: a model as the facts' proposal describes it.

    Raises:
        ConfigError: the adapter has another shape than the model's.
    """
    path = folder / WEIGHTS
    try:
        put_tensors(model, path)
        vector = TrainableVector(model)
        if vector.digest != facts.proposal.vector_digest:
            raise ProtocolError("what it holds beside the trained values is not the job's")
    except FedprivError as error:
        raise ConfigError(f"can't be used ({error})", file=path, fix=AGAIN) from None
    return vector.read()


def put_tensors(model: PeftModel, path: Path) -> None:
    """Give a model the values of an adapter's file. The file has to hold just what the adapter has.

    Raises:
        ModelError: the file holds something else, or values that are not finite; or it can't be
            read.
    """
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"can't be read ({error})") from None
    own = get_peft_model_state_dict(model, save_embedding_layers=False)
    here, there = ({(name, *one.shape) for name, one in x.items()} for x in (own, stored))
    if here != there:
        (odd, *shape), *_ = sorted(here ^ there)
        raise ModelError(f"its tensors are not those of the job's model: {odd} of shape {shape}")
    if not all(one.isfinite().all() for one in stored.values()):
        raise ModelError("expected finite values")
    set_peft_model_state_dict(model, stored)
