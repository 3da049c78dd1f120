"""What someone outside a ledger's backup remembers of it.

A copy that was restored from a backup is whole in itself. It is told by a head that was seen
later: the server's last one, the site's last report, or a witness file on another disk, which
the ledger rewrites after every row. A witness that lies or is stale can make a site stop, never
spend. If ledger and witness are restored together, nobody can tell: an assumption of the claim.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from fedpriv.errors import LedgerError
from fedpriv.files import write_json
from fedpriv.privacy.chain import Head


@dataclass(frozen=True)
class Witness:
    """A head, and what plans had taken of the rule's currency by then."""

    dataset_id: str
    rows: int
    hash: str
    used: tuple[float, ...]

    @property
    def head(self) -> Head:
        return Head(self.rows, self.hash)

    def write(self, path: Path) -> None:
        """Replace the file, durably.

        Raises:
            LedgerError: it can't be written.
        """
        try:
            write_json(path, asdict(self))
        except OSError as error:
            raise LedgerError(
                f"{path}: the witness can't be written ({error.strerror}). Nothing was released."
            ) from None

    @classmethod
    def read(cls, path: Path) -> Witness:
        """Raises:
        LedgerError: no such file, or no witness.
        """
        try:
            fields = json.loads(path.read_bytes())
            fields["used"] = tuple(float(amount) for amount in fields["used"])
            witness = cls(**fields)
            if type(witness.rows) is not int or witness.rows < 0:
                raise ValueError("rows")
        except OSError as error:
            raise LedgerError(f"{path}: can't be read as a witness ({error.strerror}).") from None
        except (ValueError, TypeError, KeyError):
            raise LedgerError(f"{path}: is not the witness of a ledger.") from None
        return witness
