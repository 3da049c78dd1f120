"""A Dockerfile, read as far as the tests ask: stages, instructions, and what they inherit."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "container" / "Dockerfile"


@dataclass
class Stage:
    """What follows a FROM.

    Attributes:
        base: an earlier stage's name, or an image.
        instructions: (INSTRUCTION, its text), lines joined, in order.
    """

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [text for name, text in self.instructions if name == instruction]


def stages(text: str | None = None) -> dict[str, Stage]:
    """The stages of our Dockerfile, or of another one's text, by name and in order."""
    text = FILE.read_text(encoding="utf-8") if text is None else text
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    found: dict[str, Stage] = {}
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        instruction, rest = re.split(r"\s+", line.strip(), maxsplit=1)
        if instruction == "FROM":
            image, name = re.fullmatch(r"(\S+)(?: AS (\S+))?", rest).groups()  # type: ignore[union-attr]
            current = Stage(name or str(len(found)), image)
            found[current.name] = current
        elif found:
            current.instructions.append((instruction, " ".join(rest.split())))
    return found


def chain(target: str) -> list[Stage]:
    """A stage and what it is built from, the outermost first; an image is no stage."""
    known, at, found = stages(), target, []
    while at in known:
        found.insert(0, known[at])
        at = known[at].base
    return found


def last(target: str, instruction: str) -> str:
    """What an image ends up with, where the last word counts."""
    return [text for stage in chain(target) for text in stage.all(instruction)][-1]


def entry_point(target: str) -> list[str]:
    """The words that an image starts with, in exec form."""
    words: list[str] = json.loads(last(target, "ENTRYPOINT"))
    return words
