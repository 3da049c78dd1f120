"""A disk that is really full: what a server hears is what it hears from a site with space."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv.privacy.ledger.chain import Chain
from fedpriv.privacy.ledger.rules import SumRule
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.protocol import Handover, ReportRequest, StepRequest, values_digest
from fedpriv_client import disk_space, held_space
from fedpriv_client.app import client_app
from fedpriv_client.disk_space import FILES, REPLIES, ROWS, files_taken
from fedpriv_client.held_space import LARGEST, HeldSpace, full_disk, write_beside
from fedpriv_client.proposals import kept_proposals
from fedpriv_client.site import Site
from fedpriv_simulation.inline import InlineGrid
from fedpriv_strategies.messages import ADAPTER, QUERY, TRAIN, as_arrays, message
from tests.client.client_setting import TERMS, Setting, request

Make = Callable[..., Any]
REAL = dataclasses.replace(TERMS, simulated=False, rule=SumRule(1e-4), budget=20.0)
SERVER = "fed.example.org:8443"
ROUNDS = 3


@pytest.fixture
def setting(tmp_path: Path, model_folder: Make) -> Setting:
    return Setting(tmp_path, model_folder("llama"))


@contextmanager
def filled(folder: Path) -> Iterator[Callable[[], None]]:
    """A disk without a single block that is free; yields what fills it again."""
    filler = folder / "filler"

    def fill() -> None:
        with filler.open("ab", buffering=0) as stream, suppress(OSError):
            while stream.write(bytes(4096)):
                pass

    fill()
    assert shutil.disk_usage(folder).free == 0
    try:
        yield fill
    finally:
        filler.unlink()


def said(site: Site, body: Any, kind: str, vector: Any = None) -> str:
    """The body of an answer, without the hash of rows that hold a digest of noise."""
    with InlineGrid({2: client_app(site)}, 1) as grid:
        arrays = None if vector is None else as_arrays(public(vector))
        [reply] = grid.send_and_receive([message(body, 2, kind, "1", arrays)], timeout=60)
    assert not reply.has_error()
    return re.sub("[0-9a-f]{64,}", "", reply.content["fedpriv"]["body"])


def everything(
    setting: Setting, site: Site, meanwhile: Callable[[], None] = lambda: None
) -> list[str]:
    """What a site says to a job from its proposal to its handover, and to another one."""
    job, vector = setting.proposal, setting.vector
    asked: list[tuple[Any, ...]] = [(job, QUERY)]
    for slot in range(ROUNDS):
        asked.append((request(slot), TRAIN, vector))
        asked.append((ReportRequest(job_id="job-1"), f"{QUERY}.report"))
    handed = Handover(proposal=job, values_digest=values_digest(np.ones_like(vector)))
    asked.append((handed, ADAPTER, np.ones_like(vector)))
    asked.append((setting.change(job_id="job-2", seed=1), QUERY))
    asked.append((StepRequest(job_id="job-2", slot=0), TRAIN, vector))
    heard = []
    for one in asked:
        heard.append(said(site, *one))
        meanwhile()
    return heard


@pytest.mark.slow
@pytest.mark.parametrize("witness", [False, True])
def test_a_full_disk_changes_no_answer(setting: Setting, small_disk: Path, witness: bool) -> None:
    """Whatever is free is taken, before each message, and steps are paid for as before."""
    setting.folder, path = small_disk, small_disk / "witness" if witness else None

    def opened() -> Site:
        return setting.site(terms=REAL, server=SERVER, witness=path, max_trainable=10**4)

    site = opened()
    expected = everything(setting, site)
    site.close()
    shutil.rmtree(small_disk / "state")
    if path:
        path.unlink()
    site = opened()
    with filled(small_disk) as fill:
        assert everything(setting, site, meanwhile=fill) == expected
        space = site._growth.space
        assert space.held >= space._most - space._grown() - 4096  # nobody took any of it
        kept = {kept.job for kept in kept_proposals(site.settings.state_dir)}
        assert kept == {"job-1", "job-2"}
        report = json.loads(site.settings.report.read_text())
        assert report["ledger_rows"] == site.ledger.head.rows
    assert '"refused"' not in "".join(expected)
    site.close()


def test_a_full_disk_is_named_with_what_is_free(small_disk: Path) -> None:
    assert full_disk(small_disk) == ""
    with filled(small_disk):
        assert full_disk(small_disk).startswith(
            f"{small_disk}: the disk is full (0 bytes are free)"
        )


def test_what_is_held_is_allocated_and_given_where_it_is_needed(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the ledger for each reply, and to what is kept for people."""
    site = setting.site(terms=REAL, server=SERVER, max_trainable=10**4)
    ledger, files = site._growth.space, site.files
    start = held(ledger)
    assert start >= ROWS + REPLIES * 4 * 10**4
    assert held(files) >= FILES
    seen = []

    def noted(owner: Any, name: str, space: HeldSpace) -> None:
        real = getattr(owner, name)

        def work(*args: Any, **options: Any) -> Any:
            seen.append((name, held(space)))
            return real(*args, **options)

        monkeypatch.setattr(owner, name, work)

    noted(Chain, "put_reply", ledger)
    noted(held_space, "write_atomic", files)
    everything(setting, site)
    assert len(seen) == ROUNDS + 1 + 3 * (2 * ROUNDS + 1) + 2  # replies, reports, proposals
    assert all(left < start - (1 << 20) for name, left in seen if name == "put_reply")
    assert all(left < FILES for name, left in seen if name == "write_atomic")
    rows = site.ledger.path.stat().st_size
    assert start - rows < held(ledger) <= start
    assert held(files) == FILES - files_taken(site.settings)
    site.close()


def held(space: HeldSpace) -> int:
    """Bytes that the disk has allocated."""
    return 512 * os.fstat(space._file.fileno()).st_blocks


def test_held_space_is_given_for_as_long_as_somebody_writes(small_disk: Path) -> None:
    file = small_disk / "grows"
    space = HeldSpace(small_disk, 1 << 20, lambda: file.stat().st_size if file.exists() else 0)
    with filled(small_disk):
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            file.write_bytes(bytes(1 << 16))
        with space.given(1 << 16):
            file.write_bytes(bytes(1 << 16))
        with space.given(4096), suppress(OSError):
            (small_disk / "other").write_bytes(bytes(1 << 16))
        (small_disk / "other").unlink()
        with space.given(1 << 20), file.open("ab") as stream:
            stream.write(bytes((1 << 20) - (1 << 17)))
    free = shutil.disk_usage(small_disk).free
    space.close()
    left = shutil.disk_usage(small_disk).free - free
    assert 0 < left <= 1 << 16
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        HeldSpace(small_disk, 1 << 30, lambda: 0)


def test_what_a_server_had_a_site_write_decides_nothing_of_its_next_start(
    setting: Setting,
) -> None:
    """Or it would learn from a start that failed how much of the disk the records take."""
    site = setting.site(terms=REAL, server=SERVER, max_trainable=10**4)
    settings = site.settings
    before = disk_space.disk_space_needed(settings, 24)[1]
    for seed in range(9):
        said(site, setting.change(job_id=f"job-{seed}", seed=seed), QUERY)
    taken = files_taken(settings)
    assert taken >= 9 * 4096
    assert disk_space.disk_space_needed(settings, 24)[1] == before - taken
    assert taken < FILES
    site.close()


def test_no_file_beside_an_answer_is_larger_than_what_is_held_for_it(tmp_path: Path) -> None:
    write_beside(tmp_path / "small", "x" * LARGEST)
    with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
        write_beside(tmp_path / "large", "x" * (LARGEST + 1))
    assert [path.name for path in tmp_path.iterdir()] == ["small"]
