"""What is not the same on another machine is named; tests/simulation/test_cluster.py has real ones.

The other machine is a moment in which the files are otherwise.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError
from fedpriv_simulation import node_checks
from fedpriv_simulation.cluster import Node
from fedpriv_simulation.node_checks import check_nodes

Make = Callable[..., Any]
Otherwise = Callable[[Any], None]
NODE = Node("a1", "ward (10.0.0.2, a1)", cpus=1, gpus=0)


def asked(otherwise: Otherwise, places: Any) -> Any:
    """A cluster of one node, which looks while a copy of the files is otherwise."""

    def ask_each(function: Callable[..., Any], *given: Any, within: float) -> Iterator[Any]:
        kept = places.folder.with_name("kept")
        shutil.copytree(places.folder, kept, copy_function=shutil.copy2)
        otherwise(places)
        try:
            yield NODE, function(*given)
        finally:
            shutil.copytree(kept, places.folder, dirs_exist_ok=True)
            shutil.rmtree(kept)

    return SimpleNamespace(ask_each=ask_each)


@pytest.fixture
def places(federation: Make, model_folder: Make, tmp_path: Path) -> Any:
    """A federation file with a model beside it, and where its parts are."""
    file: Path = federation()
    folder = tmp_path / "shared"
    shutil.copytree(file.parent, folder)
    shutil.copytree(model_folder("llama"), folder / "model")
    run = tmp_path / "run"
    run.mkdir()
    job = load_job(folder / file.name, [f"model.name={folder / 'model'}"])
    other = model_folder("gpt2")
    return SimpleNamespace(folder=folder, run=run, config=job, other=other)


def check(places: Any, otherwise: Otherwise) -> None:
    check_nodes(asked(otherwise, places), places.config, places.run)


def with_another_base(places: Any) -> None:
    shutil.rmtree(places.folder / "model")
    shutil.copytree(places.other, places.folder / "model")


def without_records(places: Any) -> None:
    (places.folder / "site-0.jsonl").unlink()


def with_other_records(places: Any) -> None:
    (places.folder / "site-1.jsonl").write_text('{"note": "another"}\n')


def as_it_is(_: Any) -> None:
    pass


DIFFERENT: dict[Otherwise, tuple[str, str]] = {
    with_another_base: ("model.name", "has model.name sha256:"),
    without_records: ("sites.site-0.data", "has sites.site-0.data missing"),
    with_other_records: ("sites.site-1.data", "has sites.site-1.data "),
}


@pytest.mark.parametrize("otherwise", DIFFERENT, ids=lambda function: function.__name__)
def test_what_is_different_on_a_node_is_named(places: Any, otherwise: Otherwise) -> None:
    key, words = DIFFERENT[otherwise]
    with pytest.raises(ConfigError) as caught:
        check(places, otherwise)
    assert caught.value.key == key
    assert f"node {NODE.name}" in str(caught.value)
    assert words in str(caught.value)
    assert not list(places.run.rglob("seen-*"))


def test_a_node_that_is_the_same_is_taken(places: Any) -> None:
    check(places, as_it_is)
    assert not list(places.run.rglob("seen-*"))


def test_a_ledger_that_is_not_there_is_never_to_be_copied(places: Any) -> None:
    first, *others = places.config.sites
    ledger = places.folder / "ledger.db"
    ledger.write_text("a ledger")
    sites = (first.model_copy(update={"ledger": ledger}), *others)
    places.config = places.config.model_copy(update={"sites": sites})
    with pytest.raises(ConfigError, match="Never copy a ledger") as caught:
        check(places, lambda _: ledger.unlink())
    assert caught.value.key == f"sites.{first.name}.ledger"


@pytest.mark.parametrize(
    ("answer", "key", "words"),
    [
        ({"--out": "can't be used: Read-only file system"}, "--out", "in which the user"),
        ({"source of fedpriv": "0" * 64}, "job.ray_address", "source of fedpriv 0000"),
        ({"torch": "1.0"}, "job.ray_address", "has torch 1.0 (here "),
    ],
)
def test_what_a_node_answers_is_told(
    places: Any, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], key: str, words: str
) -> None:
    look = node_checks.look

    found = []

    def other(*asked: Any) -> dict[str, str | None]:
        found.append(look(*asked))
        return found[-1] if len(found) == 1 else found[-1] | answer  # the driver looks first

    monkeypatch.setattr(node_checks, "look", other)
    with pytest.raises(ConfigError) as caught:
        check(places, as_it_is)
    assert caught.value.key == key
    assert words in str(caught.value)
