"""What was released, as events and not as epsilons: durable, append-only, charged before the release is computed."""

import contextlib
import dataclasses
import datetime
import itertools
import json
import pathlib
import sqlite3
import time
from collections.abc import Iterator, Sequence
from typing import Any

from fedlens.curator import PrivacySpentError
from fedlens.privacy import Guarantee, Plan, accounting

VERSION = 1
_SCHEMA = (
    "create table if not exists about (version integer not null)",
    """create table if not exists entries (
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
    )""",
    "create trigger if not exists never_changed before update on entries begin select raise(abort, 'append-only'); end",
    "create trigger if not exists never_deleted before delete on entries begin select raise(abort, 'append-only'); end",
)


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
    >>> plan = Plan(
    ...     sampling=Everyone(), bound=L2Clip(norm=1.0), noise_multiplier=5.0, releases=2, expected_contributors=9
    ... )
    >>> account = Account(run="demo", population="toy")
    >>> ledger = Ledger()
    >>> ledger.charge(account, "train", plan, release=0, query="q0")
    True
    >>> ledger.charge(account, "train", plan, release=0, query="q0")  # asked again: the same answer
    False
    >>> print(guarantee([ledger.spending("demo")], 1e-5).headline)
    epsilon 0.73 at delta 1e-05 per user (add/remove)
    """

    def __init__(self, path: pathlib.Path | str | None = None) -> None:
        try:
            if path is not None:
                pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path or ":memory:", isolation_level=None, timeout=30, check_same_thread=False)
            self._patiently("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = full")
            with self._transaction():
                for statement in _SCHEMA:
                    self._db.execute(statement)
                found = self._db.execute("select version from about").fetchone()
                if found is None:
                    self._db.execute("insert into about values (?)", (VERSION,))
        except (sqlite3.Error, OSError) as error:
            raise ValueError(f"Expected a writable ledger at {path}: {error}.") from None
        if found is not None and found[0] != VERSION:
            raise ValueError(f"Expected ledger version {VERSION}, found {found[0]}.")

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

        Formal guarantee: when this returns the entry is on disk, and a stage never holds more entries than its plan.
        """
        promise = (account.population, account.partition, account.part, int(account.simulated), plan.canonical())
        with self._transaction():
            made = self._db.execute(
                "select population, partition_name, part, simulated, plan, count(*),"
                " total(release = ? and query = ?) from entries where run = ? and stage = ?"
                " group by population, partition_name, part, simulated, plan",
                (release, query, account.run, stage),
            ).fetchall()
            if any(row[:5] != promise for row in made):
                raise ValueError(f"Expected the account and plan that run {account.run!r} began with; they changed.")
            count, same = made[0][5:] if made else (0, 0)
            if same:
                return False
            if count >= plan.releases:
                raise PrivacySpentError(
                    f"All {plan.releases} releases of the plan are spent. (A resumed run asks its old questions again"
                    " for free; if its data, secret or engine changed, they are new ones: start a new run.)"
                )
            entry = {
                "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "run": account.run,
                "stage": stage,
                "release": release,
                "query": query,
                "population": account.population,
                "partition_name": account.partition,
                "part": account.part,
                "plan": plan.canonical(),
                "simulated": account.simulated,
            }
            names, marks = ", ".join(entry), ", ".join("?" * len(entry))
            self._db.execute(f"insert into entries ({names}) values ({marks})", tuple(entry.values()))
        return True

    def spent(self, run: str, stage: str) -> int:
        return int(
            self._db.execute("select count(*) from entries where run = ? and stage = ?", (run, stage)).fetchone()[0]
        )

    def spending(self, run: str) -> "Spending":
        """What a run has spent so far, in plain terms that can travel with its model."""
        rows = self._db.execute(
            "select population, partition_name, part, simulated, plan, count(*) from entries where run = ?"
            " group by population, partition_name, part, simulated, plan order by min(id)",
            (run,),
        ).fetchall()
        if len({row[:4] for row in rows}) != 1:
            raise ValueError(f"Expected entries of run {run!r} on one account in the ledger.")
        population, partition, part, simulated = rows[0][:4]
        account = Account(run=run, population=population, partition=partition, part=part, simulated=bool(simulated))
        plans = (dataclasses.replace(Plan.from_dict(json.loads(row[4])), releases=row[5]) for row in rows)
        return Spending(account=account, plans=tuple(plans))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spending:
    """The releases of one run on its account: what a guarantee is computed from, alone or jointly with others."""

    account: Account
    plans: tuple[Plan, ...]  # with `releases` as many as were made

    def to_dict(self) -> dict[str, Any]:
        return {"account": dataclasses.asdict(self.account), "plans": [plan.to_dict() for plan in self.plans]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Spending":
        return cls(account=Account(**values["account"]), plans=tuple(map(Plan.from_dict, values["plans"])))


def guarantee(spendings: Sequence[Spending], delta: float) -> Guarantee:
    """What these runs cost jointly, were they the only ones on their populations.

    Formal guarantee: every unit lives in one part of each partition; its cost is what those parts add up to, and the
    epsilon is the largest such cost. That is parallel composition, and it needs add/remove neighbours: a user who is
    added or removed changes one part, while one who is replaced may leave a part and enter another.
    """
    if not spendings:
        raise ValueError("Expected at least one run to state a guarantee about.")
    kinds = {(str(plan.unit), str(plan.neighbours)) for spending in spendings for plan in spending.plans}
    if len(kinds) > 1:
        raise ValueError(f"Expected one unit and one kind of neighbours in a joint guarantee, got {sorted(kinds)}.")
    worlds = _worlds(spendings)
    costs = [accounting.epsilon(plans, delta) for plans in worlds]
    plans = worlds[costs.index(max(costs))]
    return Guarantee(
        epsilon=max(costs),
        delta=delta,
        unit=str(plans[0].unit),
        neighbours=str(plans[0].neighbours),
        sampling="; ".join(dict.fromkeys(plan.sampling.text for plan in plans)),
        accountant=accounting.accountant(plans),
        composition=_composition(spendings, worlds),
        simulated=any(spending.account.simulated for spending in spendings),
    )


def _worlds(spendings: Sequence[Spending]) -> list[tuple[Plan, ...]]:
    """What one unit may live through, population by population: of every partition it belongs to one part."""
    sorted_by: dict[str, dict[str, dict[str, list[Plan]]]] = {}
    for spending in spendings:
        partitions = sorted_by.setdefault(spending.account.population, {})
        parts = partitions.setdefault(spending.account.partition, {})
        parts.setdefault(spending.account.part, []).extend(spending.plans)
    return [
        tuple(itertools.chain.from_iterable(choice))
        for partitions in sorted_by.values()
        for choice in itertools.product(*(parts.values() for parts in partitions.values()))
    ]


def _composition(spendings: Sequence[Spending], worlds: Sequence[tuple[Plan, ...]]) -> str:
    if len(spendings) == 1:
        return "all releases of one model"
    if len(worlds) == 1:
        return f"all releases of {len(spendings)} models together: they may share users"
    return (
        f"{len(spendings)} models on groups that share no user: the most expensive group counts,"
        " because adding or removing a user changes one group only"
    )
