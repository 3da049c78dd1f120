"""How far the secure sum of a round is, kept on disk: a slot has one set for ever."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fedpriv.errors import RunError
from fedpriv.files import write_atomic
from fedpriv_strategies.secure_rounds import SumState

_STATE: TypeAdapter[SumState] = TypeAdapter(SumState)


@dataclass(frozen=True)
class SumFile:
    """The file of a run that says which set the sites were told last. Public."""

    path: Path

    def read(self) -> SumState | None:
        """Read the state that was kept; None before anything was.

        Raises:
            RunError: the file can't be read.
        """
        try:
            return _STATE.validate_json(self.path.read_bytes(), strict=True)
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            first = f"{str(error).partition(chr(10))[0]:.200}"
            raise RunError(
                f"{self.path}: does not say which sites were to be added up ({first}). Put the"
                " newest one back."
            ) from None

    def write(self, state: SumState) -> None:
        """Keep it, before a site is told.

        Raises:
            RunError: there is no room, or the disk fails.
        """
        try:
            self.path.parent.mkdir(exist_ok=True)
            write_atomic(self.path, _STATE.dump_json(state))
        except OSError as error:
            raise RunError(
                f"{self.path}: The set of slot {state.slot} can't be kept ({error}). Make room and"
                " start again."
            ) from None
