"""Fill in a site's file by questions that say what each answer means."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from fedpriv.config.load import allowed_model, load_site
from fedpriv.config.personal import OwnSiteFile
from fedpriv.errors import ConfigError
from fedpriv.files import write_atomic

LINE = re.compile(r"^(?P<mark>#!?) (?P<key>\w+) = (?P<value>.*)$")
MAY_STAY = ("budget.witness", "allow.approve")  # lines of a draft that are asked for, too
Ask = Callable[[str, str | None], str]  # gives a line of text; an empty answer takes the offer
Tell = Callable[[str], None]
HERE = ("data.path", "allow.model", "allow.begin")  # files and folders of this machine


@dataclass(frozen=True)
class Question:
    """Hold a line of a draft that the site fills in.

    Attributes:
        key: the key with its table, such as ``budget.epsilon``.
        line: the number of the line in the draft, from 0.
        needed: whether the file is refused without it.
        said: what the draft says there: a proposal, or an example.
    """

    key: str
    line: int
    needed: bool
    said: str

    @property
    def field(self) -> FieldInfo:
        """Return the key's field, which knows the allowed values and their meaning."""
        table, key = self.key.split(".")
        section: Any = OwnSiteFile.model_fields[table].annotation
        field: FieldInfo = section.model_fields[key]
        return field


def questions(draft: str) -> Iterator[Question]:
    """Yield the lines of a draft that the site has to decide, from top to bottom."""
    table = ""
    for number, line in enumerate(draft.splitlines()):
        if line.startswith("["):
            table = line.strip("[]")
        elif found := LINE.match(line):
            key, needed = f"{table}.{found['key']}", found["mark"] == "#!"
            if needed or key in MAY_STAY:
                yield Question(key, number, needed, found["value"])


def fill_in(path: Path, ask: Ask, tell: Tell) -> None:
    """Ask for every open line of a draft, check the whole file, and write it at once.

    Args:
        path: the draft; it stays as it was until all questions are answered.

    Raises:
        ConfigError: the file is wrong in a line that is not asked for.
    """
    text = path.read_text(encoding="utf-8")
    lines, asked = text.splitlines(), list(questions(text))
    waiting = asked
    while waiting:
        for question in waiting:
            _answer(question, path, lines, ask, tell)
        try:
            with _beside(path, lines) as tried:
                load_site(tried)
            break
        except ConfigError as error:
            waiting = [question for question in asked if question.key == error.key]
            if not waiting:
                raise error.but(file=path) from None
            tell(f"{error.problem}. {error.fix}")
    write_atomic(path, "\n".join(lines) + "\n")


def _answer(question: Question, path: Path, lines: list[str], ask: Ask, tell: Tell) -> None:
    """Ask until an answer is valid for the key, and put it into its line."""
    tell(f"\n{_plain(question.field.description or '')}")
    usual = _usual(question, path, lines)
    while answer := ask(question.key, usual).strip():
        try:
            lines[question.line] = _line(question, answer, path.parent)
            return
        except ConfigError as error:
            tell(f"{error.problem}. {error.fix}")


def _usual(question: Question, path: Path, lines: list[str]) -> str | None:
    """Return the answer to offer; None if only the site can know it."""
    if question.key == "budget.per_job":  # what the coordinator proposes
        return question.said
    with _beside(path, lines) as tried:
        if question.key == "allow.model_digest":
            from fedpriv.models.stored import digest_of

            return digest_of(allowed_model(tried) or "embedded")
        if question.key == "allow.begin_digest":
            from fedpriv.stored_adapter import find_adapter

            return find_adapter(allowed_model(tried, "begin") or "").digest
    return None if question.needed else ""


def _line(question: Question, answer: str, folder: Path) -> str:
    """Return the line of the file for an answer.

    Raises:
        ConfigError: the key can't have this value.
    """
    field, key = question.field, question.key
    if not answer.isprintable():
        raise ConfigError("has a character that can't be shown", key=key, value=answer)
    if key in HERE and not (folder / answer).exists():
        fix = "For what is in a database or at a hub, edit the file by hand (docs/how-to/data.md)."
        raise ConfigError(f"{folder / answer} is not there", key=key, value=answer, fix=fix)
    try:
        kind: Any = Annotated[field.annotation, field]
        strict = ConfigDict(allow_inf_nan=False)
        value: Any = TypeAdapter(kind, config=strict).validate_python(answer)
    except ValidationError as error:
        said = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise ConfigError(said, key=key, value=answer) from None
    shown = value if isinstance(value, int | float) else str(value)
    return f"{key.partition('.')[2]} = {json.dumps(shown, ensure_ascii=False)}"


@contextmanager
def _beside(path: Path, lines: list[str]) -> Iterator[Path]:
    """Keep a file with these lines for a while, in the folder to which its paths are relative."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".toml", encoding="utf-8") as new:
        new.write("\n".join(lines) + "\n")
        new.flush()
        yield Path(new.name)


def _plain(text: str) -> str:
    """Return a description without Markdown's links and backticks."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "")
