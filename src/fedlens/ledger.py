"""What was released, as events and not as epsilons: durable, append-only, charged before the release is computed."""

import collections
import contextlib
import dataclasses
import datetime
import itertools
import json
import pathlib
import sqlite3
from collections.abc import Iterator, Sequence

from fedlens.curator import PrivacySpentError
from fedlens.privacy import Guarantee, Plan, accounting

VERSION = 1
_SCHEMA = """
create table if not exists about (version integer not null);
create table if not exists entries (
    id integer primary key,
    at text not null,
    run text not null,
    stage text not null,
    release integer not null,
    query text not null,
    population text not null,
    partition_name text not null,
    part text not null,
    plan text not null,
    simulated integer not null,
    unique (run, stage, release, query)
);
create index if not exists by_run on entries (run);
create trigger if not exists entries_never_change before update on entries begin select raise(abort, 'append-only'); end;
create trigger if not exists entries_never_go before delete on entries begin select raise(abort, 'append-only'); end;
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Account:
    """Whose budget a run draws on. Parts of one partition share no unit, so their costs do not add up.

    `partition` names a rule that puts every *user* into at most one part; selections by example share users and must
    not claim one.
    """

    run: str
    population: str
    partition: str = "all"
    part: str = "all"
    simulated: bool = False


class Ledger:
    """A SQLite file, or memory when no path is given.

    >>> from fedlens.privacy import Everyone, L2Clip
    >>> plan = Plan(sampling=Everyone(), bound=L2Clip(norm=1.0), noise_multiplier=5.0, releases=2, expected_contributors=9)
    >>> ledger = Ledger()
    >>> ledger.charge(Account(run="demo", population="toy"), "train", plan, release=0, query="q0")
    True
    >>> ledger.charge(Account(run="demo", population="toy"), "train", plan, release=0, query="q0")  # asked again: same answer
    False
    >>> print(ledger.guarantee(["demo"], 1e-5).headline)
    epsilon 0.73 at delta 1e-05 per user (add/remove)
    """

    def __init__(self, path: pathlib.Path | str | None = None) -> None:
        if path is not None:
            pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = sqlite3.connect(path or ":memory:", isolation_level=None, timeout=30, check_same_thread=False)
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = full")
            self._db.executescript(_SCHEMA)
            with self._transaction():
                found = self._db.execute("select version from about").fetchone()
                if found is None:
                    self._db.execute("insert into about values (?)", (VERSION,))
        except sqlite3.Error as error:
            raise ValueError(f"Expected a writable ledger at {path}: {error}.") from None
        if found is not None and found[0] != VERSION:
            raise ValueError(f"Expected ledger version {VERSION}, found {found[0]}.")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._db.execute("rollback")
            raise
        self._db.execute("commit")

    def charge(self, account: Account, stage: str, plan: Plan, *, release: int, query: str) -> bool:
        """Books one release; False if this very question was booked before (a run resumed after a crash).

        Formal guarantee: when this returns, the entry is on disk, and the stage never holds more entries than its plan.
        """
        key = (account.run, stage)
        with self._transaction():
            rows = self._db.execute(
                "select release, query, plan from entries where run = ? and stage = ?", key
            ).fetchall()
            if any(text != plan.canonical() for _, _, text in rows):
                raise ValueError(f"Expected the plan that run {account.run!r} was started with; it has changed.")
            if (release, query) in {row[:2] for row in rows}:
                return False
            if len(rows) >= plan.releases:
                raise PrivacySpentError(f"All {plan.releases} releases of the plan are spent.")
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            self._db.execute(
                "insert into entries (at, run, stage, release, query, population, partition_name, part, plan, simulated)"
                " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    now,
                    *key,
                    release,
                    query,
                    account.population,
                    account.partition,
                    account.part,
                    plan.canonical(),
                    account.simulated,
                ),
            )
        return True

    def spent(self, run: str, stage: str) -> int:
        return int(
            self._db.execute("select count(*) from entries where run = ? and stage = ?", (run, stage)).fetchone()[0]
        )

    def guarantee(self, runs: Sequence[str], delta: float) -> Guarantee:
        """What the releases of these runs cost jointly, were they the only ones on their population."""
        marks = ", ".join("?" * len(runs))
        rows = self._db.execute(
            f"select population, partition_name, part, plan, simulated, count(*) from entries where run in ({marks})"
            " group by population, partition_name, part, plan, simulated",
            tuple(runs),
        ).fetchall()
        counted: dict[str, dict[str, dict[str, list[tuple[Plan, int]]]]] = collections.defaultdict(
            lambda: collections.defaultdict(dict)
        )
        for population, partition, part, plan, _, count in rows:
            single = dataclasses.replace(Plan.from_dict(json.loads(plan)), releases=1)
            counted[population][partition].setdefault(part, []).append((single, count))
        simulated = any(row[4] for row in rows)
        return stated([joint for parts in counted.values() for joint in _worlds(parts)], delta, simulated)


Counted = tuple[tuple[Plan, int], ...]


def _worlds(partitions: dict[str, dict[str, list[tuple[Plan, int]]]]) -> list[Counted]:
    """What one unit may live through: of every partition it belongs to one part."""
    return [
        tuple(itertools.chain.from_iterable(choice))
        for choice in itertools.product(*(parts.values() for parts in partitions.values()))
    ]


def stated(worlds: Sequence[Counted], delta: float, simulated: bool) -> Guarantee:
    """The guarantee of the worst world: units in different worlds are disjoint, so their costs do not add up."""
    if not worlds:
        raise ValueError("Expected at least one release to state a guarantee about.")
    costs = [accounting.epsilon_of(world, delta) for world in worlds]
    worst = max(range(len(worlds)), key=costs.__getitem__)
    plans = [plan for plan, _ in worlds[worst]]
    return Guarantee(
        epsilon=costs[worst],
        delta=delta,
        unit=str(plans[0].unit),
        neighbours=str(plans[0].neighbours),
        sampling="; ".join(dict.fromkeys(plan.sampling.text for plan in plans)),
        accountant=accounting.accountant(plans),
        composition="all releases of one model"
        if len(worlds) == 1
        else f"the worst of {len(worlds)} groups that share no unit (a user is in one of them at most, and adding or removing the user changes that one only)",
        simulated=simulated,
    )
