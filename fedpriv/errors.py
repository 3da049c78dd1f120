"""Every error fedpriv raises on purpose.

    FedprivError
    ├── ConfigError            a file, key or value that can't be used
    ├── DataError              records that can't be read
    ├── ModelError             a model that can't be loaded
    │   └── NotPrivateError    … or can't be trained privately
    ├── RunError               a run directory that can't be used
    ├── ProtocolError          a message that breaks the agreement between site and server
    │   ├── LimitError             … or asks for what the site's own file does not allow
    │   ├── SyntheticSetError      … about the synthetic set: it has to be sent whole
    │   └── SetError               … about the set of a secure sum: nothing is released for it
    ├── ShareLostError         a site that no longer has its part of a secure sum
    ├── RoundError             a round that can't be completed (too few sites)
    ├── RunningError           a folder in which another process works
    ├── PausedError            a site that waits for a person's yes
    ├── BusyError              a site that is at an earlier request
    ├── JobRefusedError        a job that the site's administrator wants no part in
    ├── StatementError         a proposal that nobody stands for any more, or never did
    ├── NetworkError           a connection that can't be used
    │   ├── UnreachableError       … because nobody answers; may heal by itself
    │   ├── CertificateError       … because the other side is not whom it should be
    │   ├── AdmissionError         … because the server does not know the site's key
    │   └── ClockError             … because the clocks differ
    ├── StepFailedError        a step that failed after its batch was sampled
    ├── AccountingError        parameters no accountant can bound
    ├── RawValueError          a value that no mechanism released, where only such may go
    ├── BudgetError            a plan that would cost more than the site allows
    ├── EnrolmentError         keys and certificates that can't be used, or are another's
    ├── DossierError           a dossier that can't be used
    │   ├── AlteredError           … because its bytes are not those that were signed
    │   ├── SignerError            … because another key signed it, or a report in it
    │   ├── UnderstatedError       … because what it states is less than its events cost
    │   ├── ForkedError            … because a ledger does not continue what was seen of it
    │   └── OtherAdapterError      … because the adapter is not the one that it is about
    └── LedgerError            a ledger that can't be trusted or used
        ├── LedgerInUseError       … because another process has it
        ├── LedgerCorruptError     … because its rows don't add up, or went back in time
        ├── OverlapError           … because another ledger covers some of the same units
        └── SlotError              … for this slot: already used otherwise

`exit_code` is what a command exits with: 2 settings, data, model and whatever is not named here,
3 network and identity, 4 budget and ledger, 5 too few sites, 6 already running; 130 is Ctrl-C.

Of an error, only `code` and the name of the class that sets it may cross the network: messages
can hold paths, column names and values of the site. The code of a `LimitError` is the limit's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self, get_args

# What a site's file allows, by the name that a coordinator hears.
Limit = Literal[
    "methods", "columns", "labels", "model-digest", "begin-digest", "max-length", "max-r",
    "targets", "max-trainable", "numerics", "unit", "max-rate", "max-steps", "min-noise",
    "min-noise-alone", "per-job", "per-job-alone", "epsilon-alone", "max-synthetic", "max-basis",
    "evaluation", "held-out", "roster", "max-colluding",
]  # fmt: skip
LIMITS = frozenset(get_args(Limit))
LONGEST_VALUE = 500  # characters of a value in a message
_PASSWORD = re.compile(  # the password in a URL, as SQLAlchemy reads it, or in its options
    r"(://[^@/?#]*:).*(?=@)|((?:password|passwd|pwd)\s*(?:=|%3d)\s*)[^&;\s'\"]+", re.I
)


class FedprivError(Exception):
    """Root of all errors that fedpriv raises on purpose."""

    code = "error"
    exit_code = 2
    verdict = ""  # the last line that a command prints if a check ended with this error

    def __init_subclass__(cls, *, code: str = "", exit_code: int = 0) -> None:
        super().__init_subclass__()
        if code:
            cls.code = code
        if exit_code:
            cls.exit_code = exit_code


class ConfigError(FedprivError, code="config"):
    """A setting that can't be used.

    Args:
        problem: what is wrong, in a clause.
        file: the file that holds it, or None for the command line.
        key: dotted path of the key, such as ``privacy.epsilon``.
        value: the offending value, shown with ``repr``, the beginning of it if it is long.
        fix: what to do about it, in a sentence.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: Path | str | None = None,
        key: str | None = None,
        value: object = ...,
        fix: str = "",
    ) -> None:
        self.problem, self.file, self.key, self.value, self.fix = problem, file, key, value, fix
        where = ": ".join(str(part) for part in (file, key) if part)
        got = "" if value is ... else f" (got {shown(value)})"
        advice = f" {fix}" if fix else ""
        super().__init__(f"{where + ': ' if where else ''}{problem}{got}.{advice}")

    def but(self, **changed: Any) -> Self:
        """Return the same error with some arguments changed, such as ``file=path``."""
        kept = {name: getattr(self, name) for name in ("problem", "file", "key", "value", "fix")}
        return type(self)(**kept | changed)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question about the nearest of some names, or nothing if none is near."""
    spelt = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), spelt, 1)
    return f"Did you mean {spelt[near[0]]!r}?" if near else ""


def shown(value: object) -> str:
    """Return the `repr` of a value that anybody may have written, at a readable length."""
    try:
        text = without_passwords(repr(str(value) if isinstance(value, Path) else value))
    except (ValueError, RecursionError):  # Python writes no number of thousands of digits
        return f"{type(value).__name__}, too long to show"
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def without_passwords(text: str) -> str:
    """Return the text with ``***`` for the password of a database's URL."""
    return _PASSWORD.sub(lambda found: f"{found[1] or found[2]}***", text)


class DataError(ConfigError):
    """Records that can't be read; `key` names the column or setting.

    Its code is that of any setting: what is wrong with records is nobody else's business.
    """


class ModelError(FedprivError, code="model"):
    """A model that can't be loaded."""


class NotPrivateError(ModelError, code="not-private"):
    """A model whose gradients of single records can't be computed exactly."""


class RunError(FedprivError, code="run"):
    """A run directory that holds something else, or can't be resumed."""


class ProtocolError(FedprivError, code="protocol"):
    """A message with missing, malformed or forbidden content."""


class LimitError(ProtocolError, code="limit"):
    """A job asks for what the site's file does not allow. Nothing was spent.

    Args:
        limit: the name of the limit in the site's file. It depends on no record.
    """

    def __init__(self, message: str, limit: Limit | None = None) -> None:
        super().__init__(message)
        self.limit = limit


class SyntheticSetError(ProtocolError, code="synthetic-set"):
    """A request's synthetic set can't be made from the one at the site."""


class SetError(ProtocolError, code="wrong-set"):
    """A secure sum's set, or a site's entry in it, is wrong: nothing is released."""


class ShareLostError(FedprivError, code="share-lost"):
    """The site no longer has its share of that slot's secure sum. The slot is void."""


class RoundError(FedprivError, code="round", exit_code=5):
    """A round that can't be completed.

    Args:
        may_heal: enough sites may still answer if they are asked again, later.
    """

    def __init__(self, message: str, *, may_heal: bool = False) -> None:
        super().__init__(message)
        self.may_heal = may_heal


class RunningError(FedprivError, code="running", exit_code=6):
    """Another process works in the folder."""


class PausedError(FedprivError, code="paused"):
    """The site waits for a person: it is paused, or a job needs approval."""


class BusyError(FedprivError, code="busy"):
    """A simulated site still works on an earlier request."""


class JobRefusedError(FedprivError, code="refused"):
    """The site's administrator refused this job."""


class StatementError(FedprivError, code="statement"):
    """A proposal has expired, or lacks the statement or signature that a site wants."""


class NetworkError(FedprivError, code="network", exit_code=3):
    """A connection that can't be used."""


class UnreachableError(NetworkError, code="unreachable"):
    """The server can't be reached, or does not answer properly."""


class CertificateError(NetworkError, code="certificate"):
    """TLS fails: site or server does not accept the other's certificate."""


class AdmissionError(NetworkError, code="admission"):
    """The server does not accept the site's key."""


class ClockError(NetworkError, code="clock"):
    """The clocks of site and server differ too much for signatures."""


class StepFailedError(FedprivError, code="failed"):
    """A step failed after its batch was sampled. The reason stays at the site."""


class AccountingError(FedprivError, code="accounting"):
    """Privacy parameters outside what can be bounded."""


class RawValueError(FedprivError, code="raw-value"):
    """A value of unknown origin where only a `Privatised` one may go."""


class BudgetError(FedprivError, code="budget", exit_code=4):
    """A plan that would cost more than the site allows. Nothing was spent."""


class EnrolmentError(FedprivError, code="enrolment", exit_code=3):
    """Keys, certificates or an enrolment: damaged, expired, or of another federation."""


class DossierError(FedprivError, code="dossier", exit_code=4):
    """A dossier that can't be used, or contradicts itself."""


class AlteredError(DossierError, code="dossier-altered"):
    """A dossier's bytes are not those that were signed."""


class SignerError(DossierError, code="dossier-signer", exit_code=3):
    """A dossier, or a report in it, is not signed with the expected key."""


class UnderstatedError(DossierError, code="dossier-understated"):
    """A report states less than its events cost, or leaves events out."""


class ForkedError(DossierError, code="dossier-forked"):
    """A ledger does not continue the rows that were seen earlier."""


class OtherAdapterError(DossierError, code="dossier-adapter"):
    """The adapter is not the one in the dossier."""


class LedgerError(FedprivError, code="ledger", exit_code=4):
    """A ledger that can't be used. Nothing is released without one."""


class LedgerInUseError(LedgerError, code="ledger-in-use"):
    """Another process holds the ledger."""


class LedgerCorruptError(LedgerError, code="ledger-corrupt"):
    """The ledger's rows were edited, are missing, or went back in time."""


class OverlapError(LedgerError, code="overlap"):
    """Another ledger of the site covers units of this population."""


class SlotError(LedgerError, code="slot"):
    """The slot is outside the plan, or was used for another request."""


@contextmanager
def naming(source: Path, key: str | None = None) -> Iterator[None]:
    """Add to an error the file in which its cause stands, if the error does not name it."""
    try:
        yield
    except ConfigError as error:
        if error.file is not None:
            raise
        raise error.but(file=source) from error
    except FedprivError as error:
        error.args = (": ".join(str(part) for part in (source, key, error) if part),)
        raise
