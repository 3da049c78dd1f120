"""A function is found by its name wherever it stands, and changed however it is written."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.mutations.change import Change
from tests.mutations.definitions import ChangeError, definitions, find, mentions
from tests.mutations.table import Sabotage, read_table

ROOT = Path(__file__).parents[2]
SOURCE = '''
    """A module."""

    import log

    NAMES = ("a", "b")  # a constant


    def pay(ledger, plan):
        """Pay.

            In full.
        """
        if not plan:
            return None
        spread = deviation(plan.noise,  # a comment
                           plan.clip)
        log.info('paid')
        for slot in plan:
            ledger.append("paid", slot)
        return spread


    class Ledger:
        @property
        @cached
        def head(self):
            text = f"{self.name} is at {self.rows[-1]}"
            self.rows = self.rows or []
            return text

        async def send(self):
            def inner():
                return 1
            return inner()
'''


def changed(function: str, tmp_path: Path, **kind: Any) -> str:
    """The whole text, after a change in a project of one file."""
    path = tmp_path / "client" / "us" / "pay.py"
    path.parent.mkdir(parents=True)
    path.write_text(dedent(SOURCE))
    return Change(**kind).apply(find(tmp_path, function))


@pytest.mark.parametrize(
    ("function", "kind", "old", "new"),
    [
        ("pay", {"replace": "plan.noise", "by": "plan.noise / 2"}, "plan.noise", "plan.noise / 2"),
        ("pay", {"replace": "deviation( plan.noise,\n plan.clip )", "by": "1"}, None, "spread = 1"),
        ("pay", {"replace": 'log.info("paid")', "by": "raise"}, "log.info('paid')", "raise"),
        ("pay", {"replace": "return spread", "by": ""}, "    return spread\n", ""),
        ("pay", {"skip": "info"}, "    log.info('paid')\n", ""),
        ("pay", {"skip": "log.info"}, "    log.info('paid')\n", ""),
        ("pay", {"skip": "ledger.append"}, 'ledger.append("paid", slot)', "pass"),
        ("pay", {"first": "return 0"}, "    if not plan", "    return 0\n    if not plan"),
        ("Ledger.head", {"replace": "self.name", "by": "self"}, "{self.name}", "{self}"),
        ("Ledger.head", {"replace": "self.rows", "by": "x", "all": True}, "self.rows", "x"),
        ("Ledger.send", {"replace": "1", "by": "2"}, "return 1", "return 2"),
        ("Ledger.send", {"first": "await x"}, "send(self):\n", "send(self):\n        await x\n"),
        ("Ledger.send.inner", {"first": "x = 2"}, "return 1", "x = 2\n            return 1"),
        ("Ledger", {"replace": "cached", "by": "kept"}, "@cached", "@kept"),
        ("NAMES", {"replace": "'b'", "by": "'c'"}, '"b"', '"c"'),
    ],
)
def test_only_what_is_named_changes(
    tmp_path: Path, function: str, kind: dict[str, Any], old: str | None, new: str
) -> None:
    text = changed(function, tmp_path, **kind)
    source = dedent(SOURCE)
    if old is None:  # written over two lines
        start, end = source.index("spread ="), source.index("    log.info")
        old = source[start:end].rstrip()

    expected = source.replace(old, new, -1 if kind.get("all") else 1)
    assert expected != source
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(expected))


def test_the_rest_of_the_file_stays_as_it_is(tmp_path: Path) -> None:
    text = changed("pay", tmp_path, replace="plan.noise", by="0")
    before, after = dedent(SOURCE).split("def pay")[0], dedent(SOURCE).split("return spread\n")[1]
    assert text.startswith(before) and text.endswith(after)
    assert "# a constant" in text and "# a comment" not in text


@pytest.mark.parametrize(
    ("function", "kind", "said"),
    [
        ("pay", {"replace": "plan.rate", "by": "1"}, "Not there: what is to be replaced"),
        ("pay", {"replace": "x = 1", "by": ""}, "Not there: what is to be replaced"),
        ("pay", {"replace": "slot", "by": "1"}, "There 2 times"),
        ("pay", {"replace": "plan.clip", "by": "plan.clip"}, "changes nothing"),
        ("pay", {"replace": "", "by": "x"}, "replace is empty"),
        ("pay", {"replace": "plan.clip"}, "replace and by together"),
        ("pay", {"by": "plan.clip"}, "one of replace"),
        ("pay", {}, "one of replace"),
        ("pay", {"skip": "append", "first": "return 1"}, "one of replace"),
        ("pay", {"skip": "deviation"}, "Not there: a call of deviation"),
        ("pay", {"skip": "fo"}, "Not there: a call of fo"),
        ("pay", {"first": ""}, "changes nothing"),
        ("pay", {"replace": "if", "by": "1"}, "Not Python"),
        ("Ledger", {"first": "x = 1"}, "Only a function"),
    ],
)
def test_what_does_not_apply_shows_the_function(
    tmp_path: Path, function: str, kind: dict[str, Any], said: str
) -> None:
    with pytest.raises(ChangeError, match=said) as caught:
        changed(function, tmp_path, **kind)
    assert "pay.py:" in str(caught.value)
    assert ("def pay(ledger, plan):" if function == "pay" else "class Ledger:") in str(caught.value)


@pytest.fixture
def two_files(tmp_path: Path) -> Path:
    """A project with two modules that define the same names."""
    for path, text in {
        "client/us/rounds.py": "def step(x):\n    return x + 1\n",
        "fedpriv/rounds.py": "def other(x):\n    step = 1\n    return [x]\n",
        "fedpriv/steps/__init__.py": "if x:\n    def step(x):\n        return x + 1\n",
        "tests/test_x.py": "def step(x):\n    return x\n",
        "fedpriv/store.py": (
            "from typing import overload\n"
            "class Store:\n    step = 1\n"
            "    @overload\n    def get(self, x: int) -> int: ...\n"
            "    @overload\n    def get(self, x: str) -> str: ...\n"
            "    def get(self, x): return x\n"
        ),
    }.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def test_a_module_tells_definitions_of_one_name_apart(two_files: Path) -> None:
    assert find(two_files, "step", "rounds").module == "us.rounds"
    assert find(two_files, "step", "fedpriv.steps").module == "fedpriv.steps"
    assert find(two_files, "Store.get").node.lineno == 8
    with pytest.raises(ChangeError, match=r"2 definitions .* step: .*us\.rounds.*Add .* module = "):
        find(two_files, "step")
    with pytest.raises(ChangeError, match=r"Nothing is called step in a module ounds\."):
        find(two_files, "step", "ounds")


def test_a_missing_name_is_told_with_what_may_be_meant(two_files: Path) -> None:
    with pytest.raises(ChangeError, match=r"Nothing is called Shop\.get.*Store\.get \(fedpriv\."):
        find(two_files, "Shop.get")
    with pytest.raises(ChangeError, match=r"ends in inner: nothing\."):
        find(two_files, "other.inner")


def row(**changes: Any) -> Sabotage:
    return Sabotage.of(
        **{"law": "1", "what": "a slip", "caught_by": "tests/test_x.py::test_x", **changes}
    )


def test_a_row_changes_one_file_wherever_it_is(two_files: Path) -> None:
    sabotage = row(function="other", replace="[x]", by="x")
    definition, text = sabotage.applied(two_files)
    assert definition.path == two_files / "fedpriv/rounds.py"
    assert text == "def other(x):\n    step = 1\n    return x\n"


@pytest.mark.parametrize("function", ["other", "gone"])
def test_a_row_that_does_not_apply_says_where_its_code_is(two_files: Path, function: str) -> None:
    with pytest.raises(ChangeError) as caught:
        row(function=function, replace="x+1", by="x").applied(two_files)
    text = str(caught.value)
    assert "'a slip'" in text and f"function {function}" in text
    assert text.endswith("Where `x + 1` is: step (fedpriv.steps), step (us.rounds).")


def test_a_row_with_a_key_too_many_or_too_few_is_named() -> None:
    table = '[[sabotage]]\nlaw = "1"\nwhat = "a slip"\nold = "x"\n'
    with pytest.raises(ChangeError, match=r"the row 'a slip': .*caught_by"):
        read_table(table)
    table += 'caught_by = "t"\nfunction = "f"\n'
    with pytest.raises(ChangeError, match=r"the row 'a slip': .*old"):
        read_table(table)


def test_mentions_are_of_the_innermost_definition(two_files: Path) -> None:
    assert [str(found) for found in mentions(two_files, "return x")] == [
        "step (fedpriv.steps)",
        "step (us.rounds)",
        "Store.get (fedpriv.store)",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_our_functions_are_the_same_when_written_anew(number: int) -> None:
    """Whatever they are made of: every function in a sixteenth of our files."""
    ours = [one for same in definitions(ROOT).values() for one in same]
    paths = sorted({one.path for one in ours})[number::32]
    for one in (one for one in ours if one.path in paths):
        tree = ast.dump(ast.parse(one.path.read_text(encoding="utf-8")))
        assert ast.dump(ast.parse(one.source_with(one.node))) == tree, one
