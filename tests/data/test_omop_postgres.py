"""The same notes from a real PostgreSQL server, which the test starts for itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fedpriv.config.ehr import OmopSection
from fedpriv.data import omop
from fedpriv.data.read import read_records
from fedpriv.errors import DataError
from tests.data import postgres_server
from tests.data.omop_notes import COLUMNS, GERMAN, NOTES, fill, note
from tests.data.postgres_server import PASSWORD, Server

reason = postgres_server.missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(reason is not None, reason=reason or "")]
READER = "reader"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgres_server.running() as started:
        yield started


@pytest.fixture
def owner(server: Server) -> Iterator[sa.Engine]:
    """Who may change the database; the schema `cdm` is empty, and `reader` may read it."""
    engine = sa.create_engine(server.url(password=PASSWORD), poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA IF EXISTS cdm CASCADE")
        connection.exec_driver_sql(f"DROP ROLE IF EXISTS {READER}")
        connection.exec_driver_sql("CREATE SCHEMA cdm")
        connection.exec_driver_sql(f"CREATE ROLE {READER} LOGIN PASSWORD 'read only'")
        connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA cdm TO {READER}")
        connection.exec_driver_sql(
            f"ALTER DEFAULT PRIVILEGES IN SCHEMA cdm GRANT SELECT ON TABLES TO {READER}"
        )
    yield engine
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA cdm CASCADE")
        connection.exec_driver_sql(f"DROP OWNED BY {READER} CASCADE")
    engine.dispose()


@pytest.fixture
def section(server: Server, monkeypatch: pytest.MonkeyPatch) -> OmopSection:
    monkeypatch.setenv("FEDPRIV_TEST_PASSWORD", "read only")
    return OmopSection(
        url=server.url(user=READER), password_env="FEDPRIV_TEST_PASSWORD", cdm_schema="cdm"
    )


def read(section: OmopSection, tmp_path: Path, **changed: Any) -> Any:
    wanted = section.model_copy(update=changed)
    return read_records(
        wanted, COLUMNS, unit="person_id", cache_dir=tmp_path / "cache", key="data.path"
    )


def test_notes_and_filters(owner: sa.Engine, section: OmopSection, tmp_path: Path) -> None:
    fill(owner, NOTES, schema="cdm")
    records = read(section, tmp_path)
    assert records["text"][:] == ["first, café", "second", "third"]
    assert records["unit"][:] == ["7", "8", "7"]
    assert read(section, tmp_path, language_concept_id=(GERMAN,))["text"][:] == ["third"]
    days = {"first_date": date(2020, 1, 1), "last_date": date(2021, 6, 29)}
    assert read(section, tmp_path, **days)["text"][:] == ["second"]


def test_all_notes_are_of_one_moment_and_only_read(owner: sa.Engine, section: OmopSection) -> None:
    """Whoever writes meanwhile is neither seen nor kept waiting."""
    count = 5 * omop.AT_ONCE
    table = fill(owner, [note(i, i, "before") for i in range(count)], schema="cdm")
    rows = omop.note_rows(section, ("note_text", "person_id"))
    found = [next(rows).values["note_text"]]
    with owner.begin() as writing:
        writing.execute(table.update().values(note_text="after"))
        writing.execute(table.insert(), note(count, 1, "new"))
        writing.execute(table.delete().where(table.c.note_id > count - 10))
    assert {*found, *(row.values["note_text"] for row in rows)} == {"before"}
    again = omop.note_rows(section, ("note_text",))
    assert {row.values["note_text"] for row in again} == {"after"}
    with omop._connected(section) as connection:
        shown = connection.exec_driver_sql(
            "SELECT current_setting('transaction_read_only')"
        ).scalar()
    assert shown == "on"


def test_a_server_streams_and_does_not_send_all_at_once(
    owner: sa.Engine, section: OmopSection
) -> None:
    """A query that fails at its last note has given the notes before: nothing waits for the end."""
    count = 20 * omop.AT_ONCE
    fill(owner, [note(i, i, "7" if i < count else "no number") for i in range(1, count + 1)],
         schema="cdm")  # fmt: skip
    with owner.begin() as connection:
        connection.exec_driver_sql(
            "CREATE VIEW cdm.failing AS SELECT note_id, person_id, note_text::int AS note_text"
            " FROM cdm.note"
        )
    failing = section.model_copy(update={"table": "failing"})
    rows, read_before = omop.note_rows(failing, ("note_text",)), 0
    with pytest.raises(
        DataError, match=r"could not be read \(InvalidTextRepresentation\)"
    ) as caught:
        for _ in rows:
            read_before += 1
    assert read_before >= count - 2 * omop.AT_ONCE
    error: BaseException | None = caught.value
    assert "no number" not in str(error)  # though the database says it


def test_what_the_server_says_reaches_the_administrator_without_the_password(
    owner: sa.Engine, section: OmopSection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"omop.table: no such table .*'cdm.note'.* none that"):
        read(section, tmp_path)
    fill(owner, NOTES, schema="cdm")
    with owner.begin() as connection:
        connection.exec_driver_sql(f"REVOKE SELECT ON cdm.note FROM {READER}")
    with pytest.raises(DataError, match=r"could not be read \(InsufficientPrivilege\)"):
        read(section, tmp_path)
    monkeypatch.setenv("FEDPRIV_TEST_PASSWORD", "wrong one")
    with pytest.raises(
        DataError, match=r"can't be connected to: .*password authentication"
    ) as caught:
        read(section, tmp_path)
    assert "wrong one" not in str(caught.value)
