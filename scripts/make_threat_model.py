#!/usr/bin/env python
"""Write docs/explanation/threat-model.md: all that leaves a site, what it depends on, its test.

    python scripts/make_threat_model.py             # writes it
    python scripts/make_threat_model.py --check     # 1 if the file is not what would be written

The list is read from the code: fields of messages, vectors, what the site's client sends over HTTP,
codes of errors and of exits, places that write a file, lines of the log, and figures. The file
threat_model.toml beside this script says what each depends on, and so who pays for it, and which
test holds it. Something new without a row there, or a row for something that is gone, is an error.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from written_page import Row, table, write_or_check

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/explanation/threat-model.md"
ROWS = Path(__file__).with_name("threat_model.toml")
ROOMS = {"fedpriv": ROOT / "fedpriv", "fedpriv_client": ROOT / "client" / "fedpriv_client"}
WRITES = {
    *("write_atomic", "write_json", "write_beside", "replacing", "replacing_folder"),
    *("write_text", "write_bytes", "save_pretrained", "save_file", "save_to_disk", "to_parquet"),
    *("TemporaryFile", "NamedTemporaryFile", "TemporaryDirectory", "mkdtemp", "mkstemp"),
    *("copytree", "copyfile", "copy2", "from_generator", "load_dataset"),
}
OPENS = {"os.open", "sqlite3.connect"}
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
# Functions that write for their callers. The callers are listed instead.
HELPERS = ("fedpriv.files.", "fedpriv_client.held_space.write_beside")
HEAD = """\
# Threat model

<!-- Written by scripts/make_threat_model.py, and scripts/threat_model.toml: change those. -->

This page lists everything that leaves a site, or that people at a site could hand on: what each
value depends on, its bound, and the test that holds this. The lists are read from the code. A new
field, file, code or line of the log without an entry fails `scripts/check`.
[Privacy](privacy.md#what-leaves-a-site) says why each may leave; the
[glossary](../reference/glossary.md) explains words.

## How to read it
"""
READING = """\
Bounds: `text ≤ 64` has at most 64 characters, `[0, 1)` goes from 0 up to 1 without 1, `64 × text`
is a list of at most 64 texts, a pattern is a regular expression.
"""
LOWEST = {"minimum": "≥", "exclusiveMinimum": ">"}
LARGEST = {"maximum": "≤", "exclusiveMaximum": "<"}


class Rows:
    """Hold the rows of one kind of thing, which say who pays for each.

    Args:
        kind: the kind's table in the file of rows: payer → names.
    """

    def __init__(self, file: Mapping[str, Any], kind: str) -> None:
        self.kind, self.words = kind, file["payers"]
        table = file[kind]
        self.tests = table.get("tests", {})
        self.about = table.get("about", {})
        self.shown: dict[str, str] = {}  # names that the page says differently
        payers = [(payer, names) for payer, names in table.items() if isinstance(names, list)]
        self._payer = {name: payer for payer, names in payers for name in names}
        self._left = set(self._payer)

    def of(self, name: str) -> str:
        """Say who pays for a thing.

        Raises:
            SystemExit: no row says who pays.
        """
        if name not in self._payer:
            sys.exit(f"{ROWS.name}: [{self.kind}] has no row for {name!r}: who pays for it?")
        self._left.discard(name)
        return str(self.words[self._payer[name]][0])

    def test(self, name: str) -> str:
        """Return the test that holds a thing, or its group."""
        return _tests(self.tests.get(name) or self.tests["*"])

    def all_tests(self) -> str:
        """Return a line that names the tests of the whole section."""
        others: dict[str, list[str]] = {}
        for name, found in self.tests.items():
            if name != "*":
                others.setdefault(_tests(found), []).append(f"`{self.shown.get(name, name)}`")
        parts = [f"of {', '.join(names)}: {found}" for found, names in others.items()]
        if "*" in self.tests:
            parts.insert(0, _tests(self.tests["*"]))
        return f"Tests: {'; '.join(parts)}.\n"

    def check(self) -> None:
        """Stop the script (SystemExit) if a row is about something that no longer exists."""
        if self._left:
            sys.exit(f"{ROWS.name}: [{self.kind}] has rows of what is gone: {sorted(self._left)}")


def _tests(found: str | list[str]) -> str:
    return ", ".join(f"`{one}`" for one in ([found] if isinstance(found, str) else found))


def page() -> str:
    """Return the whole page."""
    file = tomllib.loads(ROWS.read_text(encoding="utf-8"))
    words = [(f"**{word}**", meaning) for word, meaning in file["payers"].values()]
    parts = [HEAD, table(("word", "the value is, or depends on"), words), READING]
    for kind, (title, head, rows) in SECTIONS.items():
        known = Rows(file, kind)
        text = file[kind].get("text", "")
        parts += [f"## {title}\n", *([f"{text}\n"] if text else [])]
        found = sorted(rows(known), key=_order(file)) if head[-1:] == TESTED else [*rows(known)]
        parts.append(table(head, found) if head else _listed(file, found))
        if head[-1:] != TESTED:
            parts.append(known.all_tests())
        known.check()
    parts += ["## Time, and the rest\n", table(TIMES, (tuple(row) for row in file["time"]))]
    return "\n".join(parts)


def _order(file: Mapping[str, Any]) -> Callable[[Row], int]:
    """Return a key that sorts rows by the word in their second to last column."""
    order = [word for word, _ in file["payers"].values()]
    return lambda row: order.index(row[-2])


def _listed(file: Mapping[str, Any], rows: list[Row]) -> str:
    """Return one item for each word, with all the names for which it is true.

    Args:
        rows: a name with its word. A quoted line of the log has a line of its own.
    """
    parts = []
    for word, _ in file["payers"].values():
        names = list(dict.fromkeys(name for name, found in rows if found == word))
        if names and names[0].startswith("“"):
            parts.append("\n".join([f"**{word}:**\n", *(f"- {name}" for name in names), ""]))
        elif names:
            parts.append(f"- **{word}:** {', '.join(names)}")
    return "\n".join(parts) + ("" if parts[-1].endswith("\n") else "\n")


def _together(rows: Iterable[Row], part: Callable[[str], str] = lambda name: "") -> Iterator[Row]:
    """Yield rows that differ only in their name as one row.

    Args:
        part: takes a name, and returns what has to be the same, too.
    """
    found: dict[tuple[str, ...], list[str]] = {}
    for name, *rest in rows:
        found.setdefault((part(name), *rest), []).append(name)
    for (_, *rest), names in found.items():
        yield (", ".join(names), *rest)


def _message(field: str) -> str:
    return field.strip("`").partition(".")[0]


# What leaves in messages


def messages() -> dict[str, type[BaseModel]]:
    """Return every body of a message, by its name."""
    from fedpriv import protocol
    from fedpriv.report.budget import BudgetReport

    found = {
        name: value
        for name, value in vars(protocol).items()
        if isinstance(value, type)
        and issubclass(value, protocol.Body)
        and value is not protocol.Body
    }
    return found | {"BudgetReport": BudgetReport}


def _fields(known: Rows) -> Iterator[Row]:
    """Give the fields of what a site says. The next table has what a site is told."""
    for name, body in messages().items():
        if name in known.about["arrives"]:
            continue
        for field, schema in leaves_of(body.model_json_schema()):
            full = f"{name}.{field}"
            yield f"`{full}`", bound(schema), known.of(full)
        if not body.model_fields:
            yield f"`{name}`", "empty", known.of(name)


def leaves_of(schema: Any, where: str = "", top: Any = None) -> Iterator[tuple[str, Any]]:
    """Give each field of a JSON schema that has no fields of its own, with its path."""
    top = top or schema
    for name, field in schema.get("properties", {}).items():
        path, inner = f"{where}.{name}".strip("."), _inside(field, top)
        if inner is not None and inner.get("properties"):
            yield from leaves_of(inner, path, top)
        else:
            yield path, field if "$ref" not in field else inner


def _inside(field: Any, top: Any) -> Any:
    """Return the definition of the section that a field is, holds, or may be. Otherwise None."""
    for option in (field, field.get("items", {}), *field.get("anyOf", ())):
        if "$ref" in option:
            return top["$defs"][option["$ref"].rpartition("/")[2]]
    return None


def bound(schema: Any) -> str:
    """Say in words what a value of a schema can be at most."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(bound(option) for option in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if "$ref" in schema:
        return "as above"
    match schema.get("type"):
        case "string":
            text = f"`{schema['pattern']}`" if "pattern" in schema else "text"
            return f"{text} ≤ {schema['maxLength']:,}" if "maxLength" in schema else text
        case "integer" | "number" as kind:
            low = [(s, schema[k]) for k, s in LOWEST.items() if k in schema]
            high = [(s, schema[k]) for k, s in LARGEST.items() if k in schema]
            if low and high:
                (left, least), (right, most) = low[0], high[0]
                ends = "[" if left == "≥" else "(", "]" if right == "≤" else ")"
                return f"{kind} {ends[0]}{least:g}, {most:g}{ends[1]}"
            return " ".join([kind, *(f"{sign} {value:g}" for sign, value in (*low, *high))])
        case "array":
            most = f"{schema['maxItems']:,} × " if "maxItems" in schema else "list of "
            return most + bound(schema.get("items") or schema.get("prefixItems", [{}])[0])
        case "boolean":
            return "boolean"
        case "null":
            return "none"
        case _:
            return "JSON"


def _vectors(known: Rows) -> Iterator[Row]:
    from fedpriv.protocol import Kind

    for kind in get_args(Kind):
        paid = known.of(kind)
        yield f"`{kind}`", known.about[kind], paid


def _arrivals(known: Rows) -> Iterator[Row]:
    for name, body in messages().items():
        if name in known.about["leaves"]:
            continue
        known.of(name)
        for field, schema in leaves_of(body.model_json_schema()):
            if field.startswith("proposal.") and name != "Proposal":
                continue  # the whole proposal, once more
            yield f"`{name}.{field}`", bound(schema)


# What leaves by HTTP


def _requests(known: Rows) -> Iterator[Row]:
    headers, fields = sent()
    for name in headers:
        yield f"`{name}:`", known.of(name)
    for name in fields:
        yield f"`{name}`", known.of(name)


def sent() -> tuple[list[str], list[str]]:
    """Return the names of headers and fields of all requests that a site's client makes."""
    import httpx
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
    from flwr.app.message.message import make_message
    from flwr.app.metadata import Metadata
    from flwr.proto import fleet_pb2, message_pb2
    from numpy import ones

    from fedpriv.pki.keys import new_key
    from fedpriv_client.fleet import FleetClient
    from fedpriv_client.flower import outgoing

    headers: dict[str, None] = {}
    fields: dict[str, None] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        headers.update(dict.fromkeys(request.headers))
        call = request.url.path.rpartition("/")[2]
        name = f"{call.title().replace('-', '')}Request"
        kind = getattr(fleet_pb2, name, None) or getattr(message_pb2, name, None)
        if kind is not None:
            fields.update(dict.fromkeys(_set(kind.FromString(request.content), name)))
        return httpx.Response(200, stream=httpx.ByteStream(b""))

    client = FleetClient("localhost:1", None, new_key())
    own = client._client.headers
    client._client = httpx.Client(transport=httpx.MockTransport(answer), headers=own)
    content = RecordDict({"fedpriv": ConfigRecord({"body": "x"})})
    metadata = Metadata(1, "a", 2, 3, "", "1", 4.0, 5.0, "query")
    asked = make_message(metadata=metadata, content=content)
    arrays = ArrayRecord({"000000": Array(ones(3))}, keep_input=False)
    with outgoing(Message(RecordDict({**content, "arrays": arrays}), reply_to=asked)) as reply:
        client.greet()
        client.activate()
        client.pull(3, ["a"])
        client.fetch(3, 1, "a")
        client.confirm(3, metadata)
        client.announce(3, reply)
        client.push(3, 1, "session", "a", b"content")
        client.deactivate(3)
    return list(headers), list(fields)


def _set(message: Any, name: str) -> Iterator[str]:
    """Give the path of each field that is set in a protobuf message."""
    for descriptor, value in message.ListFields():
        path = f"{name}.{descriptor.name}"
        if descriptor.message_type is None or descriptor.name == "content":
            yield path
            continue
        for one in value if not hasattr(value, "ListFields") else [value]:
            for found in _set(one, path):
                yield found.replace(f".{descriptor.name}.children.", f".{descriptor.name}.")


# Codes


def _errors(known: Rows) -> Iterator[Row]:
    from fedpriv import errors

    for name, kind in vars(errors).items():
        if (
            isinstance(kind, type)
            and issubclass(kind, errors.FedprivError)
            and "code" in vars(kind)
        ):
            known.shown[name] = kind.code
            yield f"`{kind.code}`", known.of(name)


def _exits(known: Rows) -> Iterator[Row]:
    from fedpriv import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {kind.exit_code for kind in kinds if issubclass(kind, errors.FedprivError)}
    for code in map(str, sorted({0, 1, 130, *codes})):
        paid = known.of(code)
        yield f"`{code}`", known.about[code], paid


# Files and lines


def _calls() -> Iterator[tuple[str, ast.Call]]:
    """Give every call in the site's own code, with the function that contains it."""
    for room, folder in ROOMS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            module = ".".join((room, *parts)).removesuffix(".__init__")
            yield from _calls_in(ast.parse(path.read_text(encoding="utf-8")), module)


def _calls_in(tree: ast.AST, where: str) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.iter_child_nodes(tree):
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if isinstance(node, ast.Call):
            yield where, node
        yield from _calls_in(node, f"{where}.{node.name}" if named else where)


def _writes(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    short = name.rpartition(".")[2]
    modes = [item.value for item in call.args if isinstance(item, ast.Constant)]
    modes += [item.value.value for item in call.keywords if isinstance(item.value, ast.Constant)]
    opened = short == "open" and any(
        isinstance(mode, str) and 0 < len(mode) < 4 and set(mode) & set("wax+") for mode in modes
    )
    return short in WRITES or name in OPENS or opened


def _files(known: Rows) -> Iterator[Row]:
    places = dict.fromkeys(place for place, call in _calls() if _writes(call))
    for place in places:
        if not place.startswith(HELPERS):
            paid = known.of(place)
            file, most = known.about[place]
            yield file, most, paid, known.test(place)


def _lines(known: Rows) -> Iterator[Row]:
    lines: dict[tuple[str, str], None] = {}
    for place, call in _calls():
        function = call.func
        if not (isinstance(function, ast.Attribute) and function.attr in LEVELS and call.args):
            continue
        if isinstance(function.value, ast.Name) and function.value.id in ("log", "logger"):
            text = call.args[0]
            said = text.value if isinstance(text, ast.Constant) else ast.unparse(text)
            lines[place, str(said)] = None
    for place, said in lines:
        yield f"“{said}” `{place}`", known.of(f"{place}: {said}")


def _figures(known: Rows) -> Iterator[Row]:
    from fedpriv_client.metrics import FIGURES

    for figure in FIGURES:
        yield f"`{figure.name}`", known.of(figure.name)


TESTED = ("test",)
TIMES = ("what", "depends on", "bound", *TESTED)
# For each section its title, the head of its table, and its rows. Without a head, it is a list.
SECTIONS: dict[str, Any] = {
    "fields": (
        "What a site says",
        ("field", "bound", "depends on"),
        lambda known: _together(_fields(known), _message),
    ),
    "vectors": ("The values beside it", ("kind", "bound", "depends on"), _vectors),
    "arrivals": (
        "What a site is told",
        ("field", "bound"),
        lambda known: _together(_arrivals(known)),
    ),
    "requests": ("What its requests say", (), _requests),
    "errors": ("Why it refuses", (), _errors),
    "exits": ("Exit codes", ("code", "when", "depends on"), _exits),
    "files": (
        "Files",
        ("file", "bound", "depends on", *TESTED),
        lambda known: _together(_files(known)),
    ),
    "lines": ("Lines of the log", (), _lines),
    "figures": ("Figures for Prometheus", (), _figures),
}


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), Path(__file__).name, __doc__))
