"""Where entries are kept: a SQLite file by default, PostgreSQL for teams. The same few statements run on both."""

import contextlib
import datetime
import os
import pathlib
import sqlite3
import threading
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

COLUMNS = (
    "id, at, kind, who, population, run, stage, release, query, body, signer, signature, hash"  # the order of a Row
)
_TABLE = """create table entries (
    id bigint primary key not null,
    at text not null,
    kind text not null,
    who text not null,
    population text not null,
    run text not null,
    stage text not null,
    release bigint not null,
    query text not null,
    body text not null,
    signer text not null,
    signature text not null,
    hash text not null
)"""
_INDEXES = (
    "create unique index one_reservation on entries (run, stage) where kind = 'reserve'",
    "create unique index one_release on entries (run, stage, release, query) where kind = 'release'",
    "create unique index one_close on entries (run) where kind = 'close'",
    "create index by_kind on entries (kind, population)",
)
_ABOUT = "create table about (version bigint not null, entries bigint not null, head text not null)"
_BEGIN = "insert into about (version, entries, head) values (?, 0, '')"
VERSION = 2
_SQLITE_ERRORS = sqlite3.Error, UnicodeDecodeError  # the words of an error may quote damaged bytes
Row = tuple[Any, ...]


class LedgerError(OSError):
    """The ledger cannot be read or written just now."""


class Storage(Protocol):
    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """All or nothing, and nobody else writes meanwhile. On disk when it returns."""

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]: ...

    def now(self) -> datetime.datetime:
        """By the clock that all who write share."""

    def close(self) -> None: ...


def opened(address: str | pathlib.Path | None) -> Storage:
    """A path, a postgresql:// address, or memory when neither is given."""
    text = str(address) if address is not None else ""
    if address is not None and not text:
        raise ValueError("Expected the address of a ledger: a file, or postgresql://…; it is empty.")
    return Postgres(text) if is_remote(text) else Sqlite(pathlib.Path(text) if text else None)


def is_remote(address: str) -> bool:
    return address.startswith(("postgresql://", "postgres://"))


class Sqlite:
    def __init__(self, path: pathlib.Path | None) -> None:
        self._where = str(path) if path else "memory"
        self._one_at_a_time = threading.Lock()  # threads share the connection
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.exists() and not os.access(path, os.W_OK):
                    raise PermissionError("it is read-only")
            self._db = sqlite3.connect(path or ":memory:", isolation_level=None, timeout=30, check_same_thread=False)
            tables = {name for (name,) in self._db.execute("select name from sqlite_master where type = 'table'")}
            if tables and "about" not in tables:
                raise sqlite3.DatabaseError("the file holds other tables")
            self._patiently("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = full")
        except (*_SQLITE_ERRORS, OSError) as error:
            raise self._unusable(error) from None
        _prepare(self, "select 1 from sqlite_master where name = 'about'", self._guards())

    def _unusable(self, error: Exception) -> LedgerError:
        return LedgerError(f"Expected a writable ledger at {self._where}: {error}. Nothing was booked.")

    @staticmethod
    def _guards() -> Iterator[str]:
        for verb in ("update", "delete"):
            yield (f"create trigger no_{verb} before {verb} on entries begin select raise(abort, 'append-only'); end")

    def _patiently(self, statement: str, seconds: float = 30.0) -> None:
        """SQLite's own patience does not cover a change of the journal's mode while others open the file."""
        give_up = time.monotonic() + seconds
        while True:
            try:
                self._db.execute(statement)
                return
            except sqlite3.OperationalError as error:
                busy = (error.sqlite_errorcode & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
                if not busy or time.monotonic() > give_up:
                    raise
                time.sleep(0.02)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with self._one_at_a_time:
            try:
                self._db.execute("begin immediate")
                yield
                self._db.execute("commit")
            except _SQLITE_ERRORS as error:
                raise self._unusable(error) from None
            finally:
                if self._db.in_transaction:  # a full disk may have rolled back already
                    self._db.execute("rollback")

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        try:
            return self._db.execute(statement, tuple(values)).fetchall()
        except _SQLITE_ERRORS as error:
            raise self._unusable(error) from None

    def now(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC)

    def close(self) -> None:
        self._db.close()


class Postgres:
    """Needs the extra `fedlens[postgres]`. Writers queue at one advisory lock, as they do at SQLite's file."""

    _LOCK = 0x_FED_1E45

    def __init__(self, address: str) -> None:
        try:
            import psycopg
        except ImportError:
            raise ValueError("Expected psycopg for a PostgreSQL ledger: pip install 'fedlens[postgres]'.") from None
        parts = urllib.parse.urlsplit(address)
        if parts.password or "password" in parts.query.lower():
            raise ValueError("Expected no password in the ledger's address: use PGPASSWORD or a password file.")
        self._error, self._one_at_a_time = psycopg.Error, threading.Lock()
        try:
            self._db = psycopg.connect(address, autocommit=True, connect_timeout=10, client_encoding="utf8")
            # Whatever the server has by default: what is booked is on disk, and seen by whoever held the lock next.
            self._db.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            self._db.execute("set synchronous_commit = on")
        except psycopg.Error as error:
            raise self._unusable(error) from None
        _prepare(self, "select 1 where to_regclass('about') is not null", self._guards())

    @staticmethod
    def _unusable(error: Exception) -> LedgerError:
        told = (str(error).strip() or type(error).__name__).splitlines()[0]
        return LedgerError(f"Expected a writable ledger in PostgreSQL: {told}. Nothing was booked.")

    @staticmethod
    def _guards() -> Iterator[str]:
        yield (
            "create function append_only() returns trigger language plpgsql as"
            " $$ begin raise exception 'append-only'; end $$"
        )
        yield (
            "create trigger never_changed before update or delete or truncate on entries"
            " for each statement execute function append_only()"
        )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with self._one_at_a_time:
            try:
                with self._db.transaction():
                    self._db.execute("select pg_advisory_xact_lock(%s)", (self._LOCK,))
                    yield
            except self._error as error:
                raise self._unusable(error) from None

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        try:
            found = self._db.execute(statement.replace("?", "%s").encode(), tuple(values))
            return found.fetchall() if found.description else []
        except self._error as error:
            raise self._unusable(error) from None

    def now(self) -> datetime.datetime:
        now: datetime.datetime = self.rows("select clock_timestamp()")[0][0]
        return now.astimezone(datetime.UTC)

    def close(self) -> None:
        self._db.close()


def _prepare(store: Storage, is_there: str, guards: Iterable[str]) -> None:
    """Makes the tables, or sees that they are of this version."""
    with store.transaction():
        if not store.rows(is_there):
            for statement in (_TABLE, _ABOUT, *_INDEXES, *guards):
                store.rows(statement)
            store.rows(_BEGIN, (VERSION,))
        about(store)


def about(store: Storage) -> tuple[int, str]:
    """How many entries there are, and the hash of the last; refuses a ledger of another version."""
    if len(versions := store.rows("select version from about")) != 1:
        raise LedgerError(f"Expected one line about the ledger, found {len(versions)}: somebody edited it.")
    if (found := versions[0][0]) != VERSION:
        newer = " It was written by a newer fedlens." if found > VERSION else ""
        raise ValueError(f"Expected ledger version {VERSION}, found {found}.{newer} Nothing was changed.")
    count, head = store.rows("select entries, head from about")[0]
    return int(count), str(head)
