"""Damaged and hostile ledgers, made from a seed: every one must end in an answer or in one of our own errors."""

import contextlib
import dataclasses
import itertools
import json
import pathlib
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator

from fedlens.curators.protocol import PrivacySpentError
from fedlens.ledger import Account, Budget, Entry, Item, Ledger, LedgerError, NotApprovedError, Spending, storage
from fedlens.privacy import Everyone, L2Clip, Plan

SECRET = "what nobody may quote"
NASTY = (
    None,
    b"\xff\x00\xfe",
    "",
    "NaN",
    "\x1b[2J\n\u202e",
    -1,
    0,
    2**63 - 1,
    -(2**63),
    1e308,
    "9" * 400,
    SECRET,
    "[" * 100_000,
    '{"a":' * 5_000,
    "{}",
    "[]",
    "null",
    '{"plan": NaN}',
)
INSIDE = (
    None,
    float("nan"),
    float("inf"),
    -1,
    0,
    0.5,
    10**400,
    2**31,
    1e308,
    "",
    SECRET,
    [],
    {},
    [[[]]],
    True,
    {"kind": SECRET},
    [SECRET] * 3,
)
PLAN = Plan(sampling=Everyone(), bound=L2Clip(norm=1.0), noise_multiplier=5.0, releases=3, expected_contributors=9.0)
ACCOUNT = Account(run="look-1/all", population="users", partition="look-1: all")
FIELDS = [field.name for field in dataclasses.fields(Entry)]


def written(path: pathlib.Path, *, witness: bool = True) -> None:
    """A ledger with entries of every kind; one without a `witness` believes whoever makes its chain anew."""
    book, asked = Ledger(path, who="Ada"), dataclasses.replace(ACCOUNT, run="look/all", partition="look: all")
    book.set_budget(Budget(population="users", epsilon=9.0, delta=1e-5, window=30.0, review=True), why="agreed")
    book.register("users", {"size": 9})
    number = book.request("look", [Item(account=asked, stage="train", plan=PLAN)], recipe="digest", text="name = 1")
    book.review(number, approved=True, note="fine")
    if witness:
        book.name_witness(str(path.with_name("witness.db")))
    book.reserve([Item(account=ACCOUNT, stage="train", plan=PLAN)], recipe="digest", text="name = 1")
    for release in range(2):
        book.charge(ACCOUNT, "train", PLAN, release=release, query=f"q{release}")
    book.close("look-1/all", model="ab" * 32)
    book.request("next", [Item(account=asked, stage="train", plan=PLAN)], recipe="other", why="to see")
    book.close_file()


def uses(path: pathlib.Path) -> "Iterator[Callable[[], object]]":
    """All that is asked of a ledger, whole or not."""
    book = Ledger(path, checked=False)
    fresh = Account(run="new-1/all", population="others")
    yield from (book.verify, book.standings, book.runs, book.requests, book.registrations, book.head, book.pin)
    yield from (lambda number=number: book.weighed(number) for number in range(1, 12))
    yield lambda: book.weighed(3).full()
    yield lambda: book.weighed(3).to_dict()
    yield lambda: book.budget("users")
    yield lambda: book.spending("look-1/all")
    yield lambda: book.spendings("users", reserved=True, budget=book.budget("users"))
    yield lambda: book.confirms(Spending(account=ACCOUNT, plans=(PLAN,)), model="ab" * 32)
    yield lambda: Ledger(path)
    yield lambda: book.charge(fresh, "train", PLAN, release=0, query="a")
    yield lambda: book.reserve([Item(account=ACCOUNT, stage="train", plan=PLAN)], recipe="digest")
    yield lambda: book.review(11, approved=True)
    yield lambda: book.close("look-1/all")
    yield lambda: json.dumps([book.runs(), book.requests()], allow_nan=False)


def used(path: pathlib.Path) -> None:
    """Raises what is none of our errors, or quotes what it must not."""
    try:
        works = list(uses(path))
    except (LedgerError, ValueError) as error:
        return _ours(error)
    for work in works:
        try:
            work()
        except (LedgerError, NotApprovedError, PrivacySpentError, ValueError) as error:
            _ours(error)
    return None


def _ours(error: Exception) -> None:
    if isinstance(error, ValueError) and not str(error).startswith("Expected "):
        raise error
    if SECRET in str(error) and "witness" not in str(error):  # whose address a ledger tells
        raise AssertionError("an error quotes what the ledger holds") from error


def cases(folder: pathlib.Path, *, seed: int = 0, count: int = 200) -> Iterator[tuple[str, Callable[[], None]]]:
    """So many damaged ledgers of each of three kinds, by name; each is made when it is called, in `folder`."""
    wholes = [folder / name / "ledger.db" for name in ("seen", "unseen")]
    for whole in wholes:
        if not whole.exists():
            written(whole, witness=whole.parent.name == "seen")
    chance = random.Random(seed)
    number = itertools.count()
    kinds = {"bytes": _bytes, "cells": _cells, "bodies": _bodies}
    for name, damage in kinds.items():
        for _ in range(count):
            made = random.Random(chance.random())
            at = next(number)
            whole = wholes[at % 2]
            yield f"{name} {at}", lambda damage=damage, made=made, whole=whole: _case(folder, whole, damage, made)


def _case(
    folder: pathlib.Path,
    whole: pathlib.Path,
    damage: Callable[[pathlib.Path, random.Random], None],
    made: random.Random,
) -> None:
    place = folder / "case"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(whole.parent, place)
    damage(place / whole.name, made)
    used(place / whole.name)


def _bytes(path: pathlib.Path, made: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(made.choice((1, 3, 20, 200))):
        content[made.randrange(len(content))] = made.randrange(256)
    at, size = made.randrange(len(content)), made.choice((0, 0, 100, 4096))
    content[at : at + size] = bytes(size)
    path.write_bytes(content[: made.choice((len(content), len(content), made.randrange(len(content))))])


def _cells(path: pathlib.Path, made: random.Random) -> None:
    """Values that SQLite keeps, whatever the column was made for."""
    with contextlib.closing(sqlite3.connect(path)) as book, book:
        _loosened(book)
        for _ in range(made.choice((1, 1, 3))):
            table, column = made.choice(
                [("entries", field) for field in FIELDS] + [("about", name) for name in ("version", "entries", "head")]
            )
            where = f" where id = {made.randrange(1, 12)}" if table == "entries" else ""
            with contextlib.suppress(sqlite3.Error):  # some of them must be unique
                book.execute(f"update {table} set {column} = ?{where}", (made.choice(NASTY),))


def _bodies(path: pathlib.Path, made: random.Random) -> None:
    """A value somewhere in an entry, and the chain made anew by somebody who knows how."""
    with contextlib.closing(sqlite3.connect(path)) as book, book:
        _loosened(book)
        found = [Entry(*row) for row in book.execute(f"select {storage.COLUMNS} from entries order by id")]
        at = made.randrange(len(found))
        body = json.dumps(_spoilt(found[at].facts, made))
        found[at] = dataclasses.replace(found[at], body=body)
        book.execute("delete from entries")
        previous = ""
        for entry in found:
            sealed = dataclasses.replace(entry, hash=entry.hashed(previous))
            marks = ", ".join("?" * len(FIELDS))
            book.execute(f"insert into entries ({storage.COLUMNS}) values ({marks})", dataclasses.astuple(sealed))
            previous = sealed.hash
        book.execute("update about set head = ?", (previous,))


def _loosened(book: sqlite3.Connection) -> None:
    """Takes away what keeps entries from being changed, and from holding nothing."""
    for name in ("no_update", "no_delete"):
        book.execute(f"drop trigger if exists {name}")
    book.execute("pragma writable_schema = on")
    book.execute("update sqlite_master set sql = replace(sql, ' not null', '') where type = 'table'")
    book.execute("pragma writable_schema = off")


def _spoilt(value: object, made: random.Random) -> object:
    if isinstance(value, dict) and value and made.random() < 0.85:
        name = made.choice(sorted(value))
        changed = value | {name: _spoilt(value[name], made)}
        return changed if made.random() < 0.85 else {key: kept for key, kept in changed.items() if key != name}
    if isinstance(value, list) and value and made.random() < 0.85:
        return [_spoilt(value[0], made), *value[1:]]
    return made.choice(INSIDE)
