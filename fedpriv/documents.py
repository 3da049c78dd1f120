"""Read JSON files that a program wrote, or refuse them with their first fault.

People do not edit these files. For files that people write see `fedpriv.config.load`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from fedpriv.errors import ConfigError

Document = TypeVar("Document", bound=BaseModel)
CHANGED = "The file was edited, cut short, or written by another version of fedpriv."


def read_json(
    path: Path, kind: type[Document], fix: str = CHANGED, *, strict: bool = True
) -> Document:
    """Read the document in `path`.

    Args:
        fix: what to do about a file that is malformed, in a sentence.
        strict: read in pydantic's strict mode.

    Raises:
        ConfigError: the file is missing or malformed; names the file, the key and the value.
    """
    try:
        return kind.model_validate_json(path.read_bytes(), strict=strict)
    except FileNotFoundError:
        raise ConfigError("no such file", file=path) from None
    except OSError as error:
        raise ConfigError(f"can't be read: {error.strerror}", file=path) from None
    except ValidationError as error:
        raise malformed(error, path, fix) from None


def malformed(
    error: ValidationError, path: Path | str | None = None, fix: str = CHANGED
) -> ConfigError:
    """Return the first problem of a file, or of the part of a file that `path` names."""
    problem = error.errors(include_url=False)[0]
    key = ".".join(map(str, problem["loc"])) or None
    match problem["type"]:
        case "json_invalid":
            return ConfigError(f"is not JSON: {problem['ctx']['error']}", file=path, fix=fix)
        case "missing":
            return ConfigError("is missing", file=path, key=key, fix=fix)
        case "extra_forbidden":
            message = "unknown key"
        case _:
            message = problem["msg"].removeprefix("Value error, ")
            message = message[0].lower() + message[1:]
    return ConfigError(message, file=path, key=key, value=problem["input"], fix=fix)
