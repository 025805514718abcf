"""Where entries are kept: a SQLite file by default, PostgreSQL for teams. The same few statements run on both."""

import contextlib
import datetime
import pathlib
import sqlite3
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

COLUMNS = (
    "id, at, kind, who, population, run, stage, release, query, body, signer, signature, hash"  # the order of a Row
)
_TABLE = """create table if not exists entries (
    id bigint primary key,
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
    "create unique index if not exists one_reservation on entries (run, stage) where kind = 'reserve'",
    "create unique index if not exists one_release on entries (run, stage, release, query) where kind = 'release'",
    "create unique index if not exists one_close on entries (run) where kind = 'close'",
    "create index if not exists by_kind on entries (kind, population)",
)
_ABOUT = "create table if not exists about (version bigint not null, entries bigint not null, head text not null)"
_BEGIN = "insert into about (version, entries, head) select ?, 0, '' where not exists (select 1 from about)"
VERSION = 2
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
    return Postgres(text) if is_remote(text) else Sqlite(pathlib.Path(text) if text else None)


def is_remote(address: str) -> bool:
    return address.startswith(("postgresql://", "postgres://"))


class Sqlite:
    def __init__(self, path: pathlib.Path | None) -> None:
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path or ":memory:", isolation_level=None, timeout=30, check_same_thread=False)
            self._patiently("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = full")
            with self.transaction():
                if self.rows("select 1 from sqlite_master where name = 'about'"):
                    _checked(self.rows("select version from about"))
                for statement in (_TABLE, _ABOUT, *_INDEXES, *self._guards()):
                    self.rows(statement)
                self.rows(_BEGIN, (VERSION,))
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(f"Expected a writable ledger at {path}: {error}.") from None

    @staticmethod
    def _guards() -> Iterator[str]:
        for verb in ("update", "delete"):
            yield (
                f"create trigger if not exists no_{verb} before {verb} on entries"
                " begin select raise(abort, 'append-only'); end"
            )

    def _patiently(self, statement: str, seconds: float = 30.0) -> None:
        """SQLite's own patience does not cover a change of the journal's mode while others open the file."""
        give_up = time.monotonic() + seconds
        while True:
            try:
                self._db.execute(statement)
                return
            except sqlite3.OperationalError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.02)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        try:
            self._db.execute("begin immediate")
            try:
                yield
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # a full disk has rolled back already
                    self._db.execute("rollback")
                raise
            self._db.execute("commit")
        except sqlite3.Error as error:
            raise LedgerError(f"Expected a ledger that can be written: {error}. Nothing was booked.") from None

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        return self._db.execute(statement, tuple(values)).fetchall()

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
        if urllib.parse.urlsplit(address).password:
            raise ValueError("Expected no password in the ledger's address: use PGPASSWORD or a password file.")
        self._error = psycopg.Error
        try:
            self._db = psycopg.connect(address, autocommit=True, connect_timeout=10)
            with self.transaction():
                if self.rows("select 1 where to_regclass('about') is not null"):
                    _checked(self.rows("select version from about"))
                for statement in (_TABLE, _ABOUT, *_INDEXES, *self._guards()):
                    self.rows(statement)
                self.rows(_BEGIN, (VERSION,))
        except psycopg.Error as error:
            raise LedgerError(f"Expected a PostgreSQL ledger that can be written: {_first_line(error)}.") from None

    @staticmethod
    def _guards() -> Iterator[str]:
        yield (
            "create or replace function append_only() returns trigger language plpgsql as"
            " $$ begin raise exception 'append-only'; end $$"
        )
        yield (
            "create or replace trigger never_changed before update or delete or truncate on entries"
            " for each statement execute function append_only()"
        )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        try:
            with self._db.transaction():
                self._db.execute("select pg_advisory_xact_lock(%s)", (self._LOCK,))
                yield
        except self._error as error:
            raise LedgerError(
                f"Expected a ledger that can be written: {_first_line(error)}. Nothing was booked."
            ) from None

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        found = self._db.execute(statement.replace("?", "%s").encode(), tuple(values))
        return found.fetchall() if found.description else []

    def now(self) -> datetime.datetime:
        ((now,),) = self.rows("select clock_timestamp()")
        assert isinstance(now, datetime.datetime)
        return now.astimezone(datetime.UTC)

    def close(self) -> None:
        self._db.close()


def _checked(found: list[Row]) -> None:
    if found and found[0][0] != VERSION:
        newer = " It was written by a newer fedlens." if found[0][0] > VERSION else ""
        raise ValueError(f"Expected ledger version {VERSION}, found {found[0][0]}.{newer} Nothing was changed.")


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
