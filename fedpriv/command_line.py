"""Run a command line, and show its errors, whichever thread they come from."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from typing import NoReturn

import typer

from fedpriv.errors import FedprivError
from fedpriv.logs import discreet, printable
from fedpriv.terminal import use_readable_output

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
_NAMED = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM)


def run(app: typer.Typer) -> NoReturn:
    """Run a command line. An error on purpose becomes its message and the exit code of its class.

    For any other error only class, files and lines are shown, because its text may quote a record.
    With ``PYTHONDEVMODE=1`` all of it is shown. This holds in every thread. Letters that a terminal
    does not have are written by their names, see `fedpriv.terminal`.
    """
    use_readable_output()
    threading.excepthook = _fault_of_a_thread
    sys.unraisablehook = _stop_all_the_same
    try:
        code = app(standalone_mode=False)  # the code of an early exit, such as Ctrl-C; else None
    except FedprivError as error:
        lines = f"error: {error}".split("\n")  # they may quote what somebody else wrote
        print(*map(printable, lines), sep="\n", file=sys.stderr)
        if error.verdict:
            print(error.verdict)
        raise SystemExit(error.exit_code) from None
    except typer.Abort:
        raise SystemExit(130) from None
    except OSError as error:
        if error.errno in _DISK:
            advice = "Make room and start again."
        elif error.errno in _NAMED and error.filename:
            advice = "Name another path, or repair this one."
        else:
            _fault(error)
        where = error.filename or "A file"
        print(f"error: {where}: {error.strerror}. {advice}", file=sys.stderr)
        raise SystemExit(2) from None
    except Exception as error:
        if hasattr(error, "show"):  # a usage error of the command line
            error.show()
            raise SystemExit(2) from None
        _fault(error)
    raise SystemExit(code)


def _fault(error: Exception) -> NoReturn:
    if sys.flags.dev_mode:
        raise error
    _say(error, "fedpriv")
    raise SystemExit(1) from None


def _fault_of_a_thread(found: threading.ExceptHookArgs) -> None:
    if sys.flags.dev_mode or found.exc_value is None:
        threading.__excepthook__(found)
    elif not isinstance(found.exc_value, SystemExit):
        _say(found.exc_value, f"a thread ({found.thread.name if found.thread else 'ended'})")


def _stop_all_the_same(found: sys.UnraisableHookArgs) -> None:
    """Send Ctrl-C again if it came while an object was being deleted: Python drops it there."""
    if not isinstance(found.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(found)
        return
    later = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    later.daemon = True
    later.start()


def _say(error: BaseException, whose: str) -> None:
    print(f"error: a fault of {whose}\n{discreet(error)}", file=sys.stderr)
