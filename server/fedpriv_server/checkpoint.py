"""The files from which a job can go on. Each is written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field, TypeAdapter, ValidationError

from fedpriv.errors import RunError
from fedpriv.files import replacing, write_atomic
from fedpriv.names import MAX_JOB_STEPS
from fedpriv.privacy.ledger.ledger import Head
from fedpriv.privacy.mechanism.privatised import Privatised, require_privatised, restored
from fedpriv.public_update.update import Tensors
from fedpriv.synthetic.records import Record
from fedpriv_strategies.secure_rounds import SumState

_Rows = Annotated[int, Field(ge=0)]
_ROUND: TypeAdapter[int] = TypeAdapter(Annotated[int, Field(ge=0, le=MAX_JOB_STEPS)])
_HEADS: TypeAdapter[dict[str, tuple[int, str]]] = TypeAdapter(dict[str, tuple[_Rows, str]])
_RECORDS: TypeAdapter[Sequence[Record]] = TypeAdapter(list[dict[str, str]])
_SUM: TypeAdapter[SumState] = TypeAdapter(SumState)
_SET = "synthetic set"  # name of a tensor: a JSON text as bytes


@dataclass(frozen=True)
class Checkpoint:
    """The state of a job after a round.

    Attributes:
        tensors: the trained vector and the optimiser's state; all made from released values.
        heads: site → its newest ledger head, the witness of its ledger.
        synthetic: the records of the synthetic set in the next round.
        looks: how many looks at held-out records were done or left out.

    Raises:
        RawValueError: `tensors` or `synthetic` are raw.
    """

    job_id: str
    round: int
    tensors: Privatised[Tensors]
    heads: dict[str, Head]
    synthetic: Privatised[Sequence[Record]] | None = None
    looks: int = 0

    def __post_init__(self) -> None:
        require_privatised(self.tensors, "Checkpoint.tensors")
        if self.synthetic is not None:
            require_privatised(self.synthetic, "Checkpoint.synthetic")

    def write(self, path: Path) -> None:
        """Replace the file atomically. Safetensors: loading it runs no code.

        Raises:
            OSError: the file can't be written.
        """
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        meta = {
            "job_id": self.job_id,
            "round": str(self.round),
            "looks": str(self.looks),
            "heads": json.dumps({k: [h.rows, h.hash] for k, h in self.heads.items()}),
        }
        tensors = dict(self.tensors.value)
        if self.synthetic is not None:
            text = json.dumps(self.synthetic.value, ensure_ascii=False)
            tensors[_SET] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as temporary:
            try:
                save_file(tensors, temporary, metadata=meta)
            except SafetensorError as error:
                raise OSError(f"{path}: {error}") from None

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """Read a checkpoint. Raise RunError if the file can't be read as one."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as stream:
                meta = stream.metadata()
                tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
            heads = _HEADS.validate_json(meta["heads"], strict=True)
            text, made_up = tensors.pop(_SET, None), None
            if text is not None:
                made_up = restored(_RECORDS.validate_json(text.numpy().tobytes(), strict=True))
            number = _ROUND.validate_python(meta["round"])
            looks = _ROUND.validate_python(meta.get("looks", "0"))
            seen = {name: Head(*head) for name, head in heads.items()}
            return cls(meta["job_id"], number, restored(tensors), seen, made_up, looks)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{path}: is not a checkpoint ({_first_line(error)}). Put the newest one back."
            ) from None


@dataclass(frozen=True)
class SumFile:
    """The file of a run that says which set the sites were told last. It is public."""

    path: Path

    def read(self) -> SumState | None:
        """Read the state that was kept. Return None if none was kept yet.

        Raises:
            RunError: the file can't be read.
        """
        try:
            return _SUM.validate_json(self.path.read_bytes(), strict=True)
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise RunError(
                f"{self.path}: does not say which sites were to be added up"
                f" ({_first_line(error)}). Put the newest one back."
            ) from None

    def write(self, state: SumState) -> None:
        """Write the state to disk, before a site is told.

        Raises:
            RunError: there is no room, or the disk fails.
        """
        try:
            self.path.parent.mkdir(exist_ok=True)
            write_atomic(self.path, _SUM.dump_json(state))
        except OSError as error:
            raise RunError(
                f"{self.path}: The set of slot {state.slot} can't be kept ({error}). Make room and"
                " start again."
            ) from None


def _first_line(error: Exception) -> str:
    return f"{str(error).partition(chr(10))[0]:.200}"
