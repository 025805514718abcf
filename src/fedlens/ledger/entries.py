"""The entries of a ledger in its store: read, counted, and appended by one hand."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedlens.ledger import clock, keys
from fedlens.ledger.chain import Entry, Place
from fedlens.ledger.facts import damaged
from fedlens.ledger.storage import COLUMNS, VERSION, LedgerError, Storage, StoredRow, about

LARGEST = 2**63 - 1  # the largest number a store can count to
_PAGE = 10_000


class Entries:
    """What all rules of the ledger read and write; the transactions around them are the `Ledger`'s."""

    def __init__(self, store: Storage, who: str, key: Ed25519PrivateKey | None) -> None:
        self.store, self._who, self._key = store, who, key

    @property
    def signer(self) -> str:
        """The public key of the hand that writes; empty for one that does not sign."""
        return keys.public(self._key) if self._key else ""

    def where(self, condition: str, *values: Any) -> list[Entry]:
        """Refuses what is not of the kind it was written as: nothing can be told from it."""
        entries = self._raw(condition, *values)
        for entry in entries:
            if not entry.readable:
                raise damaged(entry)
        return entries

    def count_releases(self, condition: str, *values: Any) -> int:
        counted = self.store.rows(f"select count(*) from entries where kind = 'release' and {condition}", values)
        return int(counted[0][0])

    def rows(self, statement: str, *values: Any) -> list[StoredRow]:
        """Of the store, as they are."""
        return self.store.rows(statement, values)

    def append(
        self,
        kind: str,
        population: str,
        *,
        run: str = "",
        stage: str = "",
        release: int = -1,
        query: str = "",
        body: Mapping[str, Any] | None = None,
    ) -> Entry:
        """To be called within a transaction."""
        count, head = about(self.store)
        last = self.where("id = ?", count)
        entry = Entry(
            id=count + 1,
            at=clock.of_new_entry(self.store, kind, last[0].at if last else ""),
            kind=kind,
            who=self._who,
            population=population,
            run=run,
            stage=stage,
            release=release,
            query=query,
            body=json.dumps(body or {}, sort_keys=True),
            signer=self.signer,
            signature="",
            hash="",
        )
        digest = entry.hashed(head)
        signature = keys.signed(self._key, digest) if self._key else ""
        entry = dataclasses.replace(entry, hash=digest, signature=signature)
        marks = ", ".join("?" * len(dataclasses.fields(Entry)))
        self.store.rows(f"insert into entries ({COLUMNS}) values ({marks})", dataclasses.astuple(entry))
        self.store.rows("update about set version = ?, entries = ?, head = ?", (VERSION, entry.id, entry.hash))
        return entry

    def head(self) -> Place:
        """The number and hash of the last entry."""
        return about(self.store)

    def identity(self) -> str:
        """By which a ledger is told from others: the hash of its first entry; empty while there is none."""
        first = self.rows("select hash from entries where id = 1")
        return str(first[0][0]) if first else ""

    def holds(self, place: Place) -> bool:
        """Whether this very entry is in the ledger."""
        number, digest = place
        if not 0 < number < LARGEST:
            return False
        return self.rows("select hash from entries where id = ?", number) == [(digest,)]

    def every(self) -> Iterator[Entry]:
        """All of them, in the order of their numbers, whatever gaps there are and whatever they hold."""
        page = self._page("id is not null")
        while page:
            yield from page
            if not page[-1].readable:
                return
            page = self._page("id > ?", page[-1].id)

    def _page(self, condition: str, *values: Any) -> list[Entry]:
        try:
            return self._raw(condition, *values, limit=_PAGE)
        except LedgerError:
            numbers = self.rows(f"select id from entries where {condition} order by id limit {_PAGE}", *values)
            return [self._one(number) for (number,) in numbers]

    def _one(self, number: Any) -> Entry:
        """An entry; of one whose text cannot be decoded, what shows that it cannot be read."""
        try:
            return self._raw("id = ?", number)[0]
        except (LedgerError, IndexError):
            nothing: Any = None
            return Entry(number, *[nothing] * (len(dataclasses.fields(Entry)) - 1))

    def _raw(self, condition: str, *values: Any, limit: int | None = None) -> list[Entry]:
        most = f" limit {limit}" if limit else ""
        rows = self.rows(f"select {COLUMNS} from entries where {condition} order by id{most}", *values)
        return [Entry(*row) for row in rows]
