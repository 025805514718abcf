"""Where entries are kept: a SQLite file by default, PostgreSQL for teams. The same few statements run on both."""

import contextlib
import dataclasses
import datetime
import hashlib
import os
import pathlib
import re
import sqlite3
import threading
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

# In the order of the fields of an `Entry`.
COLUMNS = "id, at, kind, who, population, run, stage, release, query, body, signer, signature, hash"
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
VERSION = 3  # releases are dated by the day; a witness may be named
READABLE = 2, VERSION  # what a ledger of an older version lacks is taken as absent; its next entry makes it a newer one
_BEGIN = f"insert into about (version, entries, head) values ({VERSION}, 0, '')"
_WITNESSED = """create table witnessed (
    ledger text not null,
    number bigint not null,
    hash text not null,
    primary key (ledger, number)
)"""
_SQLITE_ERRORS = sqlite3.Error, UnicodeDecodeError, OverflowError
StoredRow = tuple[Any, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schema:
    """What is kept in a store: its tables, the first of which tells that they are there; rows of one never change."""

    sign: str
    guarded: str
    statements: tuple[str, ...]
    lock: int  # of PostgreSQL, at which those who write wait


BOOKS = Schema(sign="about", guarded="entries", statements=(_TABLE, _ABOUT, *_INDEXES, _BEGIN), lock=0x_FED_1E45)
WITNESSES = Schema(sign="witnessed", guarded="witnessed", statements=(_WITNESSED,), lock=0x_FED_1E46)


class LedgerError(OSError):
    """The ledger cannot be read or written just now."""


class Storage(Protocol):
    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """All or nothing, and nobody else writes meanwhile. On disk when it returns."""

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[StoredRow]: ...

    def now(self) -> datetime.datetime:
        """By the clock that all who write share."""

    def running(self) -> tuple[str, float] | None:
        """Which start of the machine this is, and for how many seconds it has run; None where nobody can tell."""

    def close(self) -> None: ...


def opened(address: str | pathlib.Path | None, schema: Schema = BOOKS, *, make: bool = True) -> Storage:
    """A path, a postgresql:// address, or memory when neither is given; its tables are made if they are not there."""
    text = str(address) if address is not None else ""
    if address is not None and not text:
        raise ValueError("Expected the address of a ledger: a file, or postgresql://…; it is empty.")
    if is_remote(text):
        return Postgres(text, schema, make)
    return Sqlite(pathlib.Path(text) if text else None, schema, make)


def is_remote(address: str) -> bool:
    return address.startswith(("postgresql://", "postgres://"))


class Sqlite:
    def __init__(self, path: pathlib.Path | None, schema: Schema = BOOKS, make: bool = True) -> None:
        self._where = str(path) if path else "memory"
        self._one_at_a_time = threading.Lock()  # threads share the connection
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.exists() and not os.access(path, os.W_OK):
                    raise PermissionError("it is read-only")
            self._db = sqlite3.connect(path or ":memory:", isolation_level=None, timeout=30, check_same_thread=False)
            tables = {name for (name,) in self._db.execute("select name from sqlite_master where type = 'table'")}
            if (tables or not make) and schema.sign not in tables:
                raise PermissionError("the file holds other tables")
            self._patiently("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = full")
        except (*_SQLITE_ERRORS, OSError) as error:
            raise self._unusable(error) from None
        there = f"select 1 from sqlite_master where name = '{schema.sign}'"
        _prepare(self, there, schema, self._guards(schema), make)

    def _unusable(self, error: Exception) -> LedgerError:
        return LedgerError(f"Expected a writable ledger at {self._where}: {_sqlite_reason(error)}. Nothing was booked.")

    @staticmethod
    def _guards(schema: Schema) -> Iterator[str]:
        for verb in ("update", "delete"):
            yield (
                f"create trigger no_{verb} before {verb} on {schema.guarded}"
                " begin select raise(abort, 'append-only'); end"
            )

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

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[StoredRow]:
        try:
            return self._db.execute(statement, tuple(values)).fetchall()
        except _SQLITE_ERRORS as error:
            raise self._unusable(error) from None

    def now(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC)

    def running(self) -> tuple[str, float] | None:
        try:
            boot = hashlib.sha256(pathlib.Path("/proc/sys/kernel/random/boot_id").read_bytes()).hexdigest()[:16]
            return boot, time.clock_gettime(time.CLOCK_BOOTTIME)  # counts while it sleeps, too
        except (OSError, AttributeError):
            return None

    def close(self) -> None:
        self._db.close()


class Postgres:
    """Needs the extra `fedlens[postgres]`. Writers queue at one advisory lock, as they do at SQLite's file."""

    _LOCK = BOOKS.lock

    def __init__(self, address: str, schema: Schema = BOOKS, make: bool = True) -> None:
        try:
            import psycopg
        except ImportError:
            raise ValueError("Expected psycopg for a PostgreSQL ledger: pip install 'fedlens[postgres]'.") from None
        parts = urllib.parse.urlsplit(address)
        if parts.password or "password" in parts.query.lower():
            raise ValueError("Expected no password in the ledger's address: use PGPASSWORD or a password file.")
        self._error = psycopg.Error, UnicodeDecodeError, OverflowError
        self._lock, self._one_at_a_time = schema.lock, threading.Lock()
        try:
            self._db = psycopg.connect(address, autocommit=True, connect_timeout=10, client_encoding="utf8")
            # Whatever the server has by default: what is booked is on disk, and seen by whoever held the lock next.
            self._db.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            self._db.execute("set synchronous_commit = on")
        except psycopg.Error as error:
            raise self._unusable(error) from None
        there = f"select 1 where to_regclass('{schema.sign}') is not null"
        _prepare(self, there, schema, self._guards(schema), make)

    @staticmethod
    def _unusable(error: Exception) -> LedgerError:
        return LedgerError(f"Expected a writable ledger in PostgreSQL: {_postgres_reason(error)}. Nothing was booked.")

    @staticmethod
    def _guards(schema: Schema) -> Iterator[str]:
        yield (
            "create or replace function append_only() returns trigger language plpgsql as"
            " $$ begin raise exception 'append-only'; end $$"
        )
        yield (
            f"create trigger never_changed before update or delete or truncate on {schema.guarded}"
            " for each statement execute function append_only()"
        )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with self._one_at_a_time:
            try:
                with self._db.transaction():
                    self._db.execute("select pg_advisory_xact_lock(%s)", (self._lock,))
                    yield
            except self._error as error:
                raise self._unusable(error) from None

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[StoredRow]:
        try:
            answer = self._db.execute(statement.replace("?", "%s").encode(), tuple(values))
            return answer.fetchall() if answer.description else []
        except self._error as error:
            raise self._unusable(error) from None

    def now(self) -> datetime.datetime:
        now: datetime.datetime = self.rows("select clock_timestamp()")[0][0]
        return now.astimezone(datetime.UTC)

    def running(self) -> tuple[str, float] | None:
        return None  # its clock is the server's, which no modeler sets

    def close(self) -> None:
        self._db.close()


def _prepare(store: Storage, is_there: str, schema: Schema, guards: Iterable[str], make: bool) -> None:
    """Makes the tables, or sees that they are of a version that can be read."""
    with store.transaction():
        if not store.rows(is_there):
            if not make:
                raise LedgerError(f"Expected a table {schema.sign!r}; there is none.")
            for statement in (*schema.statements, *guards):
                store.rows(statement)
        if schema is BOOKS:
            about(store)


def about(store: Storage) -> tuple[int, str]:
    """How many entries there are, and the hash of the last; refuses a ledger of another version."""
    if len(versions := store.rows("select version from about limit 2")) != 1:
        raise LedgerError("Expected one line about the ledger, found none or several: somebody edited it.")
    if type(version := versions[0][0]) is not int:
        raise LedgerError("Expected a number as the version of the ledger: somebody edited it.")
    if version not in READABLE:
        newer = " It was written by a newer fedlens." if version > VERSION else ""
        raise ValueError(f"Expected ledger version {VERSION}, found {version}.{newer} Nothing was changed.")
    count, head = store.rows("select entries, head from about")[0]
    if type(count) is not int or type(head) is not str or count < 0:
        raise LedgerError("Expected a number and a hash in the line about the ledger: somebody edited it.")
    return count, head


# What a store says of itself may quote what it holds: damaged text, and names that somebody wrote. So its kind of error
# is told, in words of our own.

_SQLITE_KINDS = {
    sqlite3.SQLITE_BUSY: "others kept it locked for too long",
    sqlite3.SQLITE_LOCKED: "others kept it locked for too long",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_PERM: "it is read-only",
    sqlite3.SQLITE_IOERR: "disk I/O error",
    sqlite3.SQLITE_CORRUPT: "the file is damaged",
    sqlite3.SQLITE_NOTADB: "file is not a database",
    sqlite3.SQLITE_FULL: "database or disk is full",
    sqlite3.SQLITE_CANTOPEN: "unable to open database file",
    sqlite3.SQLITE_CONSTRAINT: "an entry is there already, or would be changed",
    sqlite3.SQLITE_ERROR: "its tables are not those of a ledger",
}


def _sqlite_reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return str(error)  # of the system, or our own
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return "it holds damaged text or numbers"
    return _SQLITE_KINDS.get(code & 0xFF, f"SQLite says {getattr(error, 'sqlite_errorname', code)}")


def _postgres_reason(error: Exception) -> str:
    if isinstance(error, ValueError | OverflowError):
        return "it holds damaged text or numbers"
    state = getattr(error, "sqlstate", None)
    if state == "42501":
        return "permission denied"
    if state is None:  # nobody answers, or no longer
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        return "".join(letter if letter.isprintable() else " " for letter in said)
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()
