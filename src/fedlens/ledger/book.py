"""The ledger itself: reserve the whole plan, book every release before it is made, return the rest, sign and verify.

Entries are never changed and never deleted. Each carries the hash of the one before it, so that an edited, missing or
reordered entry is found; what has been published elsewhere (a model's header names its entry) cannot be rewritten.
"""

import dataclasses
import datetime
import functools
import getpass
import json
import math
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedlens.curator import PrivacySpentError
from fedlens.ledger import chain, keys
from fedlens.ledger.admission import Admission, Owed
from fedlens.ledger.budgets import Budget, Standing
from fedlens.ledger.chain import Entry, Head
from fedlens.ledger.spending import Account, Kind, Spending, carried_out, guarantee, is_gaussian, owed
from fedlens.ledger.storage import COLUMNS, LedgerError, about, opened
from fedlens.privacy import MatrixPlan, Promise, promised

_PAGE = 10_000
_BUDGETS = "kind = 'budget' and population = ?"
_BACKWARDS = datetime.timedelta(seconds=5)  # clocks are set right by less


class RunClosedError(PrivacySpentError):
    """The run was ended, by itself or by hand: it releases nothing more."""


class NotApprovedError(RuntimeError):
    """The budget asks for an approved request, and there is none for this run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """What a run asks for: so many releases of a plan, on an account."""

    account: Account
    stage: str
    plan: Promise


class Ledger:
    """A SQLite file, a PostgreSQL database, or memory when no address is given.

    >>> from fedlens.privacy import Everyone, L2Clip, Plan
    >>> plan = Plan(
    ...     sampling=Everyone(), bound=L2Clip(norm=1.0), noise_multiplier=5.0, releases=2, expected_contributors=9
    ... )
    >>> account = Account(run="demo", population="toy")
    >>> ledger = Ledger()
    >>> ledger.set_budget(Budget(population="toy", epsilon=1.5, delta=1e-5))
    >>> ledger.charge(account, "train", plan, release=0, query="q0")
    True
    >>> ledger.charge(account, "train", plan, release=0, query="q0")  # asked again: the same answer
    False
    >>> print(guarantee([ledger.spending("demo")], 1e-5).headline)
    epsilon 0.73 at delta 1e-05 per user (add/remove)
    >>> try:
    ...     ledger.charge(Account(run="again", population="toy"), "train", plan, release=0, query="q0")
    ... except PrivacySpentError as error:
    ...     print(error)
    This run would take 'toy' to epsilon 1.56 at delta 1e-05; its budget is 1.5, and 1.07 is spent or reserved.
    """

    def __init__(
        self,
        address: pathlib.Path | str | None = None,
        *,
        who: str | None = None,
        key: Ed25519PrivateKey | None = None,
    ) -> None:
        self._store = opened(address)
        self._who, self._key = who or _user(), key

    def close_file(self) -> None:
        self._store.close()

    # Spending

    def reserve(self, items: Sequence[Item], *, recipe: str = "", why: str = "", new: bool = False) -> None:
        """Sets the whole of a run aside, in one transaction, before its first release; a run that resumes has done so.

        A `new` run must not be in the ledger yet. Formal guarantee: what is spent and reserved on a population never
        exceeds its budget.
        """
        with self._store.transaction():
            if new and (known := [item.account.run for item in items if self._reservations(item.account.run)]):
                raise ValueError(f"Expected a new run, but the ledger knows {known[0]!r} already; run it again.")
            self._reserve(items, recipe, why)

    def charge(self, account: Account, stage: str, plan: Promise, *, release: int, query: str) -> bool:
        """Books one release; False if this very question was booked before (a run resumed after a crash).

        A `query` to a matrix plan begins with the name of what all its releases have in common, and a slash.

        Formal guarantee: when this returns the entry is on disk, and a stage never holds more entries than its plan.
        """
        with self._store.transaction():
            self._reserve([Item(account=account, stage=stage, plan=plan)], "", "")
            if self._count("run = ? and stage = ? and release = ? and query = ?", account.run, stage, release, query):
                return False
            self.must_be_open(account.run)
            made = self._count("run = ? and stage = ?", account.run, stage)
            if plan.in_turn and release != made:
                raise PrivacySpentError(
                    f"Expected release {made} of {account.run!r} next: in a balanced schedule every group has its turn"
                    " once, correlated noise needs every row before it, and a release that is asked again with another"
                    " question would be a second one."
                )
            if isinstance(plan, MatrixPlan) and self._began_otherwise(account.run, stage, query):
                raise PrivacySpentError(
                    f"Expected the noise that the releases of {account.run!r} began with: its secret, its data or the"
                    " shape of its contributions changed, and no plan covers what other noise would give away."
                )
            if made >= plan.releases:
                raise PrivacySpentError(
                    f"All {plan.releases} releases of the plan are spent. (A resumed run asks its old questions again"
                    " for free; if its data, secret or engine changed, they are new ones: start a new run.)"
                )
            self._append("release", account.population, run=account.run, stage=stage, release=release, query=query)
        return True

    def _began_otherwise(self, run: str, stage: str, query: str) -> bool:
        common = query.split("/")[0]
        return self._count("run = ? and stage = ? and query not like ?", run, stage, f"{common}/%") > 0

    def close(self, run: str, model: str = "", words: Collection[str] = ()) -> int:
        """Ends a run: what it did not use is returned, the hash of its `model` is kept. Gives the entry's number.

        Of a list of `words` that was learnt, short hashes of the words are kept as well: they are a release.
        """
        with self._store.transaction():
            made = self._reservations(run)
            if not made:
                raise ValueError(f"Expected a run of this ledger, found no reservation of {run!r}.")
            if closed := self._entries("kind = 'close' and run = ?", run):
                return closed[0].id
            counts = self._made("run = ?", (run,))
            left = {entry.stage: _left(_plan(entry), counts.get((run, entry.stage), (0, 0))[0]) for entry in made}
            body = {"model": model, "returned": left} | ({"words": sorted(words)} if words else {})
            return self._append("close", made[0].population, run=run, body=body).id

    def learnt(self, run: str) -> frozenset[str]:
        """The short hashes of the words that a run has learnt; none for a run that learnt no words."""
        closed = self._entries("kind = 'close' and run = ?", run)
        return frozenset(closed[0].facts.get("words", ())) if closed else frozenset()

    def _reserve(self, items: Sequence[Item], recipe: str, why: str) -> None:
        new = [item for item in items if not self._reserved(item)]
        for item in new:
            self.must_be_open(item.account.run)
        for population in sorted({item.account.population for item in new if not item.account.simulated}):
            mine = [item for item in new if item.account.population == population and not item.account.simulated]
            self._within_budget(population, mine)
        for item in new:
            account = item.account
            body = {
                "plan": item.plan.to_dict(),
                "partition": account.partition,
                "part": account.part,
                "simulated": account.simulated,
                "recipe": recipe,
                "why": why,
                "request": None if account.simulated else self._approved(item, recipe),
            }
            self._append("reserve", account.population, run=account.run, stage=item.stage, body=body)

    def _reserved(self, item: Item) -> bool:
        """Whether this was set aside before; a run keeps to one account and, on it, to one kind of guarantee."""
        made = self._reservations(item.account.run)
        same = [entry for entry in made if entry.stage == item.stage]
        if any(_account(entry) != item.account or _kind(_plan(entry)) != _kind(item.plan) for entry in made) or any(
            _plan(entry) != item.plan for entry in same
        ):
            raise ValueError(f"Expected the account and plan that run {item.account.run!r} began with; they changed.")
        return bool(same)

    def _reservations(self, run: str) -> list[Entry]:
        return self._entries("kind = 'reserve' and run = ?", run)

    def must_be_open(self, run: str) -> None:
        """Refuses a run that was ended."""
        if self._ended(run):
            raise RunClosedError(f"Run {run!r} is closed: what it had not used was returned.")

    def _ended(self, run: str) -> bool:
        return bool(self._store.rows("select 1 from entries where kind = 'close' and run = ?", (run,)))

    def _within_budget(self, population: str, items: Sequence[Item]) -> None:
        state = self.admission(population)
        if state is None:
            return
        for item in items:
            state.budget.covers(item.plan)
        new = [Spending(account=item.account, plans=(item.plan,)) for item in items]
        if not state.fits(new):
            raise PrivacySpentError(state.refusal(new))

    def admission(self, population: str, kind: Kind | None = None) -> Admission | None:
        """What decides whether a run on a population may begin; None where it has no budget.

        By default all that counts is looked at, and else what is of one kind.
        """
        budget = self.budget(population)
        if budget is None:
            return None
        closed, released = self._first("close", population), self._first("release", population)
        since = "" if budget.window is None else self._since(budget.window)
        counts = self._made("population = ?", (population,), since)
        held: list[Owed] = []
        whole: list[tuple[int, Owed]] = []
        sampled = 0
        for entry in self._entries("kind = 'reserve' and population = ?", population):
            account, plan = _account(entry), _plan(entry)
            if account.simulated:
                released.pop(entry.run, None)
                continue
            sampled += not is_gaussian(plan)
            if kind is not None and _kind(plan) != kind:
                continue
            found = Owed(account=account, plan=plan, number=0 if is_gaussian(plan) else sampled)
            whole.append((entry.id, found))
            made, recent = counts.get((entry.run, entry.stage), (0, 0))
            if releases := recent + (plan.releases - made if entry.run not in closed else 0):
                held.append(dataclasses.replace(found, plan=owed(plan, releases)))
        first, budgeted = min(released.values(), default=None), self._entries(_BUDGETS, population)[-1].id
        before = self.spendings(population, reserved=True, budget=budget)
        return Admission(
            budget=budget,
            before=tuple(spending for spending in before if kind in (None, spending.kind)),
            owed=tuple(held),
            committed=None
            if first is None
            else tuple(
                found
                for number, found in whole
                if max(number, budgeted) < first < closed.get(found.account.run, math.inf)
            ),
            sampled=sampled,
        )

    def _first(self, kind: str, population: str) -> dict[str, int]:
        """The number of the first entry of a kind, by run."""
        found = "select run, min(id) from entries where kind = ? and population = ? group by run"
        return {run: int(number) for run, number in self._store.rows(found, (kind, population))}

    def _since(self, window: float) -> str:
        return _written(self._store.now() - datetime.timedelta(days=window))

    # What was spent

    def spent(self, run: str, stage: str) -> int:
        return self._count("run = ? and stage = ?", run, stage)

    def queries(self, run: str, stage: str) -> list[str]:
        """What was asked, by the order of the releases."""
        found = "select query from entries where kind = 'release' and run = ? and stage = ? order by release, id"
        return [query for (query,) in self._store.rows(found, (run, stage))]

    def spending(self, run: str) -> Spending:
        """What a run has spent so far, in plain terms that can travel with its model."""
        found = [spending for spending in self._spendings("run = ?", (run,)) if spending.plans]
        if len(found) != 1:
            raise ValueError(f"Expected entries of run {run!r} on one account in the ledger.")
        return found[0]

    def spendings(self, population: str, *, reserved: bool = False, budget: Budget | None = None) -> list[Spending]:
        """Of all runs on a population that are not simulated; with what is `reserved` as if it were spent already."""
        found = self._spendings("population = ?", (population,), reserved, budget.window if budget else None)
        return [spending for spending in found if spending.plans and not spending.account.simulated]

    def _spendings(
        self, where: str, values: tuple[Any, ...], reserved: bool = False, window: float | None = None
    ) -> list[Spending]:
        since = "" if window is None else self._since(window)
        counts = self._made(where, values, since)
        closed = {
            run for (run,) in self._store.rows(f"select run from entries where kind = 'close' and {where}", values)
        }
        runs: dict[str, Spending] = {}
        for entry in self._entries(f"kind = 'reserve' and {where}", *values):
            plan, (made, recent) = _plan(entry), counts.get((entry.run, entry.stage), (0, 0))
            waiting = plan.releases - made if reserved and entry.run not in closed else 0
            held = runs.setdefault(entry.run, Spending(account=_account(entry), plans=()))
            if recent + waiting:
                plans = (*held.plans, carried_out(plan, recent + waiting))
                runs[entry.run] = dataclasses.replace(held, plans=plans)
        return list(runs.values())

    def _made(self, where: str, values: Sequence[Any], since: str = "") -> dict[tuple[str, str], tuple[int, int]]:
        """How many releases there are by run and stage, and how many of them `since` a time."""
        counted = self._store.rows(
            "select run, stage, count(*), sum(case when at >= ? then 1 else 0 end) from entries"
            f" where kind = 'release' and {where} group by run, stage",
            (since, *values),
        )
        return {(run, stage): (int(made), int(recent)) for run, stage, made, recent in counted}

    def reserved(self) -> set[str]:
        """The names of all runs there ever were."""
        return {run for (run,) in self._store.rows("select distinct run from entries where kind = 'reserve'")}

    def populations(self) -> list[str]:
        return [name for (name,) in self._store.rows("select distinct population from entries order by population")]

    def standings(self) -> list[Standing]:
        """Of all populations; what protects units or neighbours of another kind is counted apart."""
        found = []
        for population in self.populations():
            budget = self.budget(population)
            kinds = {spending.kind for spending in self.spendings(population, reserved=True)}
            kinds |= {(budget.unit, budget.neighbours)} if budget else set()
            found += [self.standing(population, kind) for kind in sorted(kinds)]
        return found

    def standing(self, population: str, kind: Kind, delta: float = 1e-5) -> Standing:
        """At the budget's delta, if there is a budget for this kind of unit and neighbours."""
        budget = self.budget(population)
        budget = budget if budget and (budget.unit, budget.neighbours) == kind else None
        at = budget.delta if budget else delta
        made = [s for s in self.spendings(population, budget=budget) if s.kind == kind]
        promised = [s for s in self.spendings(population, reserved=True, budget=budget) if s.kind == kind]
        state = self.admission(population, kind) if budget else None
        return Standing(
            population=population,
            budget=budget,
            spent=guarantee(made, at) if made else None,
            promised=guarantee(promised, at) if promised else None,
            runs=len({spending.account.run.split("/")[0] for spending in promised}),
            rule=str(state.rule) if state else None,
            counted=state.counted() if state else None,
            told=state.told() if state else "",
        )

    # Budgets and reviews

    def set_budget(self, budget: Budget, why: str = "") -> None:
        """The latest budget of a population counts; one with reviewers is changed by their signature only."""
        with self._store.transaction():
            self._by_reviewer(self.budget(budget.population), "the change of a budget")
            self._append("budget", budget.population, body={"budget": budget.to_dict(), "why": why})

    def budget(self, population: str) -> Budget | None:
        """The latest; of one that has reviewers, only what they signed is believed."""
        budget = None
        for entry in self._entries(_BUDGETS, population):
            if budget and budget.reviewers and not self._signed_by(entry, budget.reviewers):
                raise LedgerError(
                    f"Expected entry {entry.id}, a budget, signed by a reviewer: the ledger was edited (verify it)."
                )
            budget = Budget.from_dict(entry.facts["budget"])
        return budget

    def _signed_by(self, entry: Entry, reviewers: Sequence[str]) -> bool:
        before = self._entries("id = ?", entry.id - 1)
        whole = entry.hash == entry.hashed(before[0].hash if before else "")
        return whole and entry.signer in reviewers and keys.verified(entry.signer, entry.signature, entry.hash)

    def request(self, name: str, items: Sequence[Item], *, recipe: str, why: str = "") -> int:
        """Asks for the leave to run a recipe, as it is now; gives the number to review it by."""
        (population,) = {item.account.population for item in items}
        with self._store.transaction():
            body = {"name": name, "recipe": recipe, "why": why, "asked": [_asked(item) for item in items]}
            return self._append("request", population, run=name, body=body).id

    def review(self, number: int, *, approved: bool, note: str = "") -> None:
        with self._store.transaction():
            request = self._entries("kind = 'request' and id = ?", number) if 0 < number < 2**63 else []
            if not request:
                raise ValueError(f"Expected the number of a request, found none with {number}.")
            if self._verdict(number):
                raise ValueError(f"Expected a request that waits for review; {number} is reviewed already.")
            self._by_reviewer(self.budget(request[0].population), "a review")
            body = {"approved": approved, "note": note}
            self._append("review", request[0].population, run=request[0].run, release=number, body=body)

    def requests(self) -> list[dict[str, Any]]:
        return [
            {"number": entry.id, "at": entry.at, "who": entry.who, "population": entry.population, **entry.facts}
            | {"verdict": self._told_verdict(entry)}
            for entry in self._entries("kind = 'request'")
        ]

    def _told_verdict(self, request: Entry) -> str:
        verdict = self._verdict(request.id)
        if verdict is None:
            return "waiting"
        note = f" ({verdict.facts['note']})" if verdict.facts["note"] else ""
        used = "".join(f", used by run {run}" for run in self._used_by(request))
        return f"{'approved' if verdict.facts['approved'] else 'rejected'} by {verdict.who}{note}{used}"

    def _used_by(self, request: Entry) -> list[str]:
        """The runs that began by a request; one that ended without any release gave it back.

        Formal guarantee: asked in the transaction that reserves, it keeps two runs from releasing by one approval: a
        run that ended releases nothing more, and one that was interrupted has not ended.
        """
        reserved = self._entries("kind = 'reserve' and population = ?", request.population)
        accounts = dict.fromkeys(entry.run for entry in reserved if entry.facts["request"] == request.id)
        using = (account for account in accounts if self._count("run = ?", account) or not self._ended(account))
        return list(dict.fromkeys(account.split("/")[0] for account in using))

    def _verdict(self, number: int) -> Entry | None:
        found = self._entries("kind = 'review' and release = ?", number)
        return found[0] if found else None

    def _by_reviewer(self, budget: Budget | None, what: str) -> None:
        if budget and budget.reviewers and (self._key is None or keys.public(self._key) not in budget.reviewers):
            raise NotApprovedError(f"Expected {what} signed by one of the reviewers of {budget.population!r} (--key).")

    def _approved(self, item: Item, recipe: str) -> int | None:
        """The request this run may start by; None where the budget asks for none."""
        account = item.account
        budget = self.budget(account.population)
        if budget is None or not budget.review:
            return None
        run = account.run.split("/")[0]
        told = "there is no request for it (fedlens ledger request)"
        for request in self._entries("kind = 'request' and population = ?", account.population):
            verdict = self._verdict(request.id)
            if request.facts["recipe"] != recipe or _asked(item) not in request.facts["asked"]:
                if run.startswith(request.facts["name"]):
                    told = f"the recipe is not the one of request {request.id}: it was edited since"
            elif verdict is None:
                told = f"request {request.id} waits for review"
            elif not verdict.facts["approved"]:
                told = f"request {request.id} was rejected: {verdict.facts['note'] or 'no note'}"
            elif budget.reviewers and not self._signed_by(verdict, budget.reviewers):
                told = f"the approval of request {request.id} is not signed by a reviewer"
            elif others := [other for other in self._used_by(request) if other != run]:
                told = f"request {request.id} was used by another run ({', '.join(others)}); make a new one"
            else:
                return request.id
        raise NotApprovedError(f"Runs on {account.population!r} need an approved request, and {told}.")

    # The chain

    def _append(
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
        count, head = about(self._store)
        last = self._entries("id = ?", count)
        entry = Entry(
            id=count + 1,
            at=self._time(last[0].at if last else ""),
            kind=kind,
            who=self._who,
            population=population,
            run=run,
            stage=stage,
            release=release,
            query=query,
            body=json.dumps(body or {}, sort_keys=True),
            signer=keys.public(self._key) if self._key else "",
            signature="",
            hash="",
        )
        digest = entry.hashed(head)
        signature = keys.signed(self._key, digest) if self._key else ""
        entry = dataclasses.replace(entry, hash=digest, signature=signature)
        marks = ", ".join("?" * len(dataclasses.fields(Entry)))
        self._store.rows(f"insert into entries ({COLUMNS}) values ({marks})", dataclasses.astuple(entry))
        self._store.rows("update about set entries = ?, head = ?", (entry.id, entry.hash))
        return entry

    def _time(self, last: str) -> str:
        now = self._store.now()
        if last and now < datetime.datetime.fromisoformat(last) - _BACKWARDS:
            raise LedgerError(f"Expected a clock that goes forward: the last entry is of {last}. Nothing was booked.")
        return max(last, _written(now))

    def head(self) -> Head:
        """The number and hash of the last entry: written down elsewhere, they pin down everything before."""
        return about(self._store)

    def entries(self) -> Iterator[Entry]:
        """All of them, in the order of their numbers, whatever gaps there are."""
        page = self._entries("id is not null", limit=_PAGE)
        while page:
            yield from page
            page = self._entries("id > ?", page[-1].id, limit=_PAGE)

    def verify(self, models: Mapping[str, str] | None = None, written_down: Iterable[Head] = ()) -> list[str]:
        """Everything that is wrong: entries edited, missing or reordered, signatures, releases beyond their plan.

        `models` are hashes of model files, by run; `written_down` are heads that were kept elsewhere.
        """
        with self._store.transaction():  # nobody adds an entry between the head and the last one
            return list(chain.problems(self.entries(), self.head(), models or {}, list(written_down)))

    def runs(self) -> list[dict[str, Any]]:
        """All runs: by whom, why, on what, how much of it was used."""
        closed, counts = {entry.run: entry for entry in self._entries("kind = 'close'")}, self._made("1 = 1", ())
        found: dict[str, dict[str, Any]] = {}
        for entry in self._entries("kind = 'reserve'"):
            facts, (made, _) = entry.facts, counts.get((entry.run, entry.stage), (0, 0))
            run = found.setdefault(
                entry.run,
                {
                    "run": entry.run,
                    "population": entry.population,
                    "who": entry.who,
                    "at": entry.at,
                    "why": facts["why"],
                    "recipe": facts["recipe"],
                    "partition": facts["partition"],
                    "part": facts["part"],
                    "simulated": facts["simulated"],
                    "closed": entry.run in closed,
                    "model": closed[entry.run].facts["model"] if entry.run in closed else "",
                    "stages": [],
                },
            )
            run["stages"].append({"stage": entry.stage, "released": made, "plan": facts["plan"]})
        for run in found.values():
            used = ", ".join(
                f"{stage['released']} of {stage['plan']['releases']} {stage['stage']}" for stage in run["stages"]
            )
            state = "closed" if run["closed"] else "open"
            run["told"] = f"{used} releases, {state}{', SIMULATED (free)' if run['simulated'] else ''}"
        return list(found.values())

    def _entries(self, where: str, *values: Any, limit: int | None = None) -> list[Entry]:
        most = f" limit {limit}" if limit else ""
        found = self._store.rows(f"select {COLUMNS} from entries where {where} order by id{most}", values)
        return [Entry(*row) for row in found]

    def _count(self, where: str, *values: Any) -> int:
        return int(self._store.rows(f"select count(*) from entries where kind = 'release' and {where}", values)[0][0])


def _asked(item: Item) -> dict[str, Any]:
    return {"stage": item.stage, "part": item.account.part, "plan": item.plan.to_dict()}


def _kind(plan: Promise) -> Kind:
    return plan.unit, plan.neighbours


def _left(plan: Promise, made: int) -> int:
    """How many releases a run that ends gives back."""
    return plan.releases - (owed(plan, made).releases if made else 0)


def _account(entry: Entry) -> Account:
    facts = entry.facts
    return Account(
        run=entry.run,
        population=entry.population,
        partition=facts["partition"],
        part=facts["part"],
        simulated=facts["simulated"],
    )


def _plan(entry: Entry) -> Promise:
    return _parsed(json.dumps(entry.facts["plan"], sort_keys=True))


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> Promise:
    return promised(json.loads(text))


def _written(time: datetime.datetime) -> str:
    """So that later times are later in the alphabet too."""
    return time.isoformat(timespec="microseconds")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
