"""Output does not depend on the letters that a terminal or a file has."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from fedpriv.command_line import run
from fedpriv.errors import ConfigError
from fedpriv.terminal import confirm, use_readable_output

ENCODINGS = ("ascii", "latin-1", "iso8859-15", "cp1252", "cp437", "utf-8")


def stream(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)


def written(to: Any) -> str:
    return str(to.buffer.getvalue().decode(to.encoding))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text() | st.text("εδσ→≤·█─│╭é\ud800\udcff"), encoding=st.sampled_from(ENCODINGS))
def test_any_text_can_be_printed(text: str, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out, errors = stream(encoding), stream(encoding)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", errors)
    use_readable_output()
    print(text, end="")
    print(text, end="", file=sys.stderr)
    assert written(out) == written(errors)
    try:
        assert text.encode(encoding) == out.buffer.getvalue()  # what it has is as it was
    except UnicodeEncodeError:
        assert written(out) or not text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_tables_and_figures_stay_readable(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()

    @app.command()
    def show() -> None:
        table = Table("ε", "steps")
        table.add_row("≤ 4 → 3", "10 ± 2…")
        Console(width=60).print(table)
        print("δ = 1e-5 – naïve", file=sys.stderr)

    out, errors = stream(encoding), stream(encoding)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", errors)
    monkeypatch.setattr(sys, "argv", ["show"])
    with pytest.raises(SystemExit) as ended:
        run(app)
    assert ended.value.code in (0, None)
    shown = written(out)
    assert "GREEK SMALL LETTER EPSILON" in shown and "RIGHTWARDS ARROW" in shown and "|" in shown
    assert written(errors).startswith(r"\N{GREEK SMALL LETTER DELTA} = 1e-5 \N{EN DASH} na")


def test_a_notebooks_own_stream_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", None)
    use_readable_output()
    print("ε")
    assert sys.stdout.getvalue() == "ε\n"  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_command_ends_well_on_a_terminal_of_ascii() -> None:
    plan = "from fedpriv.cli import main; main()"
    asked = ["plan", *["--epsilon", "4", "--sample-rate", "0.2", "--steps", "30", "--size", "250"]]
    done = subprocess.run(
        [sys.executable, "-c", plan, *asked],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\N{GREEK SMALL LETTER EPSILON} after so many steps" in done.stdout


def test_silence_is_no_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(typer, "confirm", lambda text, *, abort: asked.append(text))
    with pytest.raises(ConfigError, match="--yes: is needed, as there is no terminal"):
        confirm("Go on?", yes=False)
    confirm("Go on?", yes=True)
    assert not asked
    monkeypatch.setattr("fedpriv.terminal.is_asked", lambda: True)
    confirm("Go on?", yes=False)
    assert asked == ["Go on?"]
