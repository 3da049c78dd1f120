"""Read the notes of an OMOP common data model one by one, from any database that SQLAlchemy reads.

Source: OMOP CDM 5.4, table NOTE, https://ohdsi.github.io/CommonDataModel/cdm54.html#note
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fedpriv.config.ehr import OmopSection
from fedpriv.data.dates import day_of
from fedpriv.data.formats import Row, text_or_bytes
from fedpriv.data.values import NOTHING, OddValueError, as_id
from fedpriv.errors import DataError, did_you_mean, without_passwords

if TYPE_CHECKING:
    from sqlalchemy import URL, ColumnClause, Connection, Engine, Select

ID, DATE = "note_id", "note_date"
CONCEPTS = "note_type_concept_id", "language_concept_id"
SQLITE_FILE = b"SQLite format 3\0"
AT_ONCE = 100  # notes that are in memory
PATIENCE = 10  # seconds until a server of PostgreSQL has to answer
DATES = (
    "Name a view that has YYYY-MM-DD there: 06/01/2015 is in June or in January, and a number has"
    " to be YYYYMMDD, or whole days or seconds since 1970."
)
EXTRA = "pip install 'fedpriv[omop]'"


def note_rows(section: OmopSection, wanted: Sequence[str]) -> Iterator[Row]:
    """Yield the notes that pass the section's filters, ordered by their ids.

    All show the table at one moment: they come from one query, and on PostgreSQL from one
    transaction that may only read. The order matters: of a person with many notes the first ones
    are used. Without an order, other people's notes could decide which ones those are. Each note is
    checked against the filters here, too, because databases compare in different ways: SQLite keeps
    dates as text or numbers, and puts every number before every text.

    Args:
        wanted: columns of the table, in small letters or as the table has them. If one is
            missing, a single row comes that has all columns of the table, without values.

    Raises:
        DataError: a library or driver is not installed; the database, the table, a column of a
            filter, or the password is not there; a date or a kind can't be told; or two notes have
            one id.

    Privacy:
        Reads private records, one by one. While it reads, a database's error text could quote a
        record, so only the error's class is shown. Before anything is read its text is shown,
        without the password.
    """
    try:
        import sqlalchemy
    except ModuleNotFoundError:
        raise DataError("needs SQLAlchemy, which is not installed", fix=f"{EXTRA}.") from None
    with _connected(section) as connection:
        try:
            named, known = _columns(connection, section)
            if not set(wanted) <= set(named):
                yield Row(dict.fromkeys(known), "the table")
                return
            names = tuple(dict.fromkeys((ID, *wanted, *_filters(section))))
            query = _query(section, {name: named[name] for name in names}, known)
            last: Any = ...
            for number, row in enumerate(connection.execute(query).yield_per(AT_ONCE), 1):
                if row[0] == last:
                    problem = f"note {number} has the {ID} of the one before"
                    fix = "Name a table or view that has each note once."
                    raise DataError(problem, value=section.table, fix=fix)
                last = row[0]
                found = Row(dict(zip(names, row, strict=True)), f"note {number}")
                if _passes(section, found):
                    yield found
        except sqlalchemy.exc.SQLAlchemyError as error:
            fix = "Check the connection, and that this user may select from the table."
            kind = type(getattr(error, "orig", None) or error).__name__
            raise DataError(f"the database could not be read ({kind})", fix=fix) from None


def _filters(section: OmopSection) -> dict[str, str]:
    """Return the columns that filters look at, each with the setting that asks for it."""
    asked = [name for name in (*CONCEPTS, "last_date", "first_date") if getattr(section, name)]
    return {DATE if name.endswith("_date") else name: name for name in asked}


def _passes(section: OmopSection, note: Row) -> bool:
    """Tell whether a note passes the filters. Refuse a note for which that can't be told."""
    for name, setting in _filters(section).items():
        value = note.values[name]
        try:
            if name == DATE:
                day = day_of(value)
                first, last = section.first_date or date.min, section.last_date or date.max
                keeps = day is not None and first <= day <= last
            else:
                keeps = int(as_id(value)) in getattr(section, name)
        except ValueError as error:
            if isinstance(error, OddValueError) and error.rule is NOTHING:
                return False
            problem = f"{note.place} has a {name} that can be read in several ways, or in none"
            fix = DATES if name == DATE else "Name a view that has whole numbers there."
            raise DataError(problem, key=f".{setting}", fix=fix) from None
        if not keeps:
            return False
    return True


def _query(section: OmopSection, named: Mapping[str, str], known: Mapping[str, Any]) -> Select[Any]:
    """Select the notes in their order, without those that a filter is sure to leave out.

    The database compares only columns that it knows to be dates or whole numbers.
    """
    from sqlalchemy import Date, DateTime, Integer, column, select, table

    held: dict[str, ColumnClause[Any]] = {name: column(own) for name, own in named.items()}
    source = table(section.table, *held.values(), schema=section.cdm_schema)
    query = select(source).order_by(held[ID])
    for name in CONCEPTS:
        if (kept := getattr(section, name)) and isinstance(known[named[name]], Integer):
            query = query.where(held[name].in_(kept))
    if DATE not in held or not isinstance(known[named[DATE]], Date | DateTime):
        return query
    if section.first_date is not None:
        query = query.where(held[DATE] >= section.first_date)
    if section.last_date is not None:  # some dates hold a time of day
        query = query.where(held[DATE] < section.last_date + timedelta(days=1))
    return query


def _columns(
    connection: Connection, section: OmopSection
) -> tuple[Mapping[str, str], Mapping[str, Any]]:
    """Return the table's columns by every name that they may be asked for, and their types.

    A database that keeps names in capitals has NOTE_ID for note_id. The types of SQLite are not
    known: any column may hold anything.
    """
    from sqlalchemy import inspect

    look, schema = inspect(connection), section.cdm_schema
    if not look.has_table(section.table, schema=schema):
        tables = [*look.get_table_names(schema), *look.get_view_names(schema)]
        there = ", ".join(sorted(tables)[:20]) or "none that this user may see"
        raise DataError(
            "no such table in the database",
            key=".table",
            value=section.table if schema is None else f"{schema}.{section.table}",
            fix=did_you_mean(section.table, tables) or f"Its tables are {there}.",
        )
    typed = connection.dialect.name != "sqlite"
    known = {
        str(one["name"]): one["type"] if typed else None
        for one in look.get_columns(section.table, schema=schema)
    }
    named = {name.lower(): name for name in known} | {name: name for name in known}
    needed = {ID: "table", **_filters(section)}
    for name, setting in needed.items():
        if name not in named:
            problem = f"needs the column {name}, which the table does not have"
            fix = f"Its columns are {', '.join(known)}."
            raise DataError(problem, key=f".{setting}", value=section.table, fix=fix)
    return named, known


@contextmanager
def _connected(section: OmopSection) -> Iterator[Connection]:
    """Open a connection that only reads, and streams."""
    from sqlalchemy.exc import SQLAlchemyError

    url, password = _url(section)
    engine = _engine(url)
    try:
        try:
            connection = engine.connect()
        except (SQLAlchemyError, OSError) as error:
            said = str(getattr(error, "orig", error)).strip().partition("\n")[0]
            said = said.replace(password, "***") if password else said
            problem = f"can't be connected to: {without_passwords(said).rstrip('.')}"
            fix = "Check the address, the user and the password, and that the server runs."
            raise DataError(problem, key=".url", fix=fix) from None
        with connection:
            if section.file is not None:  # what is not UTF-8 is refused with its note's number
                driver: Any = connection.connection.driver_connection
                driver.text_factory = text_or_bytes
            options: dict[str, Any] = {"stream_results": True}
            if url.get_backend_name() == "postgresql":
                options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
            yield connection.execution_options(**options)
    finally:
        engine.dispose()


def _url(section: OmopSection) -> tuple[URL, str]:
    """Return the URL for SQLAlchemy, with the password in it, and the password."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(section.url)
    except (ArgumentError, ValueError):  # their text holds the URL
        fix = "Expected dialect+driver://user@host/database, or sqlite:///file."
        raise DataError("is no URL of a database", key=".url", fix=fix) from None
    file = section.file
    if file is not None:
        if not file.is_file():
            raise DataError("no such file", file=file, key=".url", fix="Check the path.")
        with file.open("rb") as content:
            start = content.read(len(SQLITE_FILE))
        if start not in (b"", SQLITE_FILE):
            fix = "Name the database's own file, or a copy that was made whole."
            problem = "is no SQLite database, or is encrypted"
            raise DataError(problem, file=file, key=".url", fix=fix)
        return url.set(database=f"file:{quote(str(file))}", query={"mode": "ro", "uri": "true"}), ""
    name = section.password_env
    if name is None:  # the server may know its user another way
        return url, ""
    password = os.environ.get(name)
    if not password:
        problem = "no such environment variable, or it is empty"
        fix = "Set it to the password of the database user before the program starts."
        raise DataError(problem, key=".password_env", value=name, fix=fix)
    return url.set(password=password), password


def _engine(url: URL) -> Engine:
    from sqlalchemy import create_engine
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    from sqlalchemy.pool import NullPool

    waits = {}
    if url.get_backend_name() == "postgresql" and "connect_timeout" not in url.query:
        waits["connect_timeout"] = PATIENCE
    try:
        return create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args=waits)
    except ModuleNotFoundError as error:
        driver = (error.name or "").partition(".")[0]
        problem = f"needs the driver {driver}, which is not installed"
        fix = f"{EXTRA}." if driver == "psycopg" else f"Install the package of {driver}."
    except (NoSuchModuleError, ArgumentError):
        problem = "names a kind of database that SQLAlchemy does not know"
        known = "postgresql+psycopg, mssql+pyodbc or sqlite"
        fix = f"Such as {known}; some need a package of their own."
    raise DataError(problem, key=".url", value=url.drivername, fix=fix)
