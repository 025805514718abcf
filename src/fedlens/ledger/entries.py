"""The entries of a ledger in its store: read, counted, and appended by one hand; and what each of them says.

One that does not say what it should was edited, and is refused.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypedDict, TypeVar, Unpack

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedlens.ledger import clock, keys
from fedlens.ledger.budgets import Budget
from fedlens.ledger.chain import DAMAGE, Entry, Place
from fedlens.ledger.spending import Account
from fedlens.ledger.storage import COLUMNS, VERSION, LedgerError, Storage, StoredRow, about
from fedlens.privacy import Promise, promised

LARGEST = 2**63 - 1  # the largest number a store can count to
_PAGE = 10_000
Answer = TypeVar("Answer")
OF_ACCOUNT = "partition", "part", "simulated"  # what a reservation says of its account


class OfRun(TypedDict, total=False):
    """What an entry says of a run, as far as it is of one."""

    run: str
    stage: str
    release: int
    query: str


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

    def append(self, kind: str, population: str, body: Mapping[str, Any] | None = None, **more: Unpack[OfRun]) -> Entry:
        """To be called within a transaction."""
        count, head = about(self.store)
        last = self.where("id = ?", count)
        at = clock.of_new_entry(self.store, kind, last[0].at if last else "")
        text = json.dumps(body or {}, sort_keys=True)
        draft = Entry(count + 1, at, kind, self._who, population, body=text, signer=self.signer, **more)
        digest = draft.hashed(head)
        entry = dataclasses.replace(draft, hash=digest, signature=keys.signed(self._key, digest) if self._key else "")
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


def read(entry: Entry, work: Callable[[], Answer]) -> Answer:
    """What an entry says; one that does not say it was edited. Its text is never quoted."""
    try:
        return work()
    except DAMAGE:
        raise damaged(entry) from None


def damaged(entry: Entry) -> LedgerError:
    number = entry.id if type(entry.id) is int else "of no number"
    return LedgerError(f"Expected entry {number} as it was written: the ledger was edited (fedlens ledger verify).")


def fact(entry: Entry, name: str, kind: type[Answer]) -> Answer:
    value = read(entry, lambda: entry.facts[name])
    if not isinstance(value, kind):
        raise damaged(entry)
    return value


def reservation(entry: Entry) -> dict[str, Any]:
    """What a reservation says, if it is whole."""
    facts = read(entry, lambda: entry.facts)
    kinds = {"plan": dict, "partition": str, "part": str, "simulated": bool, "recipe": str, "why": str}
    if not all(isinstance(facts.get(name), kind) for name, kind in kinds.items()):
        raise damaged(entry)
    return facts


def account_of(entry: Entry) -> Account:
    facts = reservation(entry)
    return Account(run=entry.run, population=entry.population, **{name: facts[name] for name in OF_ACCOUNT})


def plan_of(entry: Entry) -> Promise:
    return read(entry, lambda: sound(_parsed(json.dumps(entry.facts["plan"], sort_keys=True))))


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> Promise:
    return promised(json.loads(text))


def sound(plan: Promise) -> Promise:
    """Refuses numbers that only an editor's hand writes, and that no accountant can count with."""
    whole = type(plan.releases) is int and 0 < plan.releases < 2**31
    numbers = plan.noise_multiplier, plan.expected_contributors
    real = all(isinstance(value, int | float) and abs(value) < 2**63 for value in numbers)
    if not (whole and real):
        raise ValueError("Expected a plan that can be priced.")
    return plan


def budget_of(entry: Entry) -> Budget:
    return read(entry, lambda: Budget.from_dict(entry.facts["budget"]))


def clock_of(entry: Entry) -> dict[str, Any] | None:
    """What an entry says about the clock; those of older versions, and of some machines, say nothing."""
    clock = read(entry, lambda: entry.facts).get("clock")
    if clock is None:
        return None
    return read(entry, lambda: {"boot": str(clock["boot"]), "ahead": float(clock["ahead"])})
